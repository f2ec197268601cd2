//! Tests of the section `[placement]` in live runs: instances are lent to training and return, nothing is lost, and deterministic runs
//! compute the same weights.
#![cfg(feature = "torch")]

mod workspace;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use arrow_array::RecordBatch;
use arrow_array::cast::AsArray;
use arrow_array::types::{Int32Type, UInt32Type, UInt64Type};
use rollpacker::profile;
use rollpacker::stages::rollout::profile::Row;
use serde_json::Value;
use workspace::{Sft, TestWorkspace, json, json_lines, parquet_rows};

const STEPS: usize = 6;

/// The recipe of a small run on two instances whose tail batching has short and long rounds.
const RECIPE: &str = r#"
[data]
train_files = ["data/train.parquet"]
train_batch_size = 4
max_response_length = 48

[model]
path = "warm"

[rollout]
n = 4
instances = 2
temperature = 1.2

[schedule]
eta_prompts = 1.5
eta_responses = 1.5

[actor]
lr = 1e-3

[trainer]
total_training_steps = 6
device = "cpu"
"#;

const STREAM: [&str; 3] =
    ["placement.kind=stream_trainer", "placement.rounds=all", "trainer.deterministic=true"];

impl TestWorkspace {
    fn train(&self, out: &str, keys: &[&str]) -> Run {
        self.ok(&[&["train", "--config", "recipe.toml", "--out", out][..], keys].concat());
        Run::read(&self.path(out))
    }

    fn train_refused(&self, keys: &[&str]) -> String {
        self.run_refused(&[&["train", "--config", "recipe.toml", "--dry-run"][..], keys].concat())
    }
}

/// Settings of a run in which the responses of the third step overflow the KV caches: each instance has eight responses and holds 384
/// tokens.
const CROWDED: [&str; 9] = [
    "schedule.name=sync",
    "data.max_prompt_length=64",
    "rollout.kv_cache_tokens=384",
    "rollout.replay_lengths=lengths.json",
    "placement.kind=planner",
    "trainer.deterministic=true",
    "actor.threads=1",
    "trainer.save_freq=1",
    "trainer.max_ckpt_to_keep=10",
];

/// The records of a run.
struct Run {
    weights: Vec<u8>,
    /// The metrics of each step.
    metrics: Vec<Value>,
    /// The prompt, the sample and the tokens of every response, by step.
    responses: Vec<BTreeSet<(u64, u32, Vec<i32>)>>,
    /// The files of `placements/`, by step; empty if the run wrote none.
    placements: Vec<Value>,
}

impl Run {
    fn read(folder: &Path) -> Self {
        let lines = json_lines(&folder.join("metrics.jsonl"));
        let placed = folder.join("placements").exists();
        let placement = |step| json(&folder.join(format!("placements/step_{step:05}.json")));
        Self {
            weights: fs::read(folder.join("model/model.safetensors")).expect("the file is there"),
            metrics: lines.iter().map(|line| line["data"].clone()).collect(),
            responses: (1..=STEPS).map(|step| responses(folder, step)).collect(),
            placements: (1..=STEPS).filter(|_| placed).map(placement).collect(),
        }
    }

    fn metric(&self, name: &str) -> Vec<f64> {
        let of = |line: &Value| line[name].as_f64().unwrap_or_else(|| panic!("{name}: {line}"));
        self.metrics.iter().map(of).collect()
    }

    /// Checks that as many responses ended in each step as were launched.
    fn assert_conserved(&self) {
        let ended: Vec<f64> = self.responses.iter().map(|step| step.len() as f64).collect();
        assert_eq!(ended, self.metric("rollout/launched_responses"));
    }
}

fn responses(folder: &Path, step: usize) -> BTreeSet<(u64, u32, Vec<i32>)> {
    let batch = parquet_rows(&folder.join(format!("rollouts/step_{step:05}.parquet")));
    let mut all = BTreeSet::new();
    for row in rows(&batch) {
        assert!(all.insert(row.clone()), "step {step}: {row:?} ended twice");
    }
    all
}

