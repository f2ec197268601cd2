//! Tests of `rollpacker train`, from data to a model that loads again, and of the inputs that it rejects.
#![cfg(feature = "torch")]
#![allow(clippy::print_stdout, reason = "a skipped test prints a message")]

mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::Array;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt32Type, UInt64Type};
use serde_json::{Value, json as object};
use workspace::{Sft, TestWorkspace, json, parquet_rows};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
val_files = "data/validation.parquet"
train_batch_size = 4
max_response_length = 48

[model]
path = "warm"

[rollout]
n = 4

[schedule]
eta_prompts = 1.5
eta_responses = 1.5

[actor]
lr = 1e-4

[trainer]
total_training_steps = 4
test_freq = 2
device = "cpu"
default_local_dir = "run"
"#;

#[test]
fn a_run_writes_metrics_rollouts_a_summary_and_a_usable_model() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    workspace.write("warm/generation_config.json", r#"{"temperature": 0.6}"#);
    let printed = workspace.ok(&["train", "--config", "recipe.toml"]);
    assert_eq!(printed.lines().filter(|line| line.contains(" - round:")).count(), 4, "{printed}");

    let summary = json(&workspace.path("run/summary.json"));
    assert_eq!((&summary["steps"], &summary["trained_prompts"]), (&4.into(), &16.into()));
    assert_eq!(summary["validation"]["prompts"], 8);
    for key in ["warm_start", "warm_start_greedy", "final", "final_greedy"] {
        assert!(summary["validation"][key].is_number(), "{key}");
    }
    for key in ["tokens_per_s", "mean_trained_length", "launched_tokens", "discarded_tokens"] {
        assert!(summary[key].is_number(), "{key}");
    }

    let lines = workspace.metrics_lines("run");
    let steps: Vec<u64> = lines.iter().map(|line| line["step"].as_u64().expect("a step")).collect();
    assert_eq!(steps, [0, 1, 2, 3, 4, 4]);
    assert!(
        lines[2]["data"]["val/score"].is_number() && lines[1]["data"]["val/score"].is_null(),
        "every second step"
    );
    let discarded: u64 = lines
        .iter()
        .filter_map(|line| line["data"]["rollout/discarded_tokens"].as_f64())
        .sum::<f64>() as u64;
    assert_eq!(summary["discarded_tokens"], discarded);

    for line in &lines[1..5] {
        let step = line["step"].as_u64().expect("a step");
        check_rollouts(&workspace.rollouts("run", step), line);
    }
    // The run writes into the folder of its initial model. The model is read before it is written, and the tokenizer and the settings of
    // generation remain.
    let again = workspace.ok(&["train", "--config", "run/recipe.toml", "model.path=run/model"]);
    let tokenizer =
        fs::metadata(workspace.path("run/model/tokenizer.json")).expect("the file is there");
    assert!(tokenizer.len() > 0);
    assert_eq!(json(&workspace.path("run/model/generation_config.json"))["temperature"], 0.6);
    assert!(again.contains("\"steps\": 4"), "{again}");
}

#[test]
fn prompts_that_are_too_long_are_left_out_or_cut() {
    let workspace = TestWorkspace::new(workspace::RECIPE);
    let short = ["data.max_prompt_length=3", "trainer.total_training_steps=1"];
    let ended = |truncation: &str| {
        workspace
            .train_to_end(&[&short[..], &[truncation, "trainer.default_local_dir=run"]].concat())
    };
    let left_out = || workspace.summary("run")["overlong_prompts"].as_u64().expect("a number");
    for truncation in ["skip", "error"] {
        ended(&format!("data.truncation={truncation}")).success();
        assert!(left_out() > 0, "{truncation}");
    }
    for truncation in ["left", "right", "middle"] {
        ended(&format!("data.truncation={truncation}")).success();
        assert_eq!(left_out(), 0, "{truncation}");
    }
}

/// The tokens of the responses to a prompt, by the number of the response.
type TokensBySample = BTreeMap<u32, Vec<i32>>;

