//! Tests of `rollpacker export` on run folders that the tests write, without libtorch.
#![cfg(feature = "cli")]

#[path = "export/chrome_trace.rs"]
mod chrome_trace;
#[path = "export/event_file.rs"]
mod event_file;

use std::fs;
use std::path::Path;
use std::process::{Command, Output};
use std::sync::Arc;

use arrow_array::{
    ArrayRef, BooleanArray, Float64Array, RecordBatch, StringArray, UInt32Array, UInt64Array,
};
use parquet::arrow::ArrowWriter;
use rollpacker::stages::metrics::Metric;
use serde_json::json;

/// Runs the program in a folder.
fn run(folder: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_rollpacker"));
    command.args(args).current_dir(folder).output().expect("the program runs")
}

/// Writes `metrics.jsonl` of a run: a validation, two steps, and the beginning of a third.
fn write_metrics(folder: &Path) {
    let lines = [
        json!({"step": 0, "round": "validation", "unix_s": 1000.5, "data": {"val/score": 0.0}}),
        json!({"step": 1, "round": "short", "unix_s": 1010.0, "clock_s": 9.5, "data": {
            "critic/score/mean": 0.1, "actor/grad_norm": null, "timing_s/step": 9.0}}),
        json!({"step": 2, "round": "long", "unix_s": 1020.0, "clock_s": 19.5, "data": {
            "critic/score/mean": 0.5, "own": -2.5}}),
    ];
    let lines: String = lines.iter().map(|line| format!("{line}\n")).collect();
    fs::create_dir(folder.join("run")).expect("created");
    fs::write(folder.join("run/metrics.jsonl"), format!("{lines}{{\"step\":3,\"rou"))
        .expect("written");
}

#[test]
fn an_event_file_has_each_value_with_its_step_and_time() {
    let workspace = tempfile::tempdir().expect("a folder");
    write_metrics(workspace.path());
    for _ in 0..2 {
        let end = run(workspace.path(), &["export", "run", "--tensorboard", "logs/run"]);
        assert!(end.status.success(), "{end:?}");
        let out = String::from_utf8_lossy(&end.stdout).into_owned();
        assert!(out.contains("5 values of 4 metrics"), "{out}");
    }
    let files: Vec<_> =
        fs::read_dir(workspace.path().join("logs/run")).expect("a folder").collect();
    let [Ok(file)] = &files[..] else { panic!("expected one file, found {files:?}") };
    assert!(file.file_name().to_string_lossy().contains("tfevents"));
    let events = event_file::read(&fs::read(file.path()).expect("read"));
    assert_eq!(events.version, "brain.Event:2");
    let value = |tag: &str, step, time, value| (tag.to_owned(), step, time, value);
    let expected = [
        value("val/score", 0, 1000.5, 0.0),
        value("critic/score/mean", 1, 1010.0, 0.1),
        value("timing_s/step", 1, 1010.0, 9.0),
        value("critic/score/mean", 2, 1020.0, 0.5),
        value("own", 2, 1020.0, -2.5),
    ];
    assert_eq!(events.scalars, expected);
    let described: Vec<_> = events.descriptions.iter().map(|(tag, _)| tag.as_str()).collect();
    assert_eq!(described, ["val/score", "critic/score/mean", "timing_s/step"]);
    let meaning = Metric::find("timing_s/step").expect("a row").description;
    assert_eq!(events.descriptions[2].1, format!("{meaning} Unit: s."));
}

#[test]
fn steps_without_times_are_spaced_by_their_durations() {
    let workspace = tempfile::tempdir().expect("a folder");
    let line = |step: u64| json!({"step": step, "data": {"perf/time_per_step": 2.5}}).to_string();
    fs::create_dir(workspace.path().join("run")).expect("created");
    let lines = format!("{}\n{}\n", line(1), line(2));
    fs::write(workspace.path().join("run/metrics.jsonl"), lines).expect("written");
    assert!(run(workspace.path(), &["export", "run", "--tensorboard", "logs"]).status.success());
    let file =
        fs::read(workspace.path().join("logs/events.out.tfevents.0.rollpacker")).expect("read");
    let times: Vec<_> = event_file::read(&file).scalars.into_iter().map(|one| one.2).collect();
    assert_eq!(times, [2.5, 5.0]);
}

