//! Jobs: checked descriptions of simulated runs.

use std::sync::Arc;

use rollpacker_files::Inputs;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::reward::{LimitMode, LimitOptions};
use rollpacker_operators::schedule::Schedule;
use rollpacker_simulated::cluster::{Calibration, Cost, Hardware, ModelShape, TrainingLayout};
use rollpacker_simulated::rollout::lengths::CorrelationEstimate;
use toml::Table;

use super::outcome::GanttStep;
use super::overrides::overlay_all;
use super::placement::SimulatedPlacement;
use super::raw::{Dispatch, Judge, RawJob};
use super::trace::{SharedTrace, TraceSummary, with_correlation};
use crate::recipe::schedule::ScheduleSize;
use crate::recipe::{RecipeError, from_table};

/// A checked job.
///
/// Values that `[pipeline]`, `rollout.dispatch`, `tasks.judge_placement` and `tasks.timeout` leave out default to what the authors of the
/// schedule do:
///
/// - `sync` is veRL. It dispatches chunks of prompts, scores after the rollout, and trains on whole steps, on GPUs that generate and train
///   in turn.
/// - All other schedules dispatch by response, score each response when it ends, and train on groups as they become complete.
///   `longest_first` dispatches to the instance with the fewest responses; the other schedules dispatch to the instances in turn.
/// - `tail_batching` has the stream trainer, and `frontier_group` has separate GPUs for generation and for training. With all other
///   schedules, all GPUs generate and train in turn.
/// - `sync`, `fused` and `longest_first` have a judge on its own GPUs and a fixed time limit of the sandbox. All other schedules have
///   RollPacker's reward scheduler: a judge on the GPUs of the rollout, and adaptive time limits. If the job scores after the rollout, time
///   limits are fixed for these schedules, too.
#[derive(Clone, Debug)]
pub struct Job {
    /// The job as written. Keys that are left out have their defaults, except for defaults that depend on the schedule, which stay `None`.
    pub raw: RawJob,
    /// The data sheet of a GPU and its server. Its `devices_per_server` is `cluster.gpus_per_server` if the job sets this key.
    pub hardware: Hardware,
    /// The shape of the trained model.
    pub model: ModelShape,
    /// The constants of the cost model, after the controller's work is divided among the controllers. Its share of memory is
    /// `rollout.gpu_memory_utilization` if the job sets this key.
    pub calibration: Calibration,
    /// The time of scoring: during the rollout or after it.
    pub scoring: Scoring,
    /// The time at which the trainer fetches groups.
    pub delivery: GroupDelivery,
    /// The assignment of GPUs to generation and training.
    pub placement: SimulatedPlacement,
    /// The number of GPUs that train. With separate placement, these GPUs do not generate.
    pub training_gpus: u32,
    /// The layout of a copy of the model during training.
    pub training_layout: TrainingLayout,
    /// The dispatch of responses to instances.
    pub dispatch: Dispatch,
    /// The placement of the judge.
    pub judge: Judge,
    /// The mode of the sandbox's time limits.
    pub timeout: LimitMode,
    /// The recorded responses; `None` unless `lengths.source` is `trace`.
    pub trace: Option<Arc<SharedTrace>>,
    /// The length that no prompt exceeds, in tokens.
    pub longest_prompt: u32,
    /// The step whose Gantt chart is recorded.
    pub charted: GanttStep,
    /// The number of steps after the warm-up whose timeline the run with the first seed keeps.
    pub traced_steps: u64,
}

impl Job {
    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// In the same cases as [`build`](crate::recipe::schedule::ScheduleSection::build).
    pub fn schedule(&self) -> Result<Box<dyn Schedule>, RecipeError> {
        self.raw.schedule.build(ScheduleSize {
            prompts: self.raw.data.train_batch_size,
            responses: self.raw.rollout.n,
            slots: self.slots().into(),
            total_steps: Some(self.total_steps()),
        })
    }

    /// Returns `true` if every trained token is sampled by the weights that the update changes: `pipeline.staleness` is 0, and the schedule
    /// pauses no response, which a later step would continue.
    #[must_use]
    pub fn is_on_policy(&self) -> bool {
        let pauses = self.schedule().is_ok_and(|schedule| schedule.pauses());
        self.raw.pipeline.staleness == 0 && !pauses
    }

