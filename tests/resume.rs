//! Tests of `rollpacker train --resume`: a run resumed from any of its snapshots ends like an uninterrupted one.
#![cfg(feature = "torch")]

mod workspace;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt32Type, UInt64Type};
use rollpacker_operators::report::depends_on_time;
use serde_json::Value;
use workspace::{Sft, TestWorkspace, json_lines, parquet_rows};

const STEPS: usize = 6;

/// The recipe of a small run whose tail batching defers prompts.
const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
val_files = "data/validation.parquet"
train_batch_size = 4
max_response_length = 24

[model]
path = "warm"

[rollout]
n = 2
threads_per_instance = 1

[schedule]
eta_prompts = 2
eta_responses = 1.5

[actor]
lr = 1e-3
threads = 1

[trainer]
total_training_steps = 6
save_freq = 1
max_ckpt_to_keep = 10
device = "cpu"
"#;

const SFT: Sft = Sft { steps: 4, layers: 1, ..Sft::SMALL };

impl TestWorkspace {
    fn train(&self, out: &str, more: &[&str]) -> String {
        self.ok(&[&["train", "--config", "recipe.toml", "--out", out][..], more].concat())
    }

    /// Returns the error of a run that is rejected.
    fn train_refused(&self, out: &str, more: &[&str]) -> String {
        self.run_refused(&[&["train", "--config", "recipe.toml", "--out", out][..], more].concat())
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("readable") {
        let path = entry.expect("readable").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            fs::copy(&path, &target).expect("copied");
        }
    }
}

/// Returns the step and the metrics of each line, without metrics that depend on the speed of the machine.
fn metrics(run: &Path) -> Vec<(u64, BTreeMap<String, f64>)> {
    json_lines(&run.join("metrics.jsonl")).iter().map(step_metrics).collect()
}

fn step_metrics(line: &Value) -> (u64, BTreeMap<String, f64>) {
    let numbers = line["data"].as_object().expect("an object").iter();
    let numbers = numbers.filter(|(name, _)| !depends_on_time(name));
    let numbers = numbers.map(|(name, value)| (name.clone(), value.as_f64().unwrap_or(0.5)));
    (line["step"].as_u64().expect("a number"), numbers.collect())
}

/// Returns the rollouts of each step.
fn rollouts(run: &Path) -> BTreeMap<String, RecordBatch> {
    let read = |path: PathBuf| {
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        (name, parquet_rows(&path))
    };
    names(&run.join("rollouts")).into_iter().map(read).collect()
}

fn weights(run: &Path) -> Vec<u8> {
    fs::read(run.join("model/model.safetensors")).expect("the file is there")
}

/// The result of a run.
struct RunRecords {
    metrics: Vec<(u64, BTreeMap<String, f64>)>,
    rollouts: BTreeMap<String, RecordBatch>,
    weights: Vec<u8>,
}

impl RunRecords {
    fn read(run: &Path) -> Self {
        Self { metrics: metrics(run), rollouts: rollouts(run), weights: weights(run) }
    }

    /// Returns the tokens of every response, by file, prompt and sample.
    fn tokens_by_sample(&self) -> BTreeMap<(String, u64, u32), Vec<i32>> {
        let of = |rows: &RecordBatch, row: usize| {
            let prompt = rows["prompt_id"].as_primitive::<UInt64Type>().value(row);
            let sample = rows["sample"].as_primitive::<UInt32Type>().value(row);
            let tokens = rows["response_ids"].as_list::<i32>().value(row);
            (prompt, sample, tokens.as_primitive::<Int32Type>().values().to_vec())
        };
        let rows = self
            .rollouts
            .iter()
            .flat_map(|(file, rows)| (0..rows.num_rows()).map(move |row| (file, of(rows, row))));
        rows.map(|(file, (prompt, sample, tokens))| ((file.clone(), prompt, sample), tokens))
            .collect()
    }

    /// Returns the prompts trained on, with repetitions.
    fn trained_prompts(&self) -> Vec<u64> {
        let mut prompts: Vec<u64> = self
            .rollouts
            .values()
            .flat_map(|rows| {
                let ids = rows["prompt_id"].as_primitive::<UInt64Type>().values().iter();
                let admitted = rows["admitted"].as_boolean().iter();
                let of_groups = ids.zip(admitted).filter(|(_, admitted)| *admitted == Some(true));
                of_groups.map(|(prompt, _)| *prompt).collect::<BTreeSet<u64>>()
            })
            .collect();
        prompts.sort_unstable();
        prompts
    }
}