/// Trains one step with three samples of each of four validation prompts. `temperature` is the setting of their temperature. Returns the
/// responses by the id of their prompt and whether they are greedy.
fn validated(
    workspace: &TestWorkspace,
    temperature: &str,
) -> BTreeMap<(u64, bool), TokensBySample> {
    workspace.train_ok(&[
        "data.val_files=data/validation.parquet",
        "rollout.val_kwargs.n=3",
        temperature,
        "trainer.total_training_steps=1",
        "trainer.default_local_dir=run",
    ]);
    let mut responses: BTreeMap<(u64, bool), TokensBySample> = BTreeMap::new();
    let rows = parquet_rows(&workspace.path("run/validation/step_00001.parquet"));
    let prompts = rows["prompt_id"].as_primitive::<UInt64Type>();
    let samples = rows["sample"].as_primitive::<UInt32Type>();
    let greedy = rows["greedy"].as_boolean();
    let tokens = rows["response_ids"].as_list::<i32>();
    for row in 0..rows.num_rows() {
        let ids = tokens.value(row).as_primitive::<Int32Type>().values().to_vec();
        let of = responses.entry((prompts.value(row), greedy.value(row))).or_default();
        of.insert(samples.value(row), ids);
    }
    assert_eq!(responses.len(), 2 * 4, "4 prompts, sampled and greedy");
    for ((_, greedy), found) in &responses {
        let samples: Vec<u32> = found.keys().copied().collect();
        assert_eq!(samples, if *greedy { vec![0] } else { vec![0, 1, 2] });
    }
    responses
}

#[test]
fn a_validation_samples_as_its_own_settings_say() {
    let workspace = TestWorkspace::new(workspace::RECIPE);
    let cold = validated(&workspace, "rollout.val_kwargs.temperature=0");
    let metrics =
        fs::read_to_string(workspace.path("run/metrics.jsonl")).expect("the file is there");
    assert!(metrics.contains("/acc/mean@3\"") && !metrics.contains("/acc/mean@1\""), "{metrics}");
    for ((prompt, _), found) in &cold {
        let greedy = &cold[&(*prompt, true)][&0];
        assert!(found.values().all(|ids| ids == greedy), "temperature 0 is greedy");
    }
    let warm = validated(&workspace, "rollout.val_kwargs.temperature=1");
    let differ = |found: &TokensBySample| found[&0] != found[&1] && found[&1] != found[&2];
    assert!(warm.iter().any(|((_, greedy), found)| !greedy && differ(found)), "{warm:?}");
}

/// Checks that every launched response is in the file with one log-probability per token, and with a score if it was trained on.
fn check_rollouts(path: &Path, line: &Value) {
    let rows = parquet_rows(path);
    let admitted = rows["admitted"].as_boolean();
    let list = |name: &str, row: usize| rows[name].as_list::<i32>().value(row);
    let policy = line["step"].as_u64().expect("a step") - 1;
    for row in 0..rows.num_rows() {
        assert_eq!(admitted.value(row), rows["score"].is_valid(row));
        let length = list("response_ids", row).len();
        let versions = list("token_versions", row);
        assert_eq!((list("logprobs_nats", row).len(), versions.len()), (length, length));
        let mut versions = versions.as_primitive::<UInt64Type>().values().iter();
        assert!(versions.all(|version| *version == policy));
    }
    assert_eq!(admitted.true_count(), 16);
    assert_eq!(
        rows.num_rows() as f64,
        line["data"]["rollout/launched_responses"].as_f64().expect("a number")
    );
}

#[test]
fn the_same_seed_gives_the_same_synchronous_run() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let scores = |out: &str| {
        // The trainer is called once per step, so the order in which groups finish has no effect.
        workspace.ok(&[
            "train",
            "--config",
            "recipe.toml",
            "--out",
            out,
            "schedule.name=sync",
            "rollout.instances=1",
        ]);
        let lines = workspace.metrics_lines(out).into_iter();
        let scores = lines.filter_map(|line| line["data"]["response_length/mean"].as_f64());
        scores.collect::<Vec<_>>()
    };
    assert_eq!(scores("one"), scores("two"));
}

#[test]
fn a_dry_run_shows_arithmetic_and_graph_and_trains_nothing() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let printed = workspace.ok(&["train", "--config", "recipe.toml", "--dry-run"]);
    for part in [
        "a step trains on          4 prompts x 4 responses = 16",
        "6 prompts x 6 responses = 36",
        "schedule(tail_batching)",
    ] {
        assert!(printed.contains(part), "{part}: {printed}");
    }
    assert!(!workspace.path("run").exists());
}