    /// Returns the files that the job reads, apart from the job file itself.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        let lengths = &self.raw.lengths;
        let trace = self.trace.iter().flat_map(|recording| &recording.trace.source.files);
        Inputs::of(trace.chain(&lengths.file).chain(&lengths.tokenizer))
    }

    /// Returns a summary of the recorded lengths, or `None` if the job has no trace.
    #[must_use]
    pub fn trace_summary(&self) -> Option<TraceSummary> {
        let SharedTrace { trace, correlation_estimate } = &**self.trace.as_ref()?;
        let max_response_length = self.raw.data.max_response_length;
        let longer = trace.rows.iter().filter(|row| row.tokens > max_response_length);
        Some(TraceSummary {
            trace: trace.source.to_string(),
            responses: trace.rows.len(),
            max_response_length,
            cut: longer.count(),
            prompt_length_column: trace.source.prompt_length_column.clone(),
            assumed: correlation_estimate.map(|correlation_estimate| {
                with_correlation(correlation_estimate, self.raw.lengths.correlation)
            }),
        })
    }

    /// Returns the correlation of the lengths of two responses to a prompt of a trace. It is `lengths.correlation` if the job sets it,
    /// otherwise the lower end of the interval that the trace allows, and 0 without such an interval.
    #[must_use]
    pub fn correlation(&self) -> f64 {
        let open = self
            .correlation_estimate()
            .map_or(0.0, |correlation_estimate| correlation_estimate.low);
        self.raw.lengths.correlation.unwrap_or(open)
    }

    fn correlation_estimate(&self) -> Option<CorrelationEstimate> {
        self.trace.as_ref()?.correlation_estimate
    }

    /// Returns the upper end of the interval of the correlation that the trace allows; `None` if the job sets a correlation, has no trace,
    /// or its trace determines the correlation.
    pub(super) fn upper_correlation(&self) -> Option<f64> {
        let CorrelationEstimate { low, high, .. } = self.correlation_estimate()?;
        (self.raw.lengths.correlation.is_none() && low < high).then_some(high)
    }

    /// Returns the job with `settings`, `key=value` each, applied to it and a single seed. It records neither a Gantt chart nor a timeline.
    ///
    /// # Errors
    /// If the result is not a valid job.
    pub(super) fn with_overrides(&self, settings: &[String]) -> anyhow::Result<Self> {
        let mut table = Table::try_from(&self.raw)?;
        overlay_all(&mut table, settings)?;
        let mut raw: RawJob = from_table(table)?;
        raw.schedule.schedules = self.raw.schedule.schedules.clone();
        raw.pipeline.placements = self.raw.pipeline.placements.clone();
        raw.sim.seeds = 1;
        Self::resolve(raw, self.trace.clone())
    }

    /// Returns the maximum number of tokens of a prompt with its response, which each instance has to hold.
    pub(super) fn longest_sequence(&self) -> u64 {
        u64::from(self.longest_prompt) + u64::from(self.raw.data.max_response_length)
    }

    /// Returns the maximum number of responses that the initial instances run at once; a full KV cache may lower it.
    fn slots(&self) -> u32 {
        let rollout = &self.raw.rollout;
        (self.rollout_gpus() / rollout.tensor_parallel).saturating_mul(rollout.max_num_seqs)
    }

    #[must_use]
    pub(super) fn cost(&self) -> Cost {
        Cost::new(self.hardware.clone(), self.model.clone(), self.calibration)
    }

    /// Returns the options of the sandbox's time limits.
    #[must_use]
    pub fn limits(&self) -> LimitOptions {
        let tasks = &self.raw.tasks;
        let defaults = LimitOptions::default();
        LimitOptions {
            mode: self.timeout,
            min_s: defaults.min_s.min(tasks.timeout_s),
            max_s: tasks.timeout_s,
            audit_share: tasks.audit_share.unwrap_or(defaults.audit_share),
            ..defaults
        }
    }

    /// Returns the number of simulated steps, warm-up included.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        self.raw.sim.warmup_steps + self.raw.sim.steps
    }

    /// Returns the number of prompts of an epoch: `data.prompts`, or `data.epoch_rounds` times the prompts of a round, or by default 16
    /// times the prompts of all steps.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        // By default an epoch is 16 times the run, because oversubscription reads ahead and DAPO drops prompts.
        let round = self.raw.data.train_batch_size as u64;
        let rounds = self.raw.data.epoch_rounds.unwrap_or(self.total_steps().saturating_mul(16));
        self.raw.data.prompts.unwrap_or(rounds.saturating_mul(round))
    }

    /// Returns the number of GPUs that generate at the beginning of a run: all GPUs, unless the placement is separate. A placement of the
    /// program may choose fewer.
    #[must_use]
    pub fn rollout_gpus(&self) -> u32 {
        match self.placement {
            SimulatedPlacement::Separate => self.raw.cluster.gpus - self.training_gpus,
            _ => self.raw.cluster.gpus,
        }
    }

    /// Returns the seeds of the runs.
    #[must_use]
    pub fn seeds(&self) -> Vec<u64> {
        let sim = &self.raw.sim;
        (sim.seed..).zip(0..sim.seeds).map(|(seed, _)| seed).collect()
    }

    /// Returns a one-line description of the job.
    #[must_use]
    pub fn title(&self) -> String {
        let RawJob { cluster, rollout, data, .. } = &self.raw;
        format!(
            "{} on {} x {}, {} prompts x {} responses a step, at most {} tokens",
            self.model.name,
            cluster.gpus,
            self.hardware.name,
            data.train_batch_size,
            rollout.n,
            data.max_response_length,
        )
    }
}

#[cfg(test)]
mod tests;