fn rows(batch: &RecordBatch) -> Vec<(u64, u32, Vec<i32>)> {
    let prompts = batch["prompt_id"].as_primitive::<UInt64Type>();
    let samples = batch["sample"].as_primitive::<UInt32Type>();
    let tokens = batch["response_ids"].as_list::<i32>();
    let ids = |row| tokens.value(row).as_primitive::<Int32Type>().values().to_vec();
    (0..batch.num_rows()).map(|row| (prompts.value(row), samples.value(row), ids(row))).collect()
}

#[test]
fn the_stream_trainer_lends_instances_and_changes_no_bit_of_a_deterministic_run() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let fixed = workspace.train("fixed", &["trainer.deterministic=true"]);
    assert!(fixed.placements.is_empty() && fixed.metrics[0]["placement/lent_s"].is_null());

    let stream = workspace.train("stream", &STREAM);
    stream.assert_conserved();
    assert_eq!(stream.responses, fixed.responses);
    assert!(stream.weights == fixed.weights, "the weights differ");

    // Both instances generate at the start of each round, so those that were lent in the step before have returned.
    assert_eq!(stream.metric("placement/rollout_instances"), [2.0; STEPS]);
    assert_eq!(stream.metric("placement/lent_instances"), [2.0; STEPS], "after the rollout");
    assert!(stream.metric("placement/lent_s").iter().all(|seconds| *seconds > 0.0));
    let overlap = stream.metric("placement/overlap_instances");
    assert_eq!(overlap, [1.0; STEPS], "one instance is lent while responses are in flight");
    let pairs =
        stream.metric("placement/lent_s").into_iter().zip(stream.metric("placement/overlap_s"));
    assert!(pairs.into_iter().all(|(lent, overlap)| 0.0 < overlap && overlap <= lent));
    assert_eq!(stream.metric("trainer/threads"), [2.0; STEPS], "those of the lent instances");
    for placement in &stream.placements {
        let decided: Vec<_> = placement["decisions"].as_array().expect("a list").iter().collect();
        let of = |key: &str| decided.iter().map(|one| one[key].clone()).collect::<Vec<_>>();
        assert_eq!(of("reason"), ["round", "scale_down", "drained"], "{placement}");
        assert_eq!(of("rollout_instances"), [2, 1, 0]);
        assert_eq!(of("training_devices"), [0, 1, 2]);
    }
}

#[test]
fn lent_threads_train() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let long = workspace.train("long", &["placement.kind=stream_trainer"]);
    long.assert_conserved();
    assert_eq!(long.metric("trainer/threads"), [2.0; STEPS]);
    let lines = workspace.metrics_lines("long");
    for (line, overlap) in lines.iter().zip(long.metric("placement/overlap_instances")) {
        assert_eq!(
            overlap > 0.0,
            line["round"] != "short",
            "only rounds that wait for all lend early"
        );
    }
}

#[test]
fn all_threads_train_after_the_rollout_when_time_is_shared() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let keys = ["placement.kind=time_sharing", "trainer.deterministic=true"];
    let shared = workspace.train("shared", &keys);
    shared.assert_conserved();
    assert_eq!(shared.metric("placement/lent_instances"), [2.0; STEPS]);
    assert_eq!(shared.metric("placement/overlap_instances"), [0.0; STEPS]);
    assert_eq!(shared.metric("trainer/threads"), [2.0; STEPS]);
    let fixed = workspace.train("fixed", &["trainer.deterministic=true", "actor.threads=1"]);
    assert_eq!(shared.responses, fixed.responses);
    assert!(shared.weights == fixed.weights, "the weights differ");
    for placement in &shared.placements {
        let last = placement["decisions"].as_array().expect("a list").last().expect("a decision");
        assert_eq!(last["at_ns"], placement["drained_ns"], "training begins after the rollout");
    }
}

