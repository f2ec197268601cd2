//! The results of a run: its steps, and the prompts that each has trained.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use arrow_array::cast::AsArray;
use arrow_array::types::{Float32Type, UInt32Type, UInt64Type};
use arrow_array::{Array, RecordBatch};
use serde_json::Value;

use super::workspace::{json_lines, parquet_rows};

/// The results of a run by step, from 1.
#[derive(Debug)]
pub(crate) struct Outcome(pub(crate) BTreeMap<u64, StepOutcome>);

#[derive(Debug)]
pub(crate) struct StepOutcome {
    pub(crate) metrics: serde_json::Map<String, Value>,
    /// The responses that ended or were aborted in the step.
    pub(crate) responses: Vec<Row>,
}

/// A response.
#[derive(Debug)]
pub(crate) struct Row {
    pub(crate) prompt: u64,
    pub(crate) sample: u32,
    /// `true` if the response was trained.
    pub(crate) trained: bool,
    pub(crate) tokens: usize,
    pub(crate) versions: Vec<u64>,
    pub(crate) instance: u32,
}

impl Outcome {
    /// Reads the folder of a run, and checks each of its responses.
    pub(crate) fn read(run: &Path) -> Self {
        let mut steps = BTreeMap::new();
        for mut line in json_lines(&run.join("metrics.jsonl")) {
            let step = line["step"].as_u64().unwrap();
            let Value::Object(metrics) = line["data"].take() else { panic!("no metrics") };
            let rollouts = parquet_rows(&run.join(format!("rollouts/step_{step:05}.parquet")));
            let responses = rows(&rollouts, step);
            let before = steps.insert(step, StepOutcome { metrics, responses });
            assert!(before.is_none(), "step {step} twice");
        }
        Self(steps)
    }

    /// Returns the prompts trained in each step.
    pub(crate) fn prompts_by_step(&self) -> Vec<BTreeSet<u64>> {
        self.0.values().map(StepOutcome::prompts).collect()
    }

    /// Returns the number of prompts trained in each step, and checks that `samples` responses to each were trained.
    pub(crate) fn sizes(&self, samples: usize) -> Vec<usize> {
        let size = |step: &StepOutcome| {
            let prompts = step.prompts().len();
            let trained = step.responses.iter().filter(|row| row.trained).count();
            assert_eq!(trained, prompts * samples);
            prompts
        };
        self.0.values().map(size).collect()
    }

    /// Returns all trained prompts in order. No prompt may be trained in two steps, and no sample twice.
    pub(crate) fn trained_once(&self) -> Vec<u64> {
        let steps = self.prompts_by_step();
        let all: BTreeSet<u64> = steps.iter().flatten().copied().collect();
        assert_eq!(all.len(), steps.iter().map(BTreeSet::len).sum::<usize>(), "{steps:?}");
        let rows = || self.0.values().flat_map(|step| &step.responses).filter(|row| row.trained);
        let samples: BTreeSet<_> = rows().map(|row| (row.prompt, row.sample)).collect();
        assert_eq!(samples.len(), rows().count(), "a sample was trained twice");
        all.into_iter().collect()
    }

    /// Returns the sum of a metric over all steps.
    pub(crate) fn total(&self, metric: &str) -> f64 {
        self.0.keys().map(|step| self.of(*step, metric)).sum()
    }

    /// Returns the metric of a step.
    pub(crate) fn of(&self, step: u64, metric: &str) -> f64 {
        let found = self.0[&step].metrics.get(metric).and_then(Value::as_f64);
        found.unwrap_or_else(|| panic!("step {step} has no {metric}"))
    }

    /// Checks that every delivery passed the canary at once.
    ///
    /// Both sides compute with the same kernels in single precision, so that the scores differ at most by rounding. A delivery is reported
    /// in the step in which it ends, so that a step may have none.
    pub(crate) fn assert_canary_passed(&self) {
        for name in ["rollout/canary_kl", "rollout/canary_max"] {
            let figures = self.0.values().filter_map(|step| step.metrics.get(name)?.as_f64());
            let figures: Vec<f64> = figures.collect();
            assert!(
                !figures.is_empty() && figures.iter().all(|figure| *figure < 1e-4),
                "{figures:?}"
            );
        }
        assert_eq!(self.total("rollout/canary_reloads"), 0.0);
    }

    /// Returns all responses.
    pub(crate) fn rows(&self) -> impl Iterator<Item = &Row> {
        self.0.values().flat_map(|step| &step.responses)
    }
}

impl StepOutcome {
    fn prompts(&self) -> BTreeSet<u64> {
        self.responses.iter().filter(|row| row.trained).map(|row| row.prompt).collect()
    }
}

fn rows(batch: &RecordBatch, step: u64) -> Vec<Row> {
    let numbers = |name: &str| batch[name].as_primitive::<UInt32Type>().clone();
    let (samples, lengths, instances) =
        (numbers("sample"), numbers("response_length"), numbers("instance"));
    let prompts = batch["prompt_id"].as_primitive::<UInt64Type>();
    let admitted = batch["admitted"].as_boolean();
    let list = |name: &str, row: usize| batch[name].as_list::<i32>().value(row);
    let row = |at: usize| {
        let logprobs = list("logprobs_nats", at);
        let logprobs = logprobs.as_primitive::<Float32Type>().values();
        assert!(logprobs.iter().all(|logprob| (-100.0..=0.0).contains(logprob)), "{logprobs:?}");
        let versions = list("token_versions", at).as_primitive::<UInt64Type>().values().to_vec();
        let tokens = lengths.value(at) as usize;
        let listed = list("response_ids", at).len();
        assert_eq!((listed, logprobs.len(), versions.len()), (tokens, tokens, tokens));
        assert!(versions.iter().all(|version| *version < step), "{versions:?} in step {step}");
        Row {
            prompt: prompts.value(at),
            sample: samples.value(at),
            trained: admitted.value(at),
            tokens,
            versions,
            instance: instances.value(at),
        }
    };
    (0..batch.num_rows()).map(row).collect()
}
