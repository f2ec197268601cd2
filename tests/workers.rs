//! Tests of `rollpacker train` with several workers: threads, and processes on this machine.
#![cfg(feature = "torch")]

#[path = "../dataflow/tests/ports/mod.rs"]
mod ports;
mod workspace;

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Child;

use rollpacker_operators::report::depends_on_time;
use serde_json::Value;
use workspace::{ProcessEnd, Sft, TestWorkspace, json};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
val_files = "data/validation.parquet"
train_batch_size = 4
max_response_length = 32

[model]
path = "warm"

[rollout]
n = 4

[schedule]
name = "fused"

[actor]
lr = 1e-3

[trainer]
total_training_steps = 3
test_freq = 2
device = "cpu"
default_local_dir = "run"
"#;

const SFT: Sft = Sft { steps: 4, ..Sft::SMALL };

impl TestWorkspace {
    /// Writes a hostfile of this many processes on this machine, and returns their addresses.
    fn hosts(&self, processes: usize) -> Vec<String> {
        let host = |_| format!("127.0.0.1:{}", ports::reserved());
        let hosts: Vec<String> = (0..processes).map(host).collect();
        fs::write(self.path("hosts"), hosts.join("\n")).expect("written");
        hosts
    }

    /// Starts one of several processes.
    fn start(&self, process: usize, args: &[&str]) -> Child {
        let process = process.to_string();
        let options = ["--hostfile", "hosts", "--process", &process];
        self.train_command(&[&options[..], args].concat()).spawn().expect("the program starts")
    }

    /// Runs the program with this many processes.
    fn train_on(&self, processes: usize, args: &[&str]) {
        if processes == 1 {
            self.train_ok(args);
            return;
        }
        self.hosts(processes);
        let others: Vec<Child> = (1..processes).map(|process| self.start(process, args)).collect();
        let all = std::iter::once(self.start(0, args)).chain(others);
        for end in all.map(ProcessEnd::of) {
            assert_eq!(end.code, Some(0), "{args:?}: {end:?}");
        }
    }

    fn weights(&self, run: &str) -> Vec<u8> {
        fs::read(self.path(run).join("model/model.safetensors")).expect("a model")
    }

    /// Returns the metrics of each step.
    fn metrics(&self, run: &str) -> Vec<Value> {
        let lines = self.metrics_lines(run).into_iter();
        let lines = lines.filter(|line| line["round"] != "validation");
        lines.map(|mut line| line["data"].take()).collect()
    }
}

#[test]
fn two_workers_and_two_processes_train_on_what_one_worker_trains_on() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 8);
    workspace.ok(&["train", "--config", "recipe.toml", "--out", "one"]);
    workspace.ok(&["train", "--config", "recipe.toml", "--out", "two", "--workers", "2"]);
    workspace.hosts(2);
    let second = workspace.start(1, &["--out", "nowhere"]);
    let first = workspace.start(0, &["--out", "both"]);
    for child in [first, second] {
        ProcessEnd::of(child).success();
    }
    assert!(!workspace.path("nowhere").exists(), "the first process writes");
    let one = workspace.metrics("one");
    for run in ["two", "both"] {
        let summary = json(&workspace.path(run).join("summary.json"));
        assert_eq!((&summary["steps"], &summary["trained_prompts"]), (&3.into(), &12.into()));
        assert_eq!(summary["validation"]["prompts"], 8);
        let metrics = workspace.metrics(run);
        assert_eq!(metrics.len(), 3);
        for (step, (several, one)) in metrics.iter().zip(&one).enumerate() {
            for name in
                ["rollout/launched_responses", "schedule/admitted_prompts", "prompt_length/mean"]
            {
                assert_eq!(several[name], one[name], "{run}, step {step}: {name}");
            }
            assert!(several["reduce/bytes"].as_f64().expect("a number") > 0.0);
            assert!(one.get("reduce/bytes").is_none());
            let rollouts = format!("rollouts/step_{:05}.parquet", step + 1);
            assert!(workspace.path(run).join(rollouts).exists());
        }
        // The first step is identical whichever worker computes it, because the weights are identical.
        for name in ["critic/score/mean", "response_length/mean", "actor/pg_loss"] {
            let [several, one] =
                [&metrics[0], &one[0]].map(|step| step[name].as_f64().expect(name));
            assert!((several - one).abs() <= 1e-5 * one.abs().max(1.0), "{run}: {name}");
        }
        let warm = fs::read(workspace.path("warm/model.safetensors")).expect("a model");
        assert_ne!(workspace.weights(run), warm, "something was learned");
    }
}

/// Settings of tail batching with races between responses and deferred prompts.
const DETERMINISTIC: [&str; 4] = [
    "trainer.deterministic=true",
    "schedule.name=tail_batching",
    "schedule.eta_prompts=1.5",
    "schedule.eta_responses=1.5",
];

