//! Jobs: what is simulated, checked.

use std::path::Path;
use std::sync::Arc;

use rollpacker_datasets::{Trace, TraceOptions};
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::reward::{LimitOptions, Timeout};
use rollpacker_operators::schedule::Builtin;
use rollpacker_stages::cluster::{Calibration, Hardware, ModelShape, TrainingLayout};
use rollpacker_stages::model::tokenizer::Tokenizer;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::layout;
use super::outcome::Charted;
use super::raw::{Dispatch, Judge, Lengths, Pipeline, Placement, Planner, RawJob, Source, Stream};
use super::raw::{HandOut, Layout};
use crate::recipe::RecipeError;
use crate::recipe::bounds::{at_least, bound, within};
use crate::recipe::keys::nearest;
use crate::recipe::raw;
use crate::recipe::schedule::{self, Section, Size};

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
    /// Which instance a response goes to.
    pub dispatch: Dispatch,
    /// Where the judge runs.
    pub judge: Judge,
    /// How long a sandbox waits.
    pub timeout: Timeout,
    /// The recorded responses, if lengths are those.
    pub trace: Option<Arc<Trace>>,
    /// Which step has its Gantt chart kept.
    pub charted: Charted,
}

impl RawJob {
    /// The `sync` job to which a speed-up is over: the same cluster, model, data and steps.
    #[must_use]
    pub fn baseline(&self) -> Self {
        let mut raw = self.clone();
        raw.schedule = Section { name: "sync".to_owned(), options: Table::new() };
        raw.pipeline = Pipeline::default();
        raw.stream = Stream::default();
        raw.planner = Planner::default();
        raw.rollout.dispatch = None;
        raw.rollout.hand_out = HandOut::Together;
        raw.tasks.judge_placement = None;
        raw.tasks.timeout = None;
        raw
    }

    /// Whether the baseline of a job has an override as the job has it.
    pub(super) fn is_kept(setting: &str) -> bool {
        const LEFT: [&str; 8] = [
            "schedule.",
            "pipeline.",
            "stream.",
            "planner.",
            "rollout.dispatch=",
            "rollout.hand_out=",
            "tasks.judge_placement=",
            "tasks.timeout=",
        ];
        !LEFT.iter().any(|left| setting.starts_with(left))
    }

    fn check(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, data, tasks, stream, sim, .. } = self;
        at_least("cluster.gpus", cluster.gpus, 1)?;
        at_least("cluster.controllers", cluster.controllers, 1)?;
        at_least("cluster.gpus_per_server", cluster.gpus_per_server.unwrap_or(1), 1)?;
        at_least("rollout.n", rollout.n, 1)?;
        at_least("rollout.tensor_parallel", rollout.tensor_parallel, 1)?;
        at_least("rollout.max_num_seqs", rollout.max_num_seqs, 1)?;
        let share = |share: f64| share > 0.0 && share <= 1.0;
        let utilization = rollout.gpu_memory_utilization.unwrap_or(1.0);
        within("rollout.gpu_memory_utilization", utilization, share, "in (0, 1]")?;
        let interval = rollout.report_interval_s;
        let expected = "at least 0, at most 60";
        within("rollout.report_interval_s", interval, |s| (0.0..=60.0).contains(&s), expected)?;
        at_least("data.epoch_rounds", data.epoch_rounds.unwrap_or(1), 1)?;
        at_least("training.tensor_parallel", training.tensor_parallel, 1)?;
        at_least("training.pipeline_parallel", training.pipeline_parallel, 1)?;
        at_least("training.context_parallel", training.context_parallel, 1)?;
        at_least("data.train_batch_size", data.train_batch_size, 1)?;
        at_least("data.max_response_length", data.max_response_length, 1)?;
        at_least("data.prompts", data.prompts.unwrap_or(1), 1)?;
        for (key, value) in
            [("tasks.math", tasks.math), ("tasks.code", tasks.code), ("tasks.judge", tasks.judge)]
        {
            within(key, value, |share| share >= 0.0, "a finite number, at least 0")?;
        }
        within(
            "tasks.math",
            tasks.math + tasks.code + tasks.judge,
            |sum| sum > 0.0,
            "more than 0 with the other shares",
        )?;
        at_least("tasks.sandbox_slots", tasks.sandbox_slots.unwrap_or(1), 1)?;
        within(
            "tasks.timeout_s",
            tasks.timeout_s,
            |s| s > 0.0 && s <= 86_400.0,
            "above 0, at most 86400",
        )?;
        within(
            "tasks.audit_share",
            tasks.audit_share,
            |share| (0.0..=1.0).contains(&share),
            "in [0, 1]",
        )?;
        for (key, value) in [
            ("stream.from", stream.from),
            ("stream.to", stream.to),
            ("stream.every", stream.every),
            ("stream.keep", stream.keep),
            ("stream.headroom", stream.headroom),
        ] {
            within(key, value, share, "in (0, 1]")?;
        }
        within("sim.steps", sim.steps as f64, |n| (1.0..=1e9).contains(&n), "1 to 1e9")?;
        within("sim.warmup_steps", sim.warmup_steps as f64, |n| n <= 1e9, "at most 1e9")?;
        at_least("sim.seeds", sim.seeds, 1)?;
        self.check_layout()
    }

    /// Groups of GPUs divide what they are groups of.
    fn check_layout(&self) -> Result<(), RecipeError> {
        let Self { cluster, rollout, training, .. } = self;
        let whole = |key, gpus: u64, expected| match u64::from(cluster.gpus) % gpus {
            0 => Ok(()),
            _ => Err(bound(key, format!("{expected} cluster.gpus = {}", cluster.gpus), gpus)),
        };
        whole("rollout.tensor_parallel", rollout.tensor_parallel.into(), "a divisor of")?;
        whole(
            "training.tensor_parallel",
            training.replica(),
            "a product with pipeline and context that divides",
        )
    }
}