/// Resumes copies of the run `straight` with the settings `more`, one copy from each step. Passes the step and the records of each resumed
/// run to `check`.
fn from_every_step(
    workspace: &TestWorkspace,
    straight: &str,
    more: &[&str],
    check: impl Fn(usize, &RunRecords),
) {
    for step in 1..=STEPS {
        let name = format!("{straight}-from{step}");
        copy(&workspace.path(straight), &workspace.path(&name));
        let printed = workspace.train(&name, &[&["--resume", &step.to_string()], more].concat());
        assert!(printed.starts_with(&format!("resumed from step {step}\n")), "{printed}");
        let run = workspace.path(&name);
        check(step, &RunRecords::read(&run));
        let summary = workspace.summary(&name);
        assert_eq!(summary["steps"], STEPS);
        assert!(summary["validation"]["warm_start"].is_number(), "of the first start");
    }
}

/// With one instance and one call of the trainer per step, runs differ only in the order in which gradients are added. Samples must be
/// identical, and numbers equal up to rounding.
#[test]
fn a_run_resumed_from_any_step_ends_like_the_uninterrupted_one() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 4);
    let sync = ["schedule.name=sync", "rollout.instances=1"];
    workspace.train("straight", &sync);
    let straight = RunRecords::read(&workspace.path("straight"));
    assert!(straight.rollouts.len() == STEPS && straight.metrics.len() > STEPS);
    let learned = |(_, data): &(u64, BTreeMap<String, f64>)| {
        data.get("actor/grad_norm").is_some_and(|norm| *norm > 0.01)
    };
    assert!(straight.metrics.iter().any(learned), "the rewards vary");
    from_every_step(&workspace, "straight", &sync, |step, result| {
        for ((at, found), (_, expected)) in result.metrics.iter().zip(&straight.metrics) {
            let names = |all: &BTreeMap<String, f64>| all.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(found), names(expected), "step {at}, resumed after {step}");
            for (name, value) in found {
                let near = (value - expected[name]).abs() <= 1e-4 * expected[name].abs() + 1e-6;
                assert!(
                    near,
                    "{name} of step {at}, resumed after {step}: {value}, {}",
                    expected[name]
                );
            }
        }
        assert_eq!(result.metrics.len(), straight.metrics.len());
        assert_eq!(
            result.tokens_by_sample(),
            straight.tokens_by_sample(),
            "resumed after step {step}"
        );
        assert!(near(&result.weights, &straight.weights), "weights, resumed after step {step}");
    });
}

/// Returns `true` if two files of `f32` weights have the same header and are equal up to rounding.
fn near(one: &[u8], other: &[u8]) -> bool {
    let header = 8 + u64::from_le_bytes(one[..8].try_into().expect("eight bytes")) as usize;
    let numbers = |file: &[u8]| -> Vec<f32> {
        let words = file[header..].chunks_exact(4);
        words.map(|word| f32::from_le_bytes(word.try_into().expect("four bytes"))).collect()
    };
    let (ones, others) = (numbers(one), numbers(other));
    let mut pairs = ones.iter().zip(&others);
    one[..header] == other[..header]
        && ones.len() == others.len()
        && pairs.all(|(one, other)| (one - other).abs() <= 1e-4)
}

/// In deterministic mode, numbers of tokens decide which responses end first, and sums have a fixed order, so everything must be identical.
#[test]
fn in_deterministic_mode_a_resumed_run_ends_with_the_same_bits() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 4);
    let deterministic = ["trainer.deterministic=true"];
    workspace.train("straight", &deterministic);
    let straight = RunRecords::read(&workspace.path("straight"));
    from_every_step(&workspace, "straight", &deterministic, |step, result| {
        let bits = |result: &RunRecords| -> Vec<(u64, Vec<(String, u64)>)> {
            let numbers = |data: &BTreeMap<String, f64>| {
                data.iter().map(|(name, value)| (name.clone(), value.to_bits())).collect()
            };
            result.metrics.iter().map(|(step, data)| (*step, numbers(data))).collect()
        };
        assert_eq!(bits(result), bits(&straight), "metrics, resumed after step {step}");
        assert_eq!(
            result.tokens_by_sample(),
            straight.tokens_by_sample(),
            "resumed after step {step}"
        );
        assert!(result.weights == straight.weights, "weights, resumed after step {step}");
    });
}

#[test]
fn no_prompt_is_lost_or_trained_twice_under_tail_batching() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 4);
    workspace.train("straight", &[]);
    let straight = RunRecords::read(&workspace.path("straight"));
    let queued = |(step, data): &(u64, BTreeMap<String, f64>)| {
        *step < 3 && data.get("schedule/queue_length").is_some_and(|length| *length > 0.0)
    };
    assert!(straight.metrics.iter().any(queued), "prompts wait when the run is interrupted");
    let all: Vec<u64> = (0..24).collect();
    assert_eq!(straight.trained_prompts(), all);
    from_every_step(&workspace, "straight", &[], |step, result| {
        assert_eq!(result.trained_prompts(), all, "resumed after step {step}");
    });
}