#[test]
fn in_deterministic_mode_any_workers_end_with_the_same_weights() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 8);
    for (processes, workers) in [(1, "1"), (1, "2"), (2, "1"), (2, "2")] {
        let run = format!("{processes}x{workers}");
        workspace.train_on(
            processes,
            &[&["--out", &run, "--workers", workers], &DETERMINISTIC[..]].concat(),
        );
    }
    let one = workspace.metrics("1x1");
    let deferred = one.iter().map(|step| step["schedule/deferred_prompts"].as_f64());
    assert!(deferred.flatten().sum::<f64>() > 0.0, "something was deferred");
    for run in ["1x2", "2x1", "2x2"] {
        assert!(workspace.weights(run) == workspace.weights("1x1"), "{run}");
        assert_same_metrics(&workspace.metrics(run), &one, run);
    }
}

/// Asserts that a run with several workers reports the same metrics as a run with one worker, except times and the metrics of the
/// reduction, which a single worker does not need.
fn assert_same_metrics(several: &[Value], one: &[Value], run: &str) {
    let comparable = |step: &Value| -> BTreeMap<String, Value> {
        let all = step.as_object().expect("an object").clone().into_iter();
        all.filter(|(name, _)| !depends_on_time(name) && !name.starts_with("reduce/")).collect()
    };
    assert_eq!(several.len(), one.len(), "{run}");
    for (step, (several, one)) in several.iter().zip(one).enumerate() {
        let (several, one) = (comparable(several), comparable(one));
        for name in several.keys().chain(one.keys()) {
            assert_eq!(several.get(name), one.get(name), "{run}, step {step}: {name}");
        }
    }
}

#[test]
fn a_run_is_resumed_with_another_number_of_workers_and_processes() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 8);
    // This schedule does not plan for the last step, so a shortened run makes the same decisions as the full one.
    let exact = ["trainer.deterministic=true"];
    workspace.train_on(1, &[&["--out", "whole"][..], &exact].concat());
    let shapes = [((1, "1"), (1, "2")), ((1, "2"), (1, "1")), ((2, "1"), (2, "1"))];
    let between_processes = [((1, "2"), (2, "2")), ((2, "2"), (1, "1"))];
    for (before, after) in shapes.into_iter().chain(between_processes) {
        let run = format!("{}x{}-{}x{}", before.0, before.1, after.0, after.1);
        let on = |(processes, workers), more: &[&str]| {
            let own = ["--out", &run, "--workers", workers, "trainer.save_freq=1"];
            workspace.train_on(processes, &[&own[..], &exact, more].concat());
        };
        on(before, &["trainer.total_training_steps=2"]);
        on(after, &["--resume"]);
        assert_same_metrics(&workspace.metrics(&run), &workspace.metrics("whole"), &run);
        assert!(workspace.weights(&run) == workspace.weights("whole"), "{run}");
    }
}

#[test]
fn a_killed_process_ends_the_other_with_a_message() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 8);
    let hosts = workspace.hosts(2);
    let args =
        ["--out", "run", "trainer.total_training_steps=100000", "trainer.total_epochs=100000"];
    let mut second = workspace.start(1, &args);
    let mut first = workspace.start(0, &args);
    let mut lines = BufReader::new(first.stdout.take().expect("piped")).lines();
    let step = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("step:1 ")));
    assert!(step.is_some(), "it trains");
    second.kill().expect("killed");
    second.wait().expect("gone");
    let read = std::thread::spawn(move || lines.for_each(drop));
    let ProcessEnd { code, err: stderr, .. } = ProcessEnd::of(first);
    read.join().expect("read");
    assert_eq!(code, Some(1), "{stderr}");
    assert!(
        stderr.contains(&format!("error: process 1 ({}) was lost at step ", hosts[1])),
        "{stderr}"
    );
    assert!(stderr.contains("resume with --resume"), "{stderr}");
    assert_eq!(stderr.lines().count(), 1, "one message: {stderr}");
}

#[test]
fn processes_that_cannot_run_together_are_refused() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 8);
    let hosts = workspace.hosts(2);
    let second = workspace.start(1, &["actor.lr=1e-4"]);
    let first = workspace.start(0, &[]);
    let [first, second] = [first, second].map(ProcessEnd::of);
    assert_eq!([first.code, second.code], [Some(2); 2]);
    let expected = format!(
        "error: process 1 ({}) has a different value of actor.lr: `0.0001`; this process has `0.001`\n",
        hosts[1]
    );
    assert_eq!(first.err, expected);
    assert!(!workspace.path("run").exists(), "no run folder is created");

    workspace.hosts(2);
    let ends = [(1, "elsewhere"), (0, "here")]
        .map(|(process, out)| workspace.start(process, &["--out", out, "trainer.save_freq=1"]))
        .map(ProcessEnd::of);
    for end in ends {
        assert_eq!(end.code, Some(2), "{end:?}");
        assert!(end.err.contains("all processes need one run folder"), "{end:?}");
    }

    let refused = |args: &[&str]| workspace.run_refused(args);
    let train = ["train", "--config", "recipe.toml", "--hostfile", "hosts", "--process", "2"];
    assert_eq!(
        refused(&train),
        "error: process 2 does not exist: the hostfile lists 2, counted from 0\n"
    );
    assert!(refused(&train[..5]).contains("--process"), "--hostfile and --process need each other");
    assert!(refused(&["train", "--config", "recipe.toml", "--workers", "0"]).contains("--workers"));
}