#[test]
fn separate_pools_keep_their_instances_and_threads() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let keys = ["placement.kind=separate_pools", "rollout.instances=3", "algorithm.staleness=1"];
    let pools =
        workspace.train("pools", &[&keys[..], &["placement.training_instances=2"]].concat());
    pools.assert_conserved();
    assert_eq!(pools.metric("placement/rollout_instances"), [1.0; STEPS]);
    assert_eq!(pools.metric("placement/lent_instances"), [0.0; STEPS]);
    assert_eq!(pools.metric("trainer/threads"), [2.0; STEPS]);
}

#[test]
fn every_worker_follows_the_placement() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let fixed = workspace.train("fixed", &["trainer.deterministic=true"]);
    let workers = workspace.train("workers", &[&STREAM[..], &["trainer.workers=2"]].concat());
    assert_eq!(workers.metric("placement/lent_instances"), [2.0; STEPS]);
    assert_eq!(workers.responses, fixed.responses);
    assert!(workers.weights == fixed.weights, "the weights differ");
}

#[test]
fn a_resumed_run_is_placed_like_an_uninterrupted_one() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let whole = workspace.train("whole", &STREAM);
    let keys = [&STREAM[..], &["trainer.save_freq=1", "trainer.max_ckpt_to_keep=10"]].concat();
    workspace.train("cut", &keys);
    let manifest = fs::read_dir(workspace.path("cut/snapshots")).expect("snapshots").count();
    assert!(manifest >= STEPS, "a snapshot after each step");
    let resumed = workspace.train("cut", &[&keys[..], &["--resume", "3"]].concat());
    assert_eq!(resumed.placements.len(), STEPS);
    assert_eq!(resumed.metric("placement/overlap_instances"), [1.0; STEPS]);
    assert_eq!(resumed.responses, whole.responses);
    assert!(resumed.weights == whole.weights, "the weights differ");

    // A run may continue with another placement, because the placement does not define what is trained.
    let other = [&keys[1..], &["placement.kind=time_sharing", "--resume", "3"]].concat();
    let other: Vec<_> = other.into_iter().filter(|key| *key != "placement.rounds=all").collect();
    let other = workspace.train("cut", &[&other[..], &["actor.threads=1"]].concat());
    assert_eq!(other.metric("placement/overlap_instances")[3..], [0.0; 3]);
    let back = workspace.train("cut", &[&keys[..], &["--resume", "5"]].concat());
    assert_eq!(back.metric("placement/overlap_instances")[5..], [1.0]);
}

#[test]
fn preemptions_double_the_devices_of_an_instance_and_change_no_bit() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let lengths = "[[4], [4], [48], [4], [4], [4]]";
    fs::write(workspace.path("lengths.json"), lengths).expect("written");
    let planner = workspace.train("planner", &CROWDED);
    planner.assert_conserved();
    let preempted = planner.metric("rollout/preemptions");
    let overflowed: Vec<_> = preempted.iter().map(|count| *count > 0.0).collect();
    assert_eq!(overflowed, [false, false, true, false, false, false], "{preempted:?}");
    assert_eq!(planner.metric("placement/tensor_parallel"), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(planner.metric("placement/rollout_instances"), [2.0, 2.0, 2.0, 1.0, 1.0, 1.0]);
    assert_eq!(planner.metric("placement/overlap_instances"), [0.0; STEPS], "none is lent early");
    let first = &planner.placements[3]["decisions"][0];
    assert_eq!((&first["reason"], &first["tensor_parallel"]), (&"preemptions".into(), &2.into()));

    let other = |from: &str, to: &str| CROWDED.map(|key| key.replace(from, to));
    let fixed = other("=planner", "=fixed");
    let fixed = workspace.train("fixed", &fixed.each_ref().map(String::as_str));
    assert_eq!(planner.responses, fixed.responses);
    assert!(planner.weights == fixed.weights, "the weights differ");

    // The stream trainer of RollPacker lends instances in rounds that its planner has sized.
    let stream = other("=planner", "=stream_trainer");
    let streamed = ["placement.rule=paper", "placement.rounds=all", "pipeline.reward=streamed"];
    let stream =
        stream.iter().map(String::as_str).chain(streamed).chain(["pipeline.gradient=streamed"]);
    let stream = workspace.train("stream", &stream.collect::<Vec<_>>());
    assert_eq!(stream.metric("placement/tensor_parallel"), [1.0, 1.0, 1.0, 2.0, 2.0, 2.0]);
    assert_eq!(stream.responses, fixed.responses);
    assert!(stream.weights == fixed.weights, "the weights differ");

    // A resumed run has the preemptions of the rounds before its snapshot.
    for step in ["2", "3", "5"] {
        let resumed = workspace.train("planner", &[&CROWDED[..], &["--resume", step]].concat());
        let name = "placement/tensor_parallel";
        assert_eq!(resumed.metric(name), planner.metric(name), "from step {step}");
        assert_eq!(resumed.responses, planner.responses);
        assert!(resumed.weights == planner.weights, "the weights differ");
    }

    let keys = other("=384", "=192");
    let keys = keys.each_ref().map(String::as_str);
    let workers = workspace.train("workers", &[&keys[..], &["trainer.workers=2"]].concat());
    let chosen = workers.metric("placement/tensor_parallel");
    assert_eq!(chosen, [1.0, 1.0, 1.0, 2.0, 2.0, 2.0], "one policy decides for all workers");
    assert_eq!(workers.responses, planner.responses);
    assert!(workers.weights == planner.weights, "the weights differ");
}