fn names(folder: &Path) -> BTreeSet<PathBuf> {
    fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path()).collect()
}

#[test]
fn an_invalid_resume_is_refused_by_name() {
    let workspace = TestWorkspace::warm(RECIPE, SFT, 64, 4);
    let short = ["trainer.total_training_steps=2", "data.val_files=[]"];
    let first = workspace.train("run", &[&["--resume"][..], &short].concat());
    assert!(
        first.contains("no snapshot to resume from; the run starts from the beginning"),
        "{first}"
    );

    let snapshots = || names(&workspace.path("run/snapshots"));
    let before = snapshots();
    let error = workspace.train_refused("run", &short);
    assert!(
        error.contains("resume from them with --resume, or remove them with --overwrite"),
        "{error}"
    );
    for (settings, expected) in [
        (&short[..], "resume from them with --resume, or remove them with --overwrite"),
        (&["--resume", "5"], "expected a snapshot after step 5, found snapshots after 1, 2"),
        (&["--resume", "actor.lr=0.1"], "key `actor.lr`: expected 0.001, found 0.1"),
        (&["--resume", "model.path=run/model"], "key `model.path`: expected a folder that the run"),
    ] {
        let error = workspace.train_refused("run", &[&["--dry-run"], settings].concat());
        assert!(error.contains(expected), "{error}");
    }
    for settings in [["--resume", "1"], ["--resume", "latest"], ["--overwrite", "rollout.n=2"]] {
        workspace.train("run", &[&["--dry-run"], &settings[..]].concat());
    }
    assert_eq!(snapshots(), before);
    // Without a folder of snapshots, `--resume latest` is accepted, and the number of a step is refused.
    workspace.train("new", &["--dry-run", "--resume", "latest"]);
    let error = workspace.train_refused("new", &["--dry-run", "--resume", "2"]);
    assert!(error.contains("expected a snapshot after step 2, found none"), "{error}");
    assert!(!workspace.path("new").exists());
    let error = workspace.train_refused("run", &["--resume", "5"]);
    assert!(
        error.contains("expected a snapshot after step 5, found snapshots after 1, 2"),
        "{error}"
    );
    let error = workspace
        .train_refused("run", &["--resume", "latest", "actor.lr=0.1", "schedule.eta_prompts=3"]);
    for line in [
        "the snapshot after step 2 was taken with another recipe",
        "key `actor.lr`: expected 0.001, found 0.1",
        "key `schedule.eta_prompts`: expected 2, found 3",
    ] {
        assert!(error.contains(line), "{error}");
    }
    let error = workspace.train_refused("run", &["--resume", "latest", "model.path=run/model"]);
    assert!(
        error.contains("key `model.path`: expected a folder that the run does not write to"),
        "{error}"
    );
    let error = workspace.train_refused("run", &["--resume", "latest", "data.shuffle=false"]);
    assert!(error.contains("key `data.shuffle`: expected true, found false"), "{error}");
    let prompts = workspace.path("data/train.parquet");
    let kept = fs::read(&prompts).expect("read");
    fs::copy(workspace.path("data/validation.parquet"), &prompts).expect("copied");
    let error = workspace.train_refused("run", &["--resume", "latest"]);
    assert!(error.contains("was taken with other prompts"), "{error}");
    fs::write(&prompts, kept).expect("written");

    // Nothing is taken over or removed by a run that is refused.
    let metrics = workspace.path("run/metrics.jsonl");
    let lines = fs::read(&metrics).expect("read");
    for kept in [Some(lines.len() / 2), None] {
        match kept {
            Some(bytes) => fs::write(&metrics, &lines[..bytes]).expect("written"),
            None => fs::remove_file(&metrics).expect("removed"),
        }
        let error = workspace.train_refused("run", &["--resume", "2"]);
        assert!(error.contains("the snapshot after step 2 continues this file"), "{error}");
    }
    workspace.train_refused("run", &["--resume", "1", "actor.lr=0.1"]);
    assert_eq!(snapshots(), before);
    fs::write(&metrics, lines).expect("written");

    let longer = workspace.train(
        "run",
        &["--resume", "latest", "trainer.total_training_steps=3", "data.val_files=[]"],
    );
    assert!(longer.contains("\"steps\": 3"), "{longer}");
    let overwritten = workspace.train("run", &[&["--overwrite"][..], &short].concat());
    assert!(
        overwritten.contains("\"steps\": 2") && !overwritten.contains("resumed"),
        "{overwritten}"
    );
}
