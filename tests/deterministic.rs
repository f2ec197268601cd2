//! Tests `trainer.deterministic`: a run is reproducible bit for bit, with any number of instances and under any load of the machine.
#![cfg(feature = "torch")]

mod workspace;

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use arrow_array::ArrayRef;
use rollpacker_operators::report::depends_on_time;
use serde_json::Value;
use workspace::{Sft, TestWorkspace, json_lines, parquet_rows};

const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
val_files = "data/validation.parquet"
train_batch_size = 4
max_response_length = 48

[model]
path = "warm"

[rollout]
n = 4
temperature = 1.2

[schedule]
eta_prompts = 1.5
eta_responses = 1.5

[actor]
lr = 1e-3

[trainer]
total_training_steps = 6
test_freq = 3
device = "cpu"
deterministic = true
"#;

impl TestWorkspace {
    /// Trains into the folder `name` and reads the result.
    fn train(&self, name: &str, keys: &[&str]) -> Outcome {
        let folder = format!("trainer.default_local_dir={name}");
        self.ok(&[&["train", "--config", "recipe.toml", &folder], keys].concat());
        Outcome::read(&self.path(name))
    }
}

/// The result of a run, without the metrics and columns that depend on time.
struct Outcome {
    weights: Vec<u8>,
    /// The step and the round, and the metrics as bit patterns.
    metrics: Vec<(String, Vec<(String, u64)>)>,
    rollouts: Vec<Vec<(String, ArrayRef)>>,
}

impl Outcome {
    fn read(run: &Path) -> Self {
        let step = |step| run.join(format!("rollouts/step_{step:05}.parquet"));
        Self {
            weights: fs::read(run.join("model/model.safetensors")).expect("the file is there"),
            metrics: metrics(&run.join("metrics.jsonl")),
            rollouts: (1..=6).map(|at| rollouts(&step(at))).collect(),
        }
    }

    fn metric(&self, name: &str) -> Vec<f64> {
        let all = self.metrics.iter().flat_map(|(_, metrics)| metrics);
        let values = all.filter(|(found, _)| found == name);
        values.map(|(_, bits)| f64::from_bits(*bits)).collect()
    }

    fn assert_equals(&self, other: &Self) {
        for (one, other) in self.metrics.iter().zip(&other.metrics) {
            assert_eq!(one, other);
        }
        assert_eq!(self.metrics.len(), other.metrics.len());
        for (step, (one, other)) in self.rollouts.iter().zip(&other.rollouts).enumerate() {
            for (one, other) in one.iter().zip(other) {
                assert_eq!(one, other, "step {step}");
            }
        }
        assert!(self.weights == other.weights, "the weights differ");
    }
}

fn metrics(path: &Path) -> Vec<(String, Vec<(String, u64)>)> {
    let of = |line: Value| {
        let all = line["data"].as_object().expect("metrics").clone();
        let timeless = all.into_iter().filter(|(name, _)| !depends_on_time(name));
        let bits = |value: Value| value.as_f64().map_or(u64::MAX, f64::to_bits);
        (
            format!("{} {}", line["step"], line["round"]),
            timeless.map(|(k, v)| (k, bits(v))).collect(),
        )
    };
    json_lines(path).into_iter().map(of).collect()
}

fn rollouts(path: &Path) -> Vec<(String, ArrayRef)> {
    let rows = parquet_rows(path);
    let is_timed =
        |name: &str| name.ends_with("_ns") || ["preemptions", "instance"].contains(&name);
    let names = rows.schema().fields().iter().map(|field| field.name().clone()).collect::<Vec<_>>();
    let columns = names.into_iter().zip(rows.columns().iter().cloned());
    columns.filter(|(name, _)| !is_timed(name)).collect()
}

/// Threads that keep the processors busy.
struct Load(Arc<AtomicBool>, Vec<JoinHandle<()>>);

impl Load {
    fn of(threads: usize) -> Self {
        let over = Arc::new(AtomicBool::new(false));
        let busy = |_| {
            let over = over.clone();
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        let threads = (0..threads).map(busy).collect();
        Self(over, threads)
    }
}

impl Drop for Load {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.drain(..).for_each(|thread| thread.join().expect("it ends"));
    }
}

#[test]
fn a_run_is_the_same_on_one_instance_and_on_two_under_load() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let alone = workspace.train("alone", &["rollout.instances=1"]);
    let queued = alone.metric("schedule/queue_length");
    assert!(queued.iter().any(|length| *length > 0.0), "prompts wait for a long round: {queued:?}");
    assert!(alone.metric("rollout/aborted_responses").iter().any(|count| *count > 0.0));

    let load = Load::of(3);
    let under_load = workspace.train("beside", &["rollout.instances=2", "rollout.max_num_seqs=5"]);
    drop(load);
    under_load.assert_equals(&alone);
}

#[test]
fn resumed_responses_and_stale_policies_are_deterministic() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let keys = ["schedule.keep_partial=true", "algorithm.staleness=1"];
    let alone = workspace.train("alone", &[&keys[..], &["rollout.instances=2"]].concat());
    assert!(alone.metric("rollout/paused_responses").iter().any(|count| *count > 0.0));
    let under_load = workspace.train("beside", &[&keys[..], &["rollout.instances=3"]].concat());
    under_load.assert_equals(&alone);
}
