//! Kills runs at random instants, resumes them, and compares them with an uninterrupted run: weights, metrics and rollouts must be
//! identical bit for bit.
#![cfg(feature = "torch")]

mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use arrow_array::{ArrayRef, RecordBatch};
use rollpacker::operators::report::depends_on_time;
use serde_json::Value;

use workspace::{ProcessEnd, RECIPE, TestWorkspace};

const SEED: u64 = 1;
const RUNS: usize = 20;
const STEPS: u64 = 10;

const OPTIONS: [&str; 5] = [
    "trainer.deterministic=true",
    "trainer.save_freq=1",
    "trainer.max_ckpt_to_keep=2",
    "trainer.total_training_steps=10",
    "reward.routes={\"*\"=\"repetition\"}",
];

/// The SplitMix64 random number generator.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut bits = self.0;
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (bits ^ (bits >> 31)) % bound
    }
}

/// The instant at which a run is killed.
#[derive(Clone, Copy, Debug)]
enum Instant {
    /// The given time after the output line of a step. Step 0 means the start of the process.
    After(u64, Duration),
    /// During the writing of a step's snapshot: its folder exists, its manifest does not.
    Within(u64),
}

impl Instant {
    fn draw(random: &mut Random, snapshot: bool) -> Self {
        let step = random.below(STEPS - 1);
        if snapshot {
            return Self::Within(step);
        }
        Self::After(step, Duration::from_micros(random.below(150_000)))
    }
}

#[test]
fn a_killed_and_resumed_run_ends_like_an_uninterrupted_one() {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.train_ok(&run("whole", &[]));
    let whole = Outcome::read(&workspace.path("whole"));
    let mut random = Random(SEED);
    let (mut kills, mut with_queue, mut within) = (0, 0, 0);
    // A run that ended before its instant was not killed and is replaced by another run.
    for at in 0..4 * RUNS {
        if kills >= RUNS {
            break;
        }
        let name = format!("run-{at}");
        let times = if at % 4 == 3 { 2 } else { 1 };
        let instants: Vec<_> =
            (0..times).map(|_| Instant::draw(&mut random, at % 3 == 0)).collect();
        for instant in &instants {
            let killed = kill(&workspace, &name, *instant);
            let queue = queue_at(&whole, newest_snapshot(&workspace.path(&name)));
            with_queue += usize::from(killed && queue > 0.0);
            within +=
                usize::from(killed && is_written(&workspace.path(&name).join("snapshots"), 0));
            kills += usize::from(killed);
        }
        let rollouts = workspace.path(&name).join("rollouts");
        if rollouts.exists() {
            // A kill during the writing of rollouts leaves such a file.
            fs::write(rollouts.join(".rollpacker-killed.partial"), "").expect("written");
        }
        workspace.train_ok(&run(&name, &resumed(&workspace, &name)));
        let found = Outcome::read(&workspace.path(&name));
        whole.assert_same(&found, &format!("{name} of seed {SEED}, killed {instants:?}"));
        fs::remove_dir_all(workspace.path(&name)).expect("removed");
    }
    assert!(kills >= RUNS, "{kills} runs were there to be killed");
    assert!(within >= 3, "of {kills} kills, {within} were within a snapshot");
    assert!(with_queue * 5 >= kills, "of {kills} kills, {with_queue} left a queue of long prompts");
}

fn run<'a>(name: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["--out", name], &OPTIONS[..], more].concat()
}

/// Returns `--resume` if there is a snapshot to resume from.
fn resumed(workspace: &TestWorkspace, name: &str) -> Vec<&'static str> {
    if newest_snapshot(&workspace.path(name)).is_some() {
        vec!["--resume", "latest"]
    } else {
        Vec::new()
    }
}

/// Runs the program and kills it at the instant. Returns `true` if the process was still running.
fn kill(workspace: &TestWorkspace, name: &str, instant: Instant) -> bool {
    let args = run(name, &resumed(workspace, name));
    let mut child = workspace.train_command(&args).spawn().expect("the program starts");
    let steps = steps(child.stdout.take().expect("kept"));
    match instant {
        Instant::After(step, time) => {
            wait_for(&steps, step);
            wait(&steps, time);
        }
        Instant::Within(step) => {
            let folder = workspace.path(name).join("snapshots");
            while is_running(&mut child) && !is_written(&folder, step) {
                std::thread::yield_now();
            }
        }
    }
    drop(child.kill());
    let end = ProcessEnd::of(child);
    assert!(end.code.is_none() || end.code == Some(0), "{name}, {instant:?}: {end:?}");
    end.code.is_none()
}

/// Returns a channel of the steps that a process prints. The channel closes with the process.
fn steps(out: ChildStdout) -> Receiver<u64> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        let lines = BufReader::new(out).lines().map_while(Result::ok);
        let step = |line: String| line.strip_prefix("step:")?.split(' ').next()?.parse().ok();
        lines.filter_map(step).try_for_each(|step| sender.send(step))
    });
    receiver
}