#[test]
fn predicted_times_choose_the_devices_of_an_instance() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let predictive = |profile: &'static str| {
        ["placement.kind=planner", "placement.rule=predictive", "schedule.name=sync", profile]
    };
    let measure = ["profile", "--config", "recipe.toml", "--output", "profile.parquet"];
    let keys = predictive("rollout.profile=profile.parquet");
    workspace.ok(&[&measure[..], &["--budget", "6"], &keys].concat());
    let measured = profile::read(&workspace.path("profile.parquet")).expect("a profile");
    let sizes: BTreeSet<_> =
        measured.iter().map(|row| (row.instances, row.tensor_parallel)).collect();
    assert_eq!(sizes, BTreeSet::from([(1, 1), (2, 1), (1, 2)]));

    // In the second round, the lengths of the first are known.
    let scaled = |name: &str, wide: f64| {
        let faster = |row: &Row| {
            let factor = if row.tensor_parallel == 2 { wide } else { 1.0 };
            Row { seconds: row.seconds * factor, ..*row }
        };
        let rows: Vec<_> = measured.iter().map(faster).collect();
        profile::write(&workspace.path(name), &rows).expect("written");
    };
    scaled("fast.parquet", 1e-6);
    let fast = workspace.train("fast", &predictive("rollout.profile=fast.parquet"));
    assert_eq!(fast.metric("placement/tensor_parallel")[..3], [1.0, 2.0, 2.0]);
    assert_eq!(fast.placements[1]["decisions"][0]["reason"], "predicted");
    scaled("slow.parquet", 1e6);
    let slow = workspace.train("slow", &predictive("rollout.profile=slow.parquet"));
    assert_eq!(slow.metric("placement/tensor_parallel")[..3], [1.0; 3]);

    let narrow: Vec<_> = measured.iter().filter(|row| row.tensor_parallel == 1).copied().collect();
    profile::write(&workspace.path("narrow.parquet"), &narrow).expect("written");
    let error = workspace.train_refused(&predictive("rollout.profile=narrow.parquet"));
    assert!(error.contains("`rollout.profile`") && error.contains("of 2 devices"), "{error}");
}

