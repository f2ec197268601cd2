//! Tests of runs that make no progress.

use super::ends::{read_until, signal};
use super::workspace::{ProcessEnd, RECIPE, TestWorkspace};

/// Settings of a run whose reward never returns.
const STUCK: [&str; 3] = [
    "reward.routes={\"*\"=\"slow\"}",
    "reward.options.slow={kind=\"process\",command=[\"sleep\",\"600\"]}",
    "trainer.stall_timeout=2",
];

#[test]
fn a_reward_that_is_stuck_is_named_and_ends_the_run() {
    let workspace = TestWorkspace::new(RECIPE);
    let end = workspace.train_to_end(&[&STUCK[..], &["trainer.on_stall=fail"]].concat());
    end.assert_failed(&[
        "watchdog, step 1: no progress for 2.",
        "reward, step 1, has waited ",
        " for a score by `slow`: p",
        " more",
    ]);
    // The engine has finished all its requests.
    assert!(!end.errors()[0].contains("rollout, step 1"), "{end:?}");
}

#[test]
fn a_signal_ends_a_run_whose_step_is_stuck() {
    let workspace = TestWorkspace::new(RECIPE);
    let mut child = workspace.train_command(&STUCK).spawn().expect("the program starts");
    read_until(&mut child, "warning: watchdog, step 1: no progress");
    signal(&child, "TERM");
    ProcessEnd::of(child).assert_failed(&[
        "watchdog, step 1: the run was asked to end, and its step is stuck: no progress for ",
        "for a score by `slow`: p",
    ]);
}

#[test]
fn a_stall_is_reported_and_the_run_continues_afterwards() {
    let workspace = TestWorkspace::new(RECIPE);
    // This reward always returns 0, but only starts after the stall timeout.
    let script = r#"sleep 5; sed -u 's/.*"id":\([0-9]*\).*/{"id":\1,"score":0}/' "#;
    let slow =
        format!("reward.options.slow={{kind=\"process\",command=[\"sh\",\"-c\",'''{script}''']}}");
    let end = workspace.train_ok(&[STUCK[0], &slow, STUCK[2], "trainer.total_training_steps=2"]);
    let warnings =
        end.out.lines().filter(|line| line.starts_with("warning: watchdog, step 1: no progress"));
    assert_eq!(warnings.count(), 1, "{end:?}");
}

#[test]
fn a_long_rollout_is_not_a_stall() {
    let workspace = TestWorkspace::new(RECIPE);
    // All responses end in the same iteration. No data flows before, for longer than the stall timeout.
    let end = workspace.train_ok(&[
        "rollout.instances=1",
        "rollout.n=32",
        "schedule.name=sync",
        "data.train_batch_size=1",
        "data.max_response_length=900",
        "rollout.min_response_length=900",
        "trainer.total_training_steps=1",
        "trainer.stall_timeout=1",
    ]);
    assert!(!end.out.contains("the engine's response"), "{end:?}");
}