impl Job {
    /// Reads and checks a job.
    ///
    /// # Errors
    /// If the file cannot be used; the error names the key, or the trace's file, row and column.
    pub fn read(path: &Path, overrides: &[String]) -> anyhow::Result<Self> {
        let table = crate::recipe::read_table(path, overrides)?;
        Self::resolve(crate::recipe::from_table(table)?, None)
    }

    /// Checks a job. The trace that it names is read unless it is handed over.
    ///
    /// # Errors
    /// As [`read`](Self::read).
    pub fn resolve(raw: RawJob, trace: Option<Arc<Trace>>) -> anyhow::Result<Self> {
        raw.check()?;
        let habits = Habits::of(&raw.schedule.name);
        let placement = raw.pipeline.placement.unwrap_or(habits.placement);
        let overlap = raw::Pipeline {
            reward: raw.pipeline.reward,
            gradient: raw.pipeline.gradient.clone(),
            max_groups: raw.pipeline.max_groups,
        };
        let trace = match (raw.lengths.source, trace) {
            (Source::Trace, None) => Some(Arc::new(read_trace(&raw.lengths)?)),
            (Source::Trace, read) => read,
            _ => None,
        };
        let job = Self {
            hardware: hardware(&raw)?,
            model: model(&raw)?,
            calibration: calibration(&raw)?,
            scoring: overlap.scoring(&raw.schedule)?,
            fetch: overlap.fetch(&raw.schedule)?,
            placement,
            training_gpus: training_gpus(&raw, placement)?,
            dispatch: raw.rollout.dispatch.unwrap_or(habits.dispatch),
            judge: raw.tasks.judge_placement.unwrap_or(habits.judge),
            timeout: raw.tasks.timeout.unwrap_or(habits.timeout),
            trace,
            charted: Charted::None,
            raw,
        };
        schedule::check_scoring(&job.schedule()?, job.scoring)?;
        Ok(job)
    }

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

    /// How the sandbox's time limits are set.
    #[must_use]
    pub fn limits(&self) -> LimitOptions {
        let tasks = &self.raw.tasks;
        let defaults = LimitOptions::default();
        LimitOptions {
            timeout: self.timeout,
            min_timeout_s: defaults.min_timeout_s.min(tasks.timeout_s),
            max_timeout_s: tasks.timeout_s,
            audit_share: tasks.audit_share,
            ..defaults
        }
    }

    /// Responses that the engine runs at once, unless its KV cache is full before.
    fn slots(&self) -> u32 {
        let rollout = &self.raw.rollout;
        (self.rollout_gpus() / rollout.tensor_parallel).saturating_mul(rollout.max_num_seqs)
    }

