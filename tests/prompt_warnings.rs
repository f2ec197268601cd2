//! Tests of the warnings about the prompts of a run.
#![cfg(feature = "torch")]

mod workspace;

use serde_json::json;
use workspace::{RECIPE, TestWorkspace};

/// Creates a workspace with prompts whose contents are `training` and `validation`.
fn workspace(training: &[String], validation: &[String]) -> TestWorkspace {
    let workspace = TestWorkspace::new(RECIPE);
    for (name, contents) in [("train.jsonl", training), ("val.jsonl", validation)] {
        let rows = contents.iter().map(|content| {
            let row = json!({
                "data_source": "math",
                "prompt": [{"role": "user", "content": content}],
                "reward_model": {"style": "rule", "ground_truth": "1"},
            });
            format!("{row}\n")
        });
        workspace.write(name, &rows.collect::<String>());
    }
    workspace
}

/// Returns the warnings of a dry run.
fn warnings(workspace: &TestWorkspace, more: &[&str]) -> Vec<String> {
    let files = ["--dry-run", "data.train_files=train.jsonl", "data.val_files=val.jsonl"];
    let end = workspace.train_ok(&[&files[..], more].concat());
    end.err.lines().filter(|line| line.starts_with("warning: ")).map(str::to_owned).collect()
}

fn numbered(prefix: &str, rows: std::ops::Range<u32>) -> Vec<String> {
    rows.map(|row| format!("{prefix}{row}")).collect()
}

#[test]
fn usual_prompts_cause_no_warning() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 100..104));
    assert!(warnings(&workspace, &[]).is_empty());
}

#[test]
fn unknown_tokens_are_reported_with_their_share() {
    let workspace = workspace(&numbered("数", 10..50), &numbered("", 100..104));
    let found = warnings(&workspace, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("`<|unk|>`") && found[0].contains(" % of the tokens"), "{found:?}");
}

#[test]
fn chat_markup_is_reported_unless_the_template_is_off() {
    let mut training = numbered("", 0..40);
    training[3] = "<|im_start|>user\n1<|im_end|>".to_owned();
    let workspace = workspace(&training, &numbered("", 100..104));
    let of_markup = |more: &[&str]| {
        let found = warnings(&workspace, more);
        found.into_iter().filter(|line| line.contains("data.apply_chat_template")).count()
    };
    assert_eq!(of_markup(&[]), 1);
    assert_eq!(of_markup(&["data.apply_chat_template=false"]), 0);
}

#[test]
fn validation_prompts_in_the_training_set_are_counted() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 37..44));
    let found = warnings(&workspace, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("warning: 3 of the first 40 training prompts"), "{found:?}");
}

#[test]
fn a_frequency_of_validations_without_data_is_reported() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 100..104));
    let often = ["trainer.test_freq=5"];
    assert!(warnings(&workspace, &often).is_empty());
    let found = warnings(&workspace, &[&often[..], &["data.val_files=[]"]].concat());
    assert!(found[0].starts_with("warning: `trainer.test_freq = 5` without"), "{found:?}");
}

#[test]
fn groups_of_one_are_reported_for_estimators_that_compare() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 100..104));
    let one = ["rollout.n=1", "schedule.name=sync"];
    assert!(warnings(&workspace, &one)[0].contains("without a baseline"));
    let own = [&one[..], &["algorithm.adv_estimator=reinforce_plus_plus"]].concat();
    assert!(warnings(&workspace, &own).is_empty());
}

#[test]
fn prompts_that_end_with_an_answer_are_reported() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 100..104));
    let message = |role: &str| json!({"role": role, "content": "1"});
    let row = json!({
        "data_source": "math",
        "prompt": [message("user"), message("assistant")],
        "reward_model": {"style": "rule", "ground_truth": "1"},
    });
    workspace.write("train.jsonl", &format!("{row}\n").repeat(8));
    let found = warnings(&workspace, &[]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("warning: 8 of the first 8 prompts end with"), "{found:?}");
}

#[test]
fn quotas_are_for_domains_of_the_prompts() {
    let workspace = workspace(&[], &numbered("", 100..104));
    let row = |domain: &str| {
        let row = json!({
            "data_source": "math",
            "domain": domain,
            "prompt": [{"role": "user", "content": "1"}],
            "reward_model": {"style": "rule", "ground_truth": "1"},
        });
        format!("{row}\n")
    };
    workspace.write("train.jsonl", &(row("a").repeat(30) + &row("b").repeat(10)));
    let all = ["schedule.quotas={a=3,b=1}"];
    assert!(warnings(&workspace, &all).is_empty());
    let found = warnings(&workspace, &["schedule.quotas={a=4}"]);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with("warning: 10 of the 40 training prompts have"), "{found:?}");
    let unknown = ["--dry-run", "data.train_files=train.jsonl", "schedule.quotas={a=3,c=1}"];
    let end = workspace.train_to_end(&unknown);
    assert_eq!(end.code, Some(2));
    assert!(end.err.contains("key `schedule.quotas`: expected a domain"), "{}", end.err);
    assert!(end.err.contains("such as `a`, `b`, found `c`"), "{}", end.err);
}

#[test]
fn group_rewards_are_refused_where_single_rewards_decide() {
    let workspace = workspace(&numbered("", 0..40), &numbered("", 100..104));
    let refused = |settings: &[&str]| {
        let files = ["--dry-run", "data.train_files=train.jsonl", "data.val_files=val.jsonl"];
        let group = ["reward.routes={math={math=1,length=1}}"];
        let end = workspace.train_to_end(&[&files[..], &group, settings].concat());
        assert_eq!(end.code, Some(2), "{}", end.err);
        end.err
    };
    let by_scores = refused(&[
        "schedule.name=dynamic",
        "schedule.max_generated_batches=3",
        "schedule.on_exhausted=smaller_step",
    ]);
    assert!(by_scores.contains("key `schedule.name`: expected a schedule"), "{by_scores}");
    let by_pass_rate = refused(&[
        "data.curriculum={}",
        "trainer.total_epochs=2",
        "trainer.total_training_steps=null",
    ]);
    assert!(by_pass_rate.contains("key `data.curriculum`: expected no"), "{by_pass_rate}");
}
