use std::fmt::Write;

use super::entries::{Entry, all};
use super::*;
use crate::generated_page::assert_tables;

const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/docs/verl.md");

fn translated(file: &str, overrides: &[&str]) -> Result<Translation, RecipeError> {
    let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
    translate(&file.parse().expect("TOML"), &overrides, &["math", "python"])
}

fn overrides(file: &str, overrides: &[&str]) -> Vec<String> {
    translated(file, overrides).expect("accepted").overrides
}

fn refused(file: &str, overrides: &[&str]) -> String {
    translated(file, overrides).expect_err("refused").to_string()
}

/// A key that only verl has.
const VERL: &str = "actor_rollout_ref.rollout.n=8";

#[test]
fn names_are_replaced_and_values_stay() {
    let found = overrides(
        "",
        &[
            VERL,
            "+actor_rollout_ref.actor.optim.lr=1e-6",
            "data.train_files=['a','b']",
            "++trainer.total_epochs=2",
        ],
    );
    let expected =
        ["rollout.n=8", "actor.lr=1e-6", "data.train_files=['a','b']", "trainer.total_epochs=2"];
    assert_eq!(found, expected);
}

#[test]
fn our_keys_alone_are_not_touched() {
    let own = ["algorithm.lam=0.9", "data.seed=null", "rolout.n=3"];
    assert_eq!(overrides("", &own), own);
}

#[test]
fn keys_without_effect_are_left_out_as_in_verl() {
    let off = [
        VERL,
        "actor_rollout_ref.actor.use_kl_loss=False",
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "algorithm.lam=1.0",
    ];
    assert_eq!(overrides("", &off), ["rollout.n=8", "actor.use_kl_loss=False"]);
    let on = [
        VERL,
        "actor_rollout_ref.actor.kl_loss_coef=0.1",
        "actor_rollout_ref.actor.use_kl_loss=True",
        "algorithm.adv_estimator=gae",
        "algorithm.lam=1.0",
    ];
    let found = overrides("", &on);
    assert!(found.contains(&"actor.kl_loss_coef=0.1".to_owned()), "{found:?}");
    assert!(found.contains(&"algorithm.lam=1.0".to_owned()), "{found:?}");
    let by_file = overrides(
        "[actor]\nuse_kl_loss = true",
        &[VERL, "actor_rollout_ref.actor.kl_loss_coef=0.1"],
    );
    assert_eq!(by_file[1], "actor.kl_loss_coef=0.1");
}

#[test]
fn values_that_would_mislead_are_refused_together() {
    let text = refused(
        "",
        &[
            "actor_rollout_ref.rollout.val_kwargs.n=4",
            "critic.ppo_epochs=2",
            "data.truncation=left",
            "actor_rollout_ref.model.lora_rank=0",
        ],
    );
    assert_eq!(text.lines().count(), 3, "{text}");
    assert!(
        text.contains(
            "`critic.ppo_epochs=2` has no equivalent: it must be that of actor.ppo_epochs, 1"
        ),
        "{text}"
    );
    let equal = ["actor_rollout_ref.actor.ppo_epochs=2", "critic.ppo_epochs=2"];
    assert_eq!(overrides("", &equal), ["actor.ppo_epochs=2"]);
    let numbers = ["actor_rollout_ref.rollout.val_kwargs.top_p=1", "data.truncation='error'"];
    assert!(overrides("", &numbers).is_empty());
}

#[test]
fn a_function_is_the_python_reward_of_all_data() {
    let found = overrides("", &["custom_reward_function.path=my/reward.py"]);
    let expected = [
        "reward.options.python.file=my/reward.py",
        "reward.routes={\"*\" = \"python\"}",
        "reward.options.python.function=compute_score",
    ];
    assert_eq!(found, expected);
    let named = ["reward.custom_reward_function.name=f", "reward.custom_reward_function.path=r.py"];
    assert_eq!(overrides("", &named)[0], "reward.options.python.function=f");
    assert!(overrides("", &["custom_reward_function.path=null", VERL]).len() == 1);
    let path = ["custom_reward_function.path=r.py".to_owned()];
    let error = translate(&Table::new(), &path, &["math"]).expect_err("refused").to_string();
    assert!(error.contains("no reward `python`"), "{error}");
}