    /// How a replica of the trainer is laid out.
    #[must_use]
    pub fn training_layout(&self) -> TrainingLayout {
        let training = &self.raw.training;
        let written = TrainingLayout {
            tensor_parallel: training.tensor_parallel,
            pipeline: training.pipeline_parallel,
            context: training.context_parallel,
        };
        match training.layout {
            Layout::Written => written,
            Layout::Planned => {
                let longest = self.raw.data.max_response_length;
                layout::planned(&self.hardware, &self.model, written, longest)
            }
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

/// How the authors of a schedule run it.
struct Habits {
    placement: Placement,
    dispatch: Dispatch,
    judge: Judge,
    timeout: Timeout,
}

impl Habits {
    fn of(schedule: &str) -> Self {
        let (judge, timeout) = match schedule {
            "sync" | "fused" => (Judge::Dedicated, Timeout::Fixed),
            _ => (Judge::Colocated, Timeout::Adaptive),
        };
        let dispatch = match schedule {
            "sync" => Dispatch::PromptChunks,
            _ => Dispatch::RoundRobin,
        };
        let placement = match schedule {
            "tail_batching" => Placement::Stream,
            "frontier_group" => Placement::Separate,
            _ => Placement::Colocated,
        };
        Self { placement, dispatch, judge, timeout }
    }
}

fn training_gpus(raw: &RawJob, placement: Placement) -> Result<u32, RecipeError> {
    if raw.pipeline.staleness > 0 && placement != Placement::Separate {
        let expected =
            "0, unless pipeline.placement = separate: steps that overlap need GPUs of their own";
        return Err(bound("pipeline.staleness", expected, raw.pipeline.staleness));
    }
    let (key, gpus) = ("pipeline.training_gpus", raw.cluster.gpus);
    if placement != Placement::Separate {
        let expected = "pipeline.placement = separate beside it";
        return raw
            .pipeline
            .training_gpus
            .map_or(Ok(gpus), |found| Err(bound(key, expected, found)));
    }
    let (instance, replica) = (raw.rollout.tensor_parallel, raw.training.replica());
    let half = u64::from(gpus / 2) / replica * replica;
    let training = raw.pipeline.training_gpus.unwrap_or(u32::try_from(half).unwrap_or(0));
    let fits = training > 0 && training < gpus;
    let whole = u64::from(training).is_multiple_of(replica);
    if fits && whole && (gpus - training).is_multiple_of(instance) {
        return Ok(training);
    }
    let expected = format!(
        "more than 0 and less than cluster.gpus = {gpus}, whole replicas of {replica} and leaving whole instances of {instance}"
    );
    Err(bound(key, expected, training))
}

fn hardware(raw: &RawJob) -> Result<Hardware, RecipeError> {
    let key = "cluster.hardware";
    let mut hardware: Hardware = match &raw.cluster.hardware {
        Value::String(name) => {
            Hardware::built_in(name).ok_or_else(|| unknown(key, name, &Hardware::names()))?
        }
        table => read_value(key, table.clone())?,
    };
    if let Some(gpus) = raw.cluster.gpus_per_server {
        hardware.devices_per_server = gpus;
    }
    if raw.rollout.tensor_parallel > hardware.devices_per_server {
        let expected = format!("at most the {} GPUs of a server", hardware.devices_per_server);
        return Err(bound("rollout.tensor_parallel", expected, raw.rollout.tensor_parallel));
    }
    Ok(hardware)
}

fn model(raw: &RawJob) -> Result<ModelShape, RecipeError> {
    match &raw.model.shape {
        Some(shape) => read_value("model.shape", Value::Table(shape.clone())),
        None => ModelShape::built_in(&raw.model.name)
            .ok_or_else(|| unknown("model.name", &raw.model.name, &ModelShape::names())),
    }
}

fn calibration(raw: &RawJob) -> Result<Calibration, RecipeError> {
    let mut calibration: Calibration = match &raw.calibration {
        Some(table) => read_value("calibration", Value::Table(table.clone()))?,
        None => Calibration::default(),
    };
    if let Some(share) = raw.rollout.gpu_memory_utilization {
        calibration.memory_share = share;
    }
    let controllers = f64::from(raw.cluster.controllers);
    for serial in [
        &mut calibration.dispatch_interval,
        &mut calibration.scoring_interval,
        &mut calibration.padding_per_token,
    ] {
        *serial /= controllers;
    }
    Ok(calibration)
}

/// A name that is none of those that are known.
fn unknown(key: &'static str, name: &str, names: &[&'static str]) -> RecipeError {
    let near = nearest(name, names.iter().copied());
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    bound(key, format!("one of {}, or a table{hint}", names.join(", ")), format!("`{name}`"))
}

/// A value that a crate below defines.
pub(super) fn read_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, RecipeError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = if path == "." { String::new() } else { format!(".{path}") };
        let reason = error.inner().to_string();
        RecipeError::Type {
            key: format!("{key}{inner}"),
            reason: reason.lines().next().unwrap_or_default().to_owned(),
        }
    })
}

fn read_trace(lengths: &Lengths) -> anyhow::Result<Trace> {
    let expected = "a file or folder beside lengths.source = trace";
    let file = lengths.file.as_ref().ok_or_else(|| bound("lengths.file", expected, "nothing"))?;
    let tokenizer = lengths.tokenizer.as_deref().map(Tokenizer::from_folder).transpose()?;
    let count = tokenizer.map(|tokenizer| {
        move |text: &str| {
            tokenizer.encode(text).map(|ids| ids.len()).map_err(|error| error.to_string())
        }
    });
    Ok(Trace::read(
        file,
        &TraceOptions {
            length_column: lengths.length_column.clone(),
            prompt_column: lengths.prompt_column.clone(),
            count_tokens: count.as_ref().map(|count| count as _),
        },
    )?)
}

#[cfg(test)]
mod tests;