fn wait_for(steps: &Receiver<u64>, step: u64) {
    while step > 0 && steps.recv().is_ok_and(|reported| reported < step) {}
}

/// Waits for a duration, or until the process ends.
fn wait(steps: &Receiver<u64>, mut time: Duration) {
    let tick = Duration::from_millis(1);
    while time > Duration::ZERO {
        match steps.recv_timeout(tick.min(time)) {
            Ok(_) | Err(RecvTimeoutError::Timeout) => time = time.saturating_sub(tick),
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn is_running(child: &mut Child) -> bool {
    child.try_wait().expect("a child").is_none()
}

fn names(folder: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().into_string().ok()).collect()
}

/// Returns `true` while the snapshot of `step`, or a later one, is being written.
fn is_written(folder: &Path, step: u64) -> bool {
    let names = names(folder);
    let number = |name: &str| name.strip_prefix("step-")?.parse::<u64>().ok();
    let begun = names.iter().filter_map(|name| number(name)).filter(|begun| *begun >= step);
    let newest = newest_manifest(&names);
    begun.max().is_some_and(|begun| newest.is_none_or(|newest| newest < begun))
}

fn newest_manifest(names: &BTreeSet<String>) -> Option<u64> {
    let number = |name: &String| {
        let (step, _) = name.strip_suffix(".json")?.strip_prefix("step-")?.split_once('.')?;
        step.parse::<u64>().ok()
    };
    names.iter().filter_map(number).max()
}

/// Returns the last step of the newest snapshot, from 0.
fn newest_snapshot(run: &Path) -> Option<u64> {
    newest_manifest(&names(&run.join("snapshots")))
}

/// Returns the number of prompts that tail batching had deferred at the end of a step.
fn queue_at(whole: &Outcome, step: Option<u64>) -> f64 {
    let line = step.and_then(|step| whole.metrics.get(&(step + 1)));
    line.and_then(|line| line["schedule/queue_length"].as_f64()).unwrap_or(0.0)
}

/// The result of a run, without the metrics and columns that depend on time.
struct Outcome {
    weights: Vec<u8>,
    metrics: BTreeMap<u64, serde_json::Map<String, Value>>,
    rollouts: BTreeMap<String, RecordBatch>,
    summary: Value,
}

impl Outcome {
    fn read(run: &Path) -> Self {
        let weights = fs::read(run.join("model/model.safetensors")).expect("the model");
        let lines = workspace::json_lines(&run.join("metrics.jsonl"));
        let count = lines.len();
        let metrics: BTreeMap<_, _> = lines.into_iter().map(metrics).collect();
        assert_eq!(metrics.len(), count, "each step once");
        let folder = run.join("rollouts");
        let rollouts =
            names(&folder).into_iter().map(|name| (name.clone(), rollouts(&folder.join(name))));
        let summary = workspace::json(&run.join("summary.json"));
        Self { weights, metrics, rollouts: rollouts.collect(), summary }
    }

    fn assert_same(&self, other: &Self, which: &str) {
        assert_eq!(self.metrics.len(), other.metrics.len(), "{which}: steps");
        for (step, expected) in &self.metrics {
            let found = &other.metrics[step];
            for (name, value) in expected {
                assert_eq!(found.get(name), Some(value), "{which}: {name} of step {step}");
            }
            assert_eq!(found.len(), expected.len(), "{which}: metrics of step {step}");
        }
        assert_eq!(self.rollouts.len(), other.rollouts.len(), "{which}: files of rollouts");
        for (name, expected) in &self.rollouts {
            for (column, (left, right)) in
                expected.schema().fields().iter().zip(columns(expected, &other.rollouts[name]))
            {
                assert!(left == right, "{which}: column {} of {name}", column.name());
            }
        }
        assert!(self.weights == other.weights, "{which}: weights");
        for key in ["steps", "trained_prompts", "launched_tokens", "discarded_tokens"] {
            assert_eq!(self.summary[key], other.summary[key], "{which}: {key} of the summary");
        }
    }
}

fn columns<'a>(
    one: &'a RecordBatch,
    other: &'a RecordBatch,
) -> impl Iterator<Item = (&'a ArrayRef, &'a ArrayRef)> {
    one.columns().iter().zip(other.columns())
}

fn metrics(mut line: Value) -> (u64, serde_json::Map<String, Value>) {
    let Value::Object(mut data) = line["data"].take() else { panic!("no metrics: {line}") };
    data.retain(|name, _| !depends_on_time(name));
    (line["step"].as_u64().expect("a step"), data)
}

/// Returns all rows of a file, without the columns that depend on time: times, preemptions and instances.
fn rollouts(path: &Path) -> RecordBatch {
    let all = workspace::parquet_rows(path);
    let schema = all.schema();
    let kept: Vec<usize> = (0..schema.fields().len())
        .filter(|at| {
            let name = schema.field(*at).name();
            !name.ends_with("_ns") && !["preemptions", "instance"].contains(&name.as_str())
        })
        .collect();
    all.project(&kept).expect("its own columns")
}
