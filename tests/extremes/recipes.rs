//! Tests of the keys of recipes, in `train`, `sft`, `profile` and `score`.

use std::panic::catch_unwind;
use std::path::Path;

use rollpacker::algorithms::Algorithms;
use rollpacker::placements::Placements;
use rollpacker::recipe::schedule::Schedules;
use rollpacker::recipe::{Recipe, RecipeError};

use crate::program::{self, Case, owned};
use crate::workspace::{Sft, TestWorkspace};
use crate::{EXTREMES, Key, is_of_another_type};

const RECIPE: &str = r#"
[data]
train_files = "data/train.parquet"
val_files = "data/validation.parquet"
train_batch_size = 4
max_prompt_length = 64
max_response_length = 24

[model]
path = "model"

[rollout]
n = 2
kv_cache_tokens = 4096

[schedule]
name = "fused"

[trainer]
total_training_steps = 2
device = "cpu"
"#;

/// Settings that keys need to have an effect, by the prefix of the key.
const REQUIRED_SETTINGS: [(&str, &[&str]); 15] = [
    ("critic.", &["algorithm.adv_estimator=gae"]),
    ("trainer.critic_warmup", &["algorithm.adv_estimator=gae"]),
    ("algorithm.gamma", &["algorithm.adv_estimator=gae"]),
    ("algorithm.lam", &["algorithm.adv_estimator=gae"]),
    ("algorithm.kl_ctrl.", &["algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"]),
    ("algorithm.rollout_correction.", &["algorithm.rollout_correction.rollout_is=token"]),
    (
        "algorithm.rollout_correction.rollout_rs_threshold",
        &["algorithm.rollout_correction.rollout_rs=token_k2"],
    ),
    (
        "rollout.serve.count",
        // A server that never answers.
        &[
            "rollout.engine=vllm",
            "rollout.server_timeout=0.2",
            "rollout.serve.command=[\"sleep\", \"60\", \"{port}\"]",
        ],
    ),
    ("actor.kl_loss_coef", &["actor.use_kl_loss=true"]),
    ("actor.tau_", &["actor.policy_loss.loss_mode=sapo"]),
    ("actor.loss_scale_factor", &["actor.loss_agg_mode=seq-mean-token-sum-norm"]),
    ("trainer.save_freq", &["trainer.max_ckpt_to_keep=1"]),
    ("trainer.max_ckpt_to_keep", &["trainer.save_freq=1"]),
    ("actor.lr_warmup_steps", &["actor.lr_scheduler_type=cosine"]),
    ("data.curriculum", &["trainer.total_epochs=2"]),
];

/// Returns the settings that name a schedule, with the options that it requires.
pub(crate) fn of_schedule(name: &str) -> Vec<String> {
    let needs: &[&str] = match name {
        "dynamic" => &["max_generated_batches=2", "on_exhausted=smaller_step"],
        "sorted" => &["group_size=2", "mode=on_policy"],
        "partial" => &["oversubscription=1.5", "max_versions=2"],
        "frontier_group" => &["order=group_major"],
        _ => &[],
    };
    let named = std::iter::once(format!("schedule.name={name}"));
    named.chain(needs.iter().map(|need| format!("schedule.{need}"))).collect()
}

fn is_of_sft(key: &Key) -> bool {
    key.name.starts_with("sft.")
}

/// Returns `true` if the key accepts some number, ignoring bounds and its dependencies on other keys.
fn is_numeric(path: &Path, name: &str) -> bool {
    ["1", "0.5"].iter().any(|value| {
        let read = Recipe::read(path, &[format!("{name}={value}")]);
        matches!(read, Ok(_) | Err(RecipeError::Bound { .. }))
    })
}

