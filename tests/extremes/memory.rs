//! Tests that runs that do not fit into memory are rejected before they allocate.

use crate::program::{owned, run_within};
use crate::workspace::{RECIPE, Sft, TestWorkspace};

/// A limit on the address space in KiB that is too small for these settings on any machine.
const ADDRESS_SPACE: u64 = 16 << 20;

fn check_refused(workspace: &TestWorkspace, args: &[&str], parts: &[&str]) {
    let end = run_within(workspace, ADDRESS_SPACE, &owned(args));
    assert_eq!(end.code, Some(2), "{args:?}: {end:?}");
    for part in
        ["error: not enough memory: the run needs at least", "are available"].iter().chain(parts)
    {
        assert!(end.err.contains(part), "{args:?}: `{part}` is expected in: {}", end.err);
    }
}

#[test]
fn settings_that_cannot_fit_are_refused_by_key_and_figures() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let train = |settings: &[&str], parts: &[&str]| {
        let line = ["train", "--config", "recipe.toml", "schedule.name=fused"];
        check_refused(&workspace, &[&line, settings].concat(), parts);
    };
    let part =
        "192.0 GiB for the responses of a step (rollout.n = 1048576, data.train_batch_size = 96)";
    train(&["rollout.n=1048576", "data.train_batch_size=96"], &[part, "ulimit -v"]);
    let sft = |setting: &str, part: &str| {
        check_refused(
            &workspace,
            &["sft", "--config", "recipe.toml", "--out", "out", setting],
            &[part],
        );
    };
    let part = "104.3 GiB for the examples of an update (sft.batch_size = 2000000000)";
    sft("sft.batch_size=2000000000", part);
    sft("sft.intermediate_size=16777216", "sft.intermediate_size = 16777216");
}

#[test]
fn a_prompt_of_64_mb_is_left_out_without_being_tokenised() {
    let workspace = TestWorkspace::new(RECIPE);
    let row = |prompt: &str| {
        format!("{{\"prompt\": \"{prompt}\", \"data_source\": \"x\", \"ground_truth\": \"1\"}}\n")
    };
    let usual: String = (0..9).map(|digit| row(&format!("{digit}+4"))).collect();
    workspace.write("rows.jsonl", &(usual + &row(&"1+".repeat(32 << 20))));
    let line =
        ["train", "--config", "recipe.toml", "data.train_files=rows.jsonl", "schedule.name=fused"];
    // Tokenizing this prompt took 23.8 GB.
    run_within(&workspace, 6 << 20, &owned(&line)).success();
    assert_eq!(workspace.summary("run")["overlong_prompts"], 1);
}

#[test]
fn a_demonstration_that_does_not_fit_into_memory_is_named_by_its_row() {
    let workspace = TestWorkspace::new(&format!("{RECIPE}{}", Sft::TINY));
    let row = |demonstration: &str| {
        let extra = format!("{{\"demonstration\": \"{demonstration}\"}}");
        format!("{{\"prompt\": \"1+4\", \"data_source\": \"x\", \"extra_info\": {extra}}}\n")
    };
    workspace.write("rows.jsonl", &(row("A:5") + &row(&"1+".repeat(32 << 20))));
    let line = ["sft", "--config", "recipe.toml", "--out", "out", "sft.train_files=rows.jsonl"];
    let end = run_within(&workspace, 6 << 20, &owned(&line)).refusal();
    assert!(end.err.contains("rows.jsonl row 1: a text of 67108864 bytes"), "{}", end.err);
}
