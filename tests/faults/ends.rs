//! Tests of runs that are asked to stop, or whose time is over.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command};

use serde_json::json;

use super::workspace::{ProcessEnd, RECIPE, TestWorkspace, wait_until};

/// Settings with more steps than any test waits for.
pub(super) const ENDLESS: [&str; 2] =
    ["trainer.total_training_steps=100000", "trainer.total_epochs=10000"];

/// Reads the output of the run until a line starts with `start`, and returns the lines read.
pub(super) fn read_until(child: &mut Child, start: &str) -> String {
    let mut read = String::new();
    let mut lines = BufReader::with_capacity(1, child.stdout.take().expect("kept"));
    while !read.lines().any(|line| line.starts_with(start)) {
        let count = lines.read_line(&mut read).expect("readable");
        if count == 0 {
            let mut err = String::new();
            child.stderr.take().map(|mut pipe| pipe.read_to_string(&mut err));
            panic!("no line starts with {start}: {read}{err}");
        }
    }
    child.stdout = Some(lines.into_inner());
    read
}

pub(super) fn signal(child: &Child, name: &str) {
    let status = Command::new("kill").args(["-s", name, &child.id().to_string()]).status();
    assert!(status.expect("kill starts").success());
}

#[test]
fn a_signalled_run_ends_after_its_step_and_reports_remaining_steps() {
    let workspace = TestWorkspace::new(RECIPE);
    for name in ["TERM", "INT"] {
        let mut child = workspace.train_command(&ENDLESS).spawn().expect("the program starts");
        read_until(&mut child, "step:2 ");
        signal(&child, name);
        let end = ProcessEnd::of(child);
        assert_eq!(end.code, Some(75), "{name}: {end:?}");
        assert!(end.out.contains("a stop was requested"), "{name}: {end:?}");
        assert_eq!(end.errors(), [] as [&str; 0]);
        let summary = workspace.summary("run");
        assert_eq!(summary["ended"], json!("stopped"));
        assert!(summary["steps"].as_u64().is_some_and(|steps| (2..100).contains(&steps)));
        assert!(workspace.path("run/model/model.safetensors").exists());
    }
}

#[test]
fn a_second_signal_ends_a_run_at_once() {
    let workspace = TestWorkspace::new(RECIPE);
    // The step never ends by itself, because no reward ever returns.
    let stuck = "reward.options.process={command=[\"sleep\",\"600\"]}";
    let args = [stuck, "reward.routes={\"*\"=\"process\"}"];
    let mut child = workspace.train_command(&args).spawn().expect("the program starts");
    // The signal handler is installed before the run folder is created.
    let mut err = BufReader::with_capacity(1, child.stderr.take().expect("kept"));
    wait_until("the run has a folder", || workspace.path("run/metrics.jsonl").exists());
    signal(&child, "TERM");
    let mut output = String::new();
    err.read_line(&mut output).expect("readable");
    assert!(output.contains("a second signal ends it now"), "{output}");
    signal(&child, "TERM");
    err.read_to_string(&mut output).expect("readable");
    assert_eq!(ProcessEnd::of(child).code, Some(130), "{output}");
}

#[test]
fn a_run_ends_before_its_time_limit() {
    let workspace = TestWorkspace::new(RECIPE);
    let end = workspace.train_to_end(&[&ENDLESS[..], &["trainer.max_wall_time=6s"]].concat());
    assert_eq!(end.code, Some(75), "{end:?}");
    assert!(end.out.contains("another step may not fit into trainer.max_wall_time"), "{end:?}");
    let summary = workspace.summary("run");
    assert_eq!(summary["ended"], json!("out_of_time"));
    assert!(summary["steps"].as_u64() >= Some(1), "{summary}");
}

#[test]
fn a_completed_run_is_finished_regardless_of_the_time_left() {
    let workspace = TestWorkspace::new(RECIPE);
    let end =
        workspace.train_ok(&["trainer.total_training_steps=1", "trainer.max_wall_time=0.001"]);
    assert!(!end.out.contains("ended after"), "{end:?}");
    assert_eq!(workspace.summary("run")["ended"], json!("finished"));
}