/// Returns all numeric keys of recipes, including those of schedules, placements, losses and estimators.
fn keys(path: &Path) -> Vec<Key> {
    let with_settings = |name: &str| {
        let found = REQUIRED_SETTINGS.iter().filter(|(prefix, _)| name.starts_with(prefix));
        found.flat_map(|(_, settings)| settings.iter().map(|&setting| setting.to_owned())).collect()
    };
    let plain = Recipe::keys().into_iter().filter(|name| is_numeric(path, name));
    let mut keys: Vec<Key> =
        plain.map(|name| Key { with_settings: with_settings(&name), name }).collect();
    let typed = |key: &Key| {
        ["1", "1.5"].iter().any(|value| {
            let error =
                Recipe::read(path, &key.settings(value)).err().map(|error| error.to_string());
            error.is_none_or(|error| !is_of_another_type(&error))
        })
    };
    let schedules = Schedules::default();
    for name in schedules.names() {
        let options = schedules.options(name).expect("it is known");
        let key = |option: &str| Key {
            name: format!("schedule.{option}"),
            with_settings: of_schedule(name),
        };
        keys.extend(options.into_iter().map(key).filter(typed));
    }
    let placements = Placements::default();
    for kind in placements.names() {
        let with_settings = vec![format!("placement.kind={kind}")];
        let key = |option: &&str| Key {
            name: format!("placement.{option}"),
            with_settings: with_settings.clone(),
        };
        let options = placements.options(kind).expect("it is known");
        keys.extend(options.iter().map(key).filter(typed));
    }
    let algorithms = Algorithms::default();
    for entry in algorithms.advantages.list() {
        let numbers = entry.docs.defaults.iter().filter(|(_, value)| value.is_number());
        keys.extend(numbers.map(|(option, _)| Key {
            name: format!("algorithm.adv_options.{option}"),
            with_settings: vec![format!("algorithm.adv_estimator={}", entry.name)],
        }));
    }
    for entry in algorithms.policy_losses.list() {
        let numbers = entry.docs.defaults.iter().filter(|(_, value)| value.is_number());
        keys.extend(numbers.map(|(option, _)| Key {
            name: format!("actor.policy_loss.{option}"),
            with_settings: vec![format!("actor.policy_loss.loss_mode={}", entry.name)],
        }));
    }
    keys
}

/// Returns the values of `key` that its bounds allow. Errors for the other values must name the key.
fn accepted(path: &Path, key: &Key) -> Vec<&'static str> {
    let is_accepted = |value: &&'static str| {
        let settings = key.settings(value);
        let resolved = catch_unwind(|| {
            let recipe = Recipe::read(path, &settings)?;
            let algorithms = Algorithms::default();
            algorithms.estimator(&recipe).and_then(|_| algorithms.objective(&recipe)).map(drop)
        });
        let resolved = resolved.unwrap_or_else(|_| panic!("{settings:?} panics"));
        if let Err(error) = &resolved {
            let error = error.to_string();
            assert!(key.is_named_by(&error), "{settings:?}: {error}");
        }
        resolved.is_ok()
    };
    EXTREMES.into_iter().filter(is_accepted).collect()
}

/// Returns runs of `command` with each numeric key that `of` selects, at each extreme that its bounds allow.
fn cases(workspace: &TestWorkspace, command: &[&str], of: impl Fn(&Key) -> bool) -> Vec<Case> {
    let path = workspace.path("recipe.toml");
    let keys = keys(&path);
    assert!(keys.len() > 80, "{} numeric keys are found", keys.len());
    let mut cases = Vec::new();
    for key in keys.iter().filter(|&key| of(key)) {
        for value in accepted(&path, key) {
            let args = [owned(command), key.settings(value)].concat();
            cases.push(Case { args, keys: key.named() });
        }
    }
    cases
}

/// Returns the runs of [`cases`], each with its own output path, which `flag` sets.
fn cases_apart(
    workspace: &TestWorkspace,
    command: &[&str],
    flag: &str,
    of: impl Fn(&Key) -> bool,
) -> Vec<Case> {
    let mut cases = cases(workspace, command, of);
    for (number, case) in cases.iter_mut().enumerate() {
        case.args.push(format!("{flag}=written-{number}"));
    }
    cases
}

#[test]
fn training_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let command = ["train", "--config", "recipe.toml"];
    program::check(&workspace, &cases_apart(&workspace, &command, "--out", |key| !is_of_sft(key)));
}

#[test]
fn fine_tuning_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let of = |key: &Key| is_of_sft(key) || key.name == "trainer.seed";
    let command = ["sft", "--config", "recipe.toml"];
    program::check(&workspace, &cases_apart(&workspace, &command, "--out", of));
}

#[test]
fn profiling_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let of = |key: &Key| key.name.starts_with("rollout.") || key.name.starts_with("data.max_");
    let command = ["profile", "--config", "recipe.toml", "--budget=0.01"];
    program::check(&workspace, &cases_apart(&workspace, &command, "--output", of));
}

#[test]
fn scoring_by_a_recipe_succeeds_or_names_the_key() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let row = r#"{"data_source": "x", "response": "A:1", "ground_truth": "1"}"#;
    workspace.write("rows.jsonl", &format!("{row}\n"));
    let path = workspace.path("recipe.toml");
    let of_score = |key: &&Key| key.name.starts_with("reward.") || key.name.starts_with("data.");
    let mut cases = Vec::new();
    for key in keys(&path).iter().filter(of_score) {
        for value in accepted(&path, key) {
            let mut args = owned(&["score", "--reward", "recipe.toml", "--input", "rows.jsonl"]);
            args.extend(key.settings(value).iter().map(|setting| format!("--option={setting}")));
            cases.push(Case { args, keys: key.named() });
        }
    }
    program::check(&workspace, &cases);
}