#[test]
fn invalid_exports_are_refused() {
    let workspace = tempfile::tempdir().expect("a folder");
    write_metrics(workspace.path());
    let refused = |args: &[&str], part: &str| {
        let end = run(workspace.path(), args);
        let stderr = String::from_utf8_lossy(&end.stderr).into_owned();
        assert_eq!(end.status.code(), Some(2), "{args:?}: {stderr}");
        assert!(stderr.contains(part), "{args:?}: {stderr}");
    };
    refused(&["export", "run"], "--tensorboard");
    refused(&["export", "absent", "--tensorboard", "logs"], "it is no folder");
    let event_file = "logs/events.out.tfevents.0.rollpacker";
    fs::create_dir_all(workspace.path().join(event_file)).expect("created");
    refused(&["export", "run", "--tensorboard", "logs"], event_file);
    refused(
        &["export", "run", "--tensorboard", "run/metrics.jsonl"],
        "cannot create run/metrics.jsonl",
    );
}

/// Writes the rollouts of a step: a response that is trained on and one that is aborted, of instances 0 and 1. Both start at `first_ns`.
fn write_rollouts(folder: &Path, step: u64, prompt: u64, first_ns: u64) {
    let rows = [(20, 0, "stop", Some(1.0)), (30, 0, "abort", None)];
    write_responses(folder, step, prompt, first_ns, rows);
}

/// Writes the two responses to a prompt in a step, each as its length, the tokens of earlier steps in it, the reason of its end, and its
/// score if it is trained on. They start at `first_ns`, and end 4 s and 5 s later.
fn write_responses(
    folder: &Path,
    step: u64,
    prompt: u64,
    first_ns: u64,
    rows: [(u32, u32, &str, Option<f64>); 2],
) {
    let scored = |time: u64| rows.map(|(.., score)| score.map(|_| time));
    let (started, ended) = (first_ns, first_ns + 4_000_000_000);
    let wide = |values: [Option<u64>; 2]| Arc::new(UInt64Array::from(values.to_vec())) as ArrayRef;
    let narrow = |values: [u32; 2]| Arc::new(UInt32Array::from(values.to_vec())) as ArrayRef;
    let columns: [(&str, ArrayRef); 12] = [
        (
            "admitted",
            Arc::new(BooleanArray::from(rows.map(|(.., score)| score.is_some()).to_vec())),
        ),
        ("prompt_id", wide([Some(prompt), Some(prompt)])),
        ("sample", narrow([0, 1])),
        ("instance", narrow([0, 1])),
        ("started_ns", wide([Some(started), Some(started)])),
        ("finished_ns", wide([Some(ended), Some(ended + 1_000_000_000)])),
        ("response_length", narrow(rows.map(|row| row.0))),
        ("resumed_length", narrow(rows.map(|row| row.1))),
        ("finish_reason", Arc::new(StringArray::from(rows.map(|row| row.2).to_vec()))),
        ("score", Arc::new(Float64Array::from(rows.map(|row| row.3).to_vec()))),
        ("scored_ns", wide(scored(ended + 500_000_000))),
        ("reward_time_ns", wide(scored(250_000_000))),
    ];
    let rows = RecordBatch::try_from_iter_with_nullable(
        columns.into_iter().map(|(name, values)| (name, values, true)),
    );
    let rows = rows.expect("columns");
    fs::create_dir_all(folder.join("run/rollouts")).expect("created");
    let path = folder.join(format!("run/rollouts/step_{step:05}.parquet"));
    let file = fs::File::create(path).expect("created");
    let mut writer = ArrowWriter::try_new(file, rows.schema(), None).expect("a schema");
    writer.write(&rows).expect("written");
    writer.close().expect("written");
}

