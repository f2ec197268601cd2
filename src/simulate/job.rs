//! Jobs: what is simulated, checked.

use std::sync::Arc;

use rollpacker_files::Inputs;
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::reward::{LimitOptions, Timeout};
use rollpacker_operators::schedule::Builtin;
use rollpacker_stages::cluster::{Calibration, Cost, Hardware, ModelShape, TrainingLayout};
use rollpacker_stages::rollout::simulated::lengths::Likeness;
use toml::{Table, Value};

use super::outcome::Charted;
use super::raw::{Dispatch, Judge, Placement, RawJob};
use super::trace::Recording;
use crate::recipe::schedule::{Section, Size};
use crate::recipe::{RecipeError, from_table, overlay};

/// A job, checked.
///
/// What `[pipeline]`, `rollout.dispatch`, `tasks.judge_placement` and `tasks.timeout` leave out is what the authors of the schedule do:
/// `sync` is veRL, which dispatches chunks of prompts, scores when the rollout has ended, and trains on whole steps, on GPUs that generate
/// and train in turn; the others dispatch by response and score each as it ends; `tail_batching` has the stream trainer, and
/// `frontier_group` GPUs of its own for each stage. The judge has GPUs of its own and the sandbox a fixed time limit in `sync` and `fused`;
/// the others have RollPacker's reward scheduler.
#[derive(Clone, Debug)]
pub struct Job {
    /// What was written, defaults filled in.
    pub raw: RawJob,
    /// The devices.
    pub hardware: Hardware,
    /// The model.
    pub model: ModelShape,
    /// The constants of the cost model, the controller's work shared among as many as there are.
    pub calibration: Calibration,
    /// When responses are scored.
    pub scoring: Scoring,
    /// When groups are trained on.
    pub fetch: Fetch,
    /// Which GPUs generate and which train.
    pub placement: Placement,
    /// GPUs that train, where they are others than those that generate.
    pub training_gpus: u32,
    /// How a copy of the model is laid out while it is trained.
    pub training_layout: TrainingLayout,
    /// Which instance a response goes to.
    pub dispatch: Dispatch,
    /// Where the judge runs.
    pub judge: Judge,
    /// How long a sandbox waits.
    pub timeout: Timeout,
    /// The recorded responses, if lengths are those.
    pub trace: Option<Arc<Recording>>,
    /// The length that no prompt exceeds, tokens.
    pub longest_prompt: u32,
    /// Which step has its Gantt chart kept.
    pub charted: Charted,
}

impl Job {
    /// The schedule, at its beginning.
    ///
    /// # Errors
    /// If its options are out of bounds.
    pub fn schedule(&self) -> Result<Builtin, RecipeError> {
        self.raw.schedule.build(Size {
            prompts: self.raw.data.train_batch_size,
            responses: self.raw.rollout.n,
            slots: self.slots().into(),
            total_steps: Some(self.total_steps()),
        })
    }

    /// Whether every trained token is sampled by the weights that are updated: no staleness, and no response that goes on in a later
    /// step.
    #[must_use]
    pub fn is_on_policy(&self) -> bool {
        let Section { name, options } = &self.raw.schedule;
        let resumes = name == "partial"
            || options.get("mode").and_then(Value::as_str) == Some("partial")
            || options.get("keep_partial").and_then(Value::as_bool) == Some(true);
        self.raw.pipeline.staleness == 0 && !resumes
    }

    /// Returns the files that the job reads, apart from its own.
    #[must_use]
    pub fn inputs(&self) -> Inputs {
        let lengths = &self.raw.lengths;
        let trace = self.trace.iter().flat_map(|recording| &recording.trace.source.files);
        Inputs::of(trace.chain(&lengths.file).chain(&lengths.tokenizer))
    }

    /// Returns the correlation of the lengths of two responses to a prompt of the trace: as written, or the lower end of what is open.
    #[must_use]
    pub fn correlation(&self) -> f64 {
        let open = self.likeness().map_or(0.0, |likeness| likeness.low);
        self.raw.lengths.correlation.unwrap_or(open)
    }

    fn likeness(&self) -> Option<Likeness> {
        self.trace.as_ref()?.likeness
    }

    /// The upper end of what the trace leaves open, unless the job sets a correlation.
    pub(super) fn upper_correlation(&self) -> Option<f64> {
        let Likeness { low, high, .. } = self.likeness()?;
        (self.raw.lengths.correlation.is_none() && low < high).then_some(high)
    }

    /// The job with settings laid over it, run with one seed.
    ///
    /// # Errors
    /// If it is no valid job.
    pub(super) fn under(&self, settings: &[String]) -> anyhow::Result<Self> {
        let mut table = Table::try_from(&self.raw)?;
        settings.iter().try_for_each(|setting| overlay(&mut table, setting))?;
        let mut raw: RawJob = from_table(table)?;
        raw.sim.seeds = 1;
        Self::resolve(raw, self.trace.clone())
    }

    /// Tokens of a longest prompt and response, which each instance has to hold.
    pub(super) fn longest_sequence(&self) -> u64 {
        u64::from(self.longest_prompt) + u64::from(self.raw.data.max_response_length)
    }

    /// Responses that the engine runs at once, unless its KV cache is full before.
    fn slots(&self) -> u32 {
        let rollout = &self.raw.rollout;
        (self.rollout_gpus() / rollout.tensor_parallel).saturating_mul(rollout.max_num_seqs)
    }

    /// How long its work takes.
    #[must_use]
    pub(super) fn cost(&self) -> Cost {
        Cost::new(self.hardware.clone(), self.model.clone(), self.calibration)
    }

    /// How the sandbox's time limits are set.
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

    /// Steps that are run, those that do not count included.
    #[must_use]
    pub fn total_steps(&self) -> u64 {
        self.raw.sim.warmup_steps + self.raw.sim.steps
    }

    /// Prompts of an epoch.
    #[must_use]
    pub fn prompts(&self) -> u64 {
        // Oversubscription reads ahead, and DAPO leaves prompts out.
        let round = self.raw.data.train_batch_size as u64;
        let rounds = self.raw.data.epoch_rounds.unwrap_or(self.total_steps().saturating_mul(16));
        self.raw.data.prompts.unwrap_or(rounds.saturating_mul(round))
    }

    /// GPUs that generate at the beginning of a round.
    #[must_use]
    pub fn rollout_gpus(&self) -> u32 {
        match self.placement {
            Placement::Separate => self.raw.cluster.gpus - self.training_gpus,
            _ => self.raw.cluster.gpus,
        }
    }

    /// The seeds to run it with.
    #[must_use]
    pub fn seeds(&self) -> Vec<u64> {
        let sim = &self.raw.sim;
        (sim.seed..).zip(0..sim.seeds).map(|(seed, _)| seed).collect()
    }

    /// What it is, in a line.
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