#[test]
fn the_engine_is_servers_only_if_there_are_any() {
    let name = "actor_rollout_ref.rollout.name=vllm";
    let alone = translated("", &[name]).expect("accepted");
    assert!(alone.overrides.is_empty() && alone.notes()[0].contains("rollout.engine = \"torch\""));
    let servers = "[rollout]\nservers = [\"http://localhost:1\"]";
    assert_eq!(overrides(servers, &[name]), ["rollout.engine=vllm"]);
}

#[test]
fn what_has_no_meaning_here_is_one_note() {
    let keys = [
        VERL,
        "trainer.logger=['console','wandb']",
        "trainer.nnodes=1",
        "actor_rollout_ref.actor.fsdp_config.param_offload=False",
    ];
    let translation = translated("", &keys).expect("accepted");
    let notes = translation.notes();
    assert_eq!(notes.len(), 2, "{notes:?}");
    assert!(notes[0].contains("`actor_rollout_ref.rollout.n` sets `rollout.n`"), "{notes:?}");
    for key in [
        "`trainer.logger`",
        "`trainer.nnodes`",
        "`actor_rollout_ref.actor.fsdp_config.param_offload`",
    ] {
        assert!(notes[1].contains(key), "{key}: {notes:?}");
    }
}

#[test]
fn each_key_is_listed_once_and_names_keys_that_exist() {
    for (at, entry) in all().enumerate() {
        assert!(all().take(at).all(|other| other.verl != entry.verl), "{}", entry.verl);
        let ours = match entry.meaning {
            Use::Key(ours)
            | Use::KeyIf(ours, _)
            | Use::SameAs(ours, _)
            | Use::NotNegative(ours) => ours,
            _ => continue,
        };
        assert!(is_known::<RawRecipe>(ours), "{}: {ours}", entry.verl);
    }
}

#[test]
fn the_page_of_verl_is_up_to_date() {
    let tables = format!("\n{}\n", tables());
    assert_tables(PAGE, &tables, "cargo test -p rollpacker --lib page_of_verl");
}

/// Returns the tables of the page.
fn tables() -> String {
    [
        table("Keys that mean the same", ["verl", "here"], mapped),
        table("Keys with one value", ["verl", "accepted; otherwise refused"], limited),
        table("Refused keys", ["verl", "why"], refusal),
        table("Ignored keys", ["verl", ""], |entry| {
            (entry.meaning == Use::Ignored).then(String::new)
        }),
    ]
    .join("\n")
}

fn table(title: &str, head: [&str; 2], cell: impl Fn(&Entry) -> Option<String>) -> String {
    let rows = all().filter_map(|entry| Some((entry.verl, cell(entry)?)));
    let mut text = format!("### {title}\n\n");
    if head[1].is_empty() {
        // A list without further information needs no table.
        let keys = rows.map(|(verl, _)| format!("`{verl}`")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(text, "{keys}.");
    } else {
        let _ = writeln!(text, "| {} | {} |\n|---|---|", head[0], head[1]);
        for (verl, cell) in rows {
            let _ = writeln!(text, "| `{verl}` | {cell} |");
        }
    }
    text
}

fn mapped(entry: &Entry) -> Option<String> {
    Some(match entry.meaning {
        Use::Key(ours) => format!("`{ours}`"),
        Use::KeyIf(ours, Condition { key, values }) => {
            let values = values.iter().map(|value| format!("`{key} = {value}`"));
            format!("`{ours}`, with {}; otherwise without effect, as in verl", values.collect::<Vec<_>>().join(" or "))
        }
        Use::NotNegative(ours) => format!("`{ours}`; a negative value is left out"),
        Use::RewardFile => format!("`{PYTHON}.file`, with `reward.routes = {{ \"*\" = \"python\" }}`"),
        Use::RewardFunction => format!("`{PYTHON}.function`; default `compute_score`"),
        Use::Engine => "`rollout.engine`, if `rollout.servers` or `rollout.serve` is set; otherwise left out with a note".to_owned(),
        _ => return None,
    })
}

fn limited(entry: &Entry) -> Option<String> {
    match entry.meaning {
        Use::Only([], reason) => Some(format!("`null`: {reason}")),
        Use::Only(values, reason) => {
            let values = values.iter().map(|value| format!("`{value}`")).collect::<Vec<_>>();
            Some(format!("{}: {reason}", values.join(", ")))
        }
        Use::SameAs(ours, reason) => Some(format!("the value of `{ours}`: {reason}")),
        _ => None,
    }
}

fn refusal(entry: &Entry) -> Option<String> {
    match entry.meaning {
        Use::Refused(reason) => Some(reason.to_owned()),
        _ => None,
    }
}