#[test]
fn invalid_recipes_are_refused_by_name_with_exit_status_2() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let train = |args: &[&str]| {
        workspace.run_refused(&[&["train", "--config", "recipe.toml"], args].concat())
    };
    let cases: [(&[&str], &str); 7] = [
        (
            &["actor.learningrate=1"],
            "unknown key `actor.learningrate`; did you mean `actor.learning_rate`?",
        ),
        (&["rollout.n=0"], "key `rollout.n`: expected at least 1, found 0"),
        (&["model.path=nowhere"], "nowhere"),
        (&["data.train_files=absent.parquet"], "absent.parquet"),
        (&["data.train_files=recipe.toml"], "recipe.toml"),
        (&["data.max_response_length=100000"], "data.max_response_length"),
        (&["reward.routes={\"*\"=\"maths\"}"], "did you mean `math`?"),
    ];
    for (args, expected) in cases {
        let error = train(args);
        assert!(error.contains(expected), "{args:?}: {error}");
    }
    assert!(workspace.run_refused(&["train", "--config", "absent.toml"]).contains("absent.toml"));
}

#[test]
fn prompts_without_a_reward_are_refused_before_the_run_and_named_by_file_and_row() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let args = ["train", "--config", "recipe.toml", "reward.routes={\"openai/gsm8k\"=\"math\"}"];
    let error = workspace.run_refused(&args);
    assert!(
        error.contains("train.parquet, row 0: no reward for data_source `rollpacker/chain`; there are routes for openai/gsm8k; set `reward.routes`"),
        "{error}"
    );
    assert!(!workspace.path("run").exists());
}

#[test]
fn overlong_prompts_are_left_out_and_counted() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    workspace.ok(&[
        "train",
        "--config",
        "recipe.toml",
        "data.max_prompt_length=14",
        "trainer.total_training_steps=1",
        "data.val_files=[]",
    ]);
    let summary = json(&workspace.path("run/summary.json"));
    assert!(summary["overlong_prompts"].as_u64().is_some_and(|count| count > 0), "{summary}");
    let error = workspace.run(&[
        "train",
        "--config",
        "recipe.toml",
        "data.max_prompt_length=1",
        "data.val_files=[]",
    ]);
    let error = error.err;
    assert!(error.contains("every prompt is longer than 1"), "{error}");
}

#[test]
fn unusable_inputs_leave_the_results_of_an_earlier_run() {
    let workspace = TestWorkspace::new(workspace::RECIPE);
    let start = ["trainer.total_training_steps=1", "trainer.default_local_dir=run"];
    assert_eq!(workspace.train_to_end(&start).code, Some(0));
    let summary = workspace.summary("run");
    let long = object!({"data_source": "rollpacker/chain", "prompt": "1+".repeat(40), "ground_truth": "3"});
    fs::write(workspace.path("long.jsonl"), format!("{long}\n")).expect("written");
    for (settings, expected) in [
        (
            ["data.val_files=long.jsonl", "data.max_prompt_length=40"],
            "validation prompts (data.val_files): ",
        ),
        (
            ["rollout.replay_lengths=none.json", "data.val_files=[]"],
            "key `rollout.replay_lengths`: ",
        ),
        (["trainer.default_local_dir=", "data.val_files=[]"], "key `trainer.default_local_dir`: "),
    ] {
        let ended = workspace.train_to_end(&[&start[..], &settings].concat()).refusal();
        assert!(ended.err.contains(expected), "{ended:?}");
        assert_eq!(workspace.summary("run"), summary, "{settings:?}");
    }
}

/// Trains on real prompt sets: two files in verl's schema in `data/` of the folder `ROLLPACKER_SHARED`. Skipped if the variable is not set.
#[test]
fn real_prompts_can_be_trained_on() {
    let Some(shared) = std::env::var_os("ROLLPACKER_SHARED").map(PathBuf::from) else {
        println!("skipped: ROLLPACKER_SHARED names no folder with data/");
        return;
    };
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    for name in ["kk_3ppl_train.parquet", "gsm8k_train.parquet"] {
        let files = format!("data.train_files={}", shared.join("data").join(name).display());
        workspace.ok(&[
            "train",
            "--config",
            "recipe.toml",
            &files,
            "data.val_files=[]",
            "data.max_prompt_length=3000",
            "trainer.total_training_steps=3",
            "reward.routes={\"*\"=\"math_flexible\"}",
            "rollout.min_response_length=4",
        ]);
        let summary = json(&workspace.path("run/summary.json"));
        assert_eq!(
            (&summary["steps"], &summary["trained_prompts"]),
            (&3.into(), &12.into()),
            "{name}"
        );
    }
}