#[test]
fn a_dry_run_describes_the_placement() {
    let workspace = TestWorkspace::warm(RECIPE, Sft::SMALL, 64, 8);
    let described = |keys: &[&str]| {
        let args = [&["train", "--config", "recipe.toml", "--dry-run"][..], keys].concat();
        let text = workspace.ok(&args);
        text.lines().find(|line| line.starts_with("placement ")).map(str::to_owned)
    };
    assert_eq!(described(&[]), None);
    let planner = described(&["placement.kind=planner"]).expect("a line");
    assert!(
        planner.ends_with(
            "planner: 2 instances of 1 device generate at the start and instances of 1 to 2 devices later, by preemptions, \
             then 2 threads train"
        ),
        "{planner}"
    );
    let shared = described(&["placement.kind=time_sharing"]).expect("a line");
    assert!(
        shared.ends_with("time_sharing: 2 instances generate, then 2 threads train"),
        "{shared}"
    );
}

#[test]
fn placements_that_a_live_run_cannot_have_are_refused_by_their_keys() {
    let workspace = TestWorkspace::new(RECIPE);
    for (keys, expected) in [
        (&["placement.kind=time_sharin"][..], "did you mean `time_sharing`?"),
        (&["placement.kind=colocated"], "did you mean `time_sharing`?"),
        (
            &["placement.kind=planner", "rollout.instances=1"],
            "`rollout.instances`: expected at least 2",
        ),
        (
            &["placement.kind=planner", "rollout.instances=3"],
            "`rollout.instances`: expected an even",
        ),
        (&["placement.kind=planner", "algorithm.staleness=1"], "`algorithm.staleness`"),
        (&["placement.kind=planner", "placement.rule=predictive"], "`rollout.profile`"),
        (&["placement.kind=planner", "placement.rule=papers"], "did you mean `paper`?"),
        (&["placement.kind=planner", "placement.tensor_parallel=4"], "`placement.tensor_parallel`"),
        (&["placement.kind=planner", "placement.keep=0.5"], "`placement.keep`: expected no value"),
        (&["placement.rule=paper"], "`placement.rule`: expected no value unless"),
        (
            &["placement.kind=stream_trainer", "placement.rule=paper", "rollout.instances=3"],
            "`rollout.instances`: expected an even",
        ),
        (
            &["placement.keep=0.5"],
            "`placement.keep`: expected no value unless placement.kind = stream_trainer, found 0.5",
        ),
        (
            &["placement.tensor_parallel=2"],
            "expected no value unless placement.kind = planner or stream_trainer",
        ),
        (&["placement.kep=0.5"], "unknown key `placement.kep`; did you mean `placement.keep`?"),
        (
            &["placement.kind=separate_pools", "placement.training_instances=nan"],
            "`placement.training_instances`: expected a finite number, found nan",
        ),
        (
            &["placement.kind=separate_pools", "placement.training_instances=0.5"],
            "`placement.training_instances`: expected an integer",
        ),
        (
            &["placement.kind=stream_trainer", "placement.trigger=fixed", "placement.to=0.5"],
            "`placement.to`: expected no value unless placement.trigger = adaptive",
        ),
        (
            &["placement.kind=stream_trainer", "placement.rounds=lang"],
            "`placement.rounds`: expected one of long, all (did you mean `long`?)",
        ),
        (&["placement.kind=time_sharing", "algorithm.staleness=1"], "`algorithm.staleness`"),
        (&["placement.kind=stream_trainer", "rollout.instances=1"], "`rollout.instances`"),
        (&["placement.kind=stream_trainer", "placement.keep=0.9"], "`placement.keep`"),
        (&["placement.kind=stream_trainer", "placement.trigger=predicted"], "`placement.trigger`"),
        (&["placement.kind=stream_trainer", "placement.to=0.1"], "`placement.to`"),
        (&["placement.kind=stream_trainer", "schedule.name=sync"], "`pipeline.reward`"),
        (
            &["placement.kind=stream_trainer", "pipeline.gradient=whole_step"],
            "`pipeline.gradient`: expected streamed",
        ),
        (
            &["placement.kind=separate_pools", "placement.training_instances=2"],
            "`placement.training_instances`: expected at most 1",
        ),
    ] {
        let error = workspace.train_refused(keys);
        assert!(error.contains(expected), "{keys:?}: {error}");
    }
}
