//! Tests of `rollpacker show` on the folder of a real run.
#![cfg(all(feature = "torch", feature = "cli"))]

#[path = "export/chrome_trace.rs"]
mod chrome_trace;
mod workspace;

use std::fs;

use serde_json::Value;
use workspace::{RECIPE, TestWorkspace, parquet_rows};

fn shown(workspace: &TestWorkspace, args: &[&str]) -> Value {
    let end = workspace.run(&[&["show", "run", "--json"][..], args].concat()).success();
    serde_json::from_str(&end.out).expect("JSON")
}

#[test]
fn a_run_is_shown_while_it_is_written_and_after() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.train_ok(&[]);
    let report = shown(&workspace, &["--responses", "2"]);
    assert_eq!((&report["ended"], &report["steps"]), (&"finished".into(), &4.into()));
    assert_eq!(report["settings"]["schedule.name"], "tail_batching");
    let curves = report["curves"].as_array().expect("curves");
    let score = curves.iter().find(|curve| curve["metric"] == "critic/score/mean");
    assert_eq!(score.expect("a score")["sparkline"].as_str().expect("text").chars().count(), 4);
    // The model is random, so that no response is right and no group has a gradient.
    let findings = report["findings"].as_array().expect("findings");
    let equal = findings.iter().find(|finding| finding["metric"] == "reward/frac_zero_std");
    assert_eq!(equal.expect("found")["severity"], "severe");
    let picks = report["responses"].as_array().expect("responses");
    let picks: Vec<_> = picks.iter().map(|one| one["pick"].as_str().expect("text")).collect();
    assert_eq!(picks, ["best", "best", "worst", "worst", "random", "random"]);
    let text = workspace.ok(&["show", "run"]);
    for part in
        ["run: finished, 4 steps", "critic/score/mean", "responses of step 4", "best: prompt"]
    {
        assert!(text.contains(part), "{part} is expected in: {text}");
    }
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");

    // A killed run has no summary, and its last line may be incomplete.
    fs::remove_file(workspace.path("run/summary.json")).expect("removed");
    let metrics = fs::read_to_string(workspace.path("run/metrics.jsonl")).expect("read");
    workspace.write("run/metrics.jsonl", &metrics[..metrics.len() - 10]);
    let report = shown(&workspace, &[]);
    assert_eq!((&report["ended"], &report["steps"]), (&Value::Null, &3.into()));
}

#[test]
fn a_group_is_shown_side_by_side() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.train_ok(&["trainer.total_training_steps=1"]);
    let prompt = shown(&workspace, &[])["responses"][0]["prompt_id"].clone();
    let report = shown(&workspace, &["--prompt", &prompt.to_string(), "--step", "1"]);
    let group = report["responses"].as_array().expect("responses");
    assert!(group.len() >= 4, "{group:?}");
    assert!(group.iter().all(|one| one["prompt_id"] == prompt));
    assert!(group.iter().is_sorted_by_key(|one| one["sample"].as_u64()));
    assert!(group[0]["prompt"].as_str().expect("text").contains("user: "));
    assert!(workspace.run_refused(&["show", "run", "--prompt", "999999"]).contains("--prompt"));
    assert!(workspace.run_refused(&["show", "run", "--step", "7"]).contains("--step"));
}

#[test]
fn a_folder_that_is_not_a_run_is_refused() {
    let workspace = TestWorkspace::new(RECIPE);
    assert!(workspace.run_refused(&["show", "data"]).contains("metrics.jsonl"));
    assert!(workspace.run_refused(&["show", "absent"]).contains("it is no folder"));
    workspace.write("data/metrics.jsonl", "{\"step\": 1, \"data\": {}}\nbroken\n");
    assert!(workspace.run_refused(&["show", "data"]).contains("line 2"));
}

#[test]
fn a_run_is_exported() {
    let workspace = TestWorkspace::new(RECIPE);
    let logged = ["trainer.save_freq=2", "trainer.logger=tensorboard"];
    workspace.train_ok(&[&logged[..], &["trainer.total_training_steps=2"]].concat());
    workspace.train_ok(&[&logged[..], &["--resume"]].concat());
    workspace.ok(&["export", "run", "--tensorboard", "logs", "--perfetto", "trace.json"]);
    let event_file = |folder: &str| workspace.path(folder).join("events.out.tfevents.0.rollpacker");
    let exported = fs::read(event_file("logs")).expect("exported");
    assert!(exported == fs::read(event_file("run/tensorboard")).expect("written by the run"));
    let live = ["export", "run", "--tensorboard", "run/tensorboard"];
    assert!(workspace.run_refused(&live).contains("run/tensorboard/events"));
    let trace = chrome_trace::Trace::read(&workspace.path("trace.json"));
    let rows = |step| parquet_rows(&workspace.rollouts("run", step)).num_rows();
    trace.assert_every_sample_once((1..=4).map(rows).sum());
    assert_eq!(trace.slices("reward").count(), 4 * 16, "each trained response is scored");
    let steps: Vec<_> = trace.slices("step").collect();
    let names: Vec<_> = steps.iter().map(|step| step.name.split(" (").next()).collect();
    assert_eq!(names, ["step 1", "step 2", "step 3", "step 4"].map(Some));
    // Less than a nanosecond: times in microseconds are rounded.
    let tolerance = 1e-10;
    assert!(steps.is_sorted_by(|one, next| one.to <= next.from + tolerance), "{steps:?}");
    // The times of both processes are on one axis. Within a process, responses of a step may end before the step before is reported.
    for sample in trace.slices("sample") {
        let step = usize::try_from(sample.step()).expect("few") - 1;
        let before = if step < 2 { 0.0 } else { steps[1].to };
        let is_inside = before <= sample.to + tolerance && sample.to <= steps[step].to + tolerance;
        assert!(is_inside, "{sample:?}: {steps:?}");
    }
}

#[test]
fn an_event_file_goes_with_the_run_that_wrote_it() {
    let workspace = TestWorkspace::new(RECIPE);
    let event_file = workspace.path("run/tensorboard/events.out.tfevents.0.rollpacker");
    workspace.train_ok(&["trainer.logger=tensorboard", "trainer.total_training_steps=1"]);
    assert!(event_file.exists());
    workspace.train_ok(&["trainer.total_training_steps=1"]);
    assert!(!event_file.exists());
    let unknown = ["train", "--config", "recipe.toml", "trainer.logger=[console,wandb]"];
    assert!(workspace.run_refused(&unknown).contains("console, file, tensorboard"));
}
