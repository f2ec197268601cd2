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