// Step 1 ends at 9.5 s of a clock that begins at 1000.5 s. The run is resumed, and step 2 ends at 6 s of a clock that begins at 1014 s.
#[test]
fn a_trace_has_the_responses_of_all_processes_of_a_run_on_one_time_axis() {
    let workspace = tempfile::tempdir().expect("a folder");
    write_metrics(workspace.path());
    let metrics = fs::read_to_string(workspace.path().join("run/metrics.jsonl")).expect("read");
    let metrics = metrics.replace("\"clock_s\":19.5", "\"clock_s\":6.0");
    fs::write(workspace.path().join("run/metrics.jsonl"), metrics).expect("written");
    write_rollouts(workspace.path(), 1, 7, 1_000_000_000);
    write_rollouts(workspace.path(), 2, 8, 500_000_000);
    let end = run(workspace.path(), &["export", "run", "--perfetto", "trace.json"]);
    assert!(end.status.success(), "{end:?}");
    let out = String::from_utf8_lossy(&end.stdout).into_owned();
    assert_eq!(out, "trace.json: 4 responses of 2 steps\n");
    let trace = chrome_trace::Trace::read(&workspace.path().join("trace.json"));
    assert_eq!(trace.facts["start_unix_s"], 1000.5);
    let times: Vec<_> = trace.slices("rollout").map(|one| (one.track.as_str(), one.from)).collect();
    let expected = [
        ("prompt 7 sample 0", 1.0),
        ("prompt 7 sample 1", 1.0),
        ("prompt 8 sample 0", 14.0),
        ("prompt 8 sample 1", 14.0),
    ];
    assert_eq!(times, expected);
    let [reward, _] = &trace.slices("reward").collect::<Vec<_>>()[..] else { panic!("two") };
    assert_eq!((reward.from, reward.to), (5.25, 5.5));
    let step: Vec<_> = trace.slices("step").map(|one| one.name.as_str()).collect();
    assert!(step.is_empty(), "the steps of these metrics have no times of stages: {step:?}");
    trace.assert_every_sample_once(4);

    let args = ["export", "run", "--perfetto", "one.json", "--steps", "2-"];
    assert!(run(workspace.path(), &args).status.success());
    chrome_trace::Trace::read(&workspace.path().join("one.json")).assert_every_sample_once(2);
    for (steps, part) in [("5", "which has 2, found 5"), ("0", "expected a step from 1")] {
        let args = ["export", "run", "--perfetto", "one.json", "--steps", steps];
        let end = run(workspace.path(), &args);
        let stderr = String::from_utf8_lossy(&end.stderr).into_owned();
        assert!(end.status.code() == Some(2) && stderr.contains(part), "{stderr}");
    }
}

#[test]
fn a_trace_marks_a_response_that_a_later_step_trains_on() {
    let workspace = tempfile::tempdir().expect("a folder");
    write_metrics(workspace.path());
    let paused = [(20, 0, "stop", Some(1.0)), (30, 0, "pause", None)];
    write_responses(workspace.path(), 1, 7, 1_000_000_000, paused);
    let continued = [(20, 0, "abort", None), (45, 30, "stop", Some(0.5))];
    write_responses(workspace.path(), 2, 7, 9_000_000_000, continued);
    for (steps, expected) in
        [("1-", vec![Some(1.0), Some(0.5), None, Some(0.5)]), ("1", vec![Some(1.0), Some(0.5)])]
    {
        let args = ["export", "run", "--perfetto", "trace.json", "--steps", steps];
        assert!(run(workspace.path(), &args).status.success());
        let trace = chrome_trace::Trace::read(&workspace.path().join("trace.json"));
        let scores: Vec<_> = trace.slices("sample").map(|one| one.score()).collect();
        assert_eq!(scores, expected, "steps {steps}");
    }
}

const JOB: &str = r#"
[cluster]
gpus = 8
[model]
name = "Qwen2.5-7B"
[data]
train_batch_size = 8
max_response_length = 512
[rollout]
n = 4
[schedule]
name = "sync"
[sim]
steps = 4
"#;

#[test]
fn a_simulation_has_a_trace_with_every_sample() {
    let workspace = tempfile::tempdir().expect("a folder");
    fs::write(workspace.path().join("job.toml"), JOB).expect("written");
    let simulate = ["simulate", "--config", "job.toml", "--perfetto", "t.json"];
    let end = run(workspace.path(), &[&simulate[..], &["--perfetto-steps", "2"]].concat());
    assert!(end.status.success(), "{end:?}");
    let trace = chrome_trace::Trace::read(&workspace.path().join("t.json"));
    trace.assert_every_sample_once(2 * 8 * 4);
    assert_eq!(trace.slices("step").count(), 2);
    assert!(trace.slices("trainer").count() >= 2);
    assert!(trace.slices("slot").all(|one| one.group.starts_with("instance ")));

    let sweep = ["--sweep", "schedule.name=sync,tail_batching"];
    let end = run(workspace.path(), &[&simulate[..], &sweep].concat());
    assert!(end.status.success(), "{end:?}");
    let trace = chrome_trace::Trace::read(&workspace.path().join("t.json"));
    for label in ["sync: steps", "tail_batching: steps"] {
        assert!(trace.slices("step").any(|one| one.group.ends_with(label)), "{label}");
    }
    trace.assert_is_nested();
}
