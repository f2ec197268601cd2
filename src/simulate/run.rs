//! A run of a job: the pipeline of a live run with simulated stages, in virtual time.

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use anyhow::Context;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::{Nanos, VirtualClock};
use rollpacker_dataflow::step::PromptId;
use rollpacker_operators::curriculum::{Curriculum, CurriculumStage, SkippedPrompts};
use rollpacker_operators::overlap::Scoring;
use rollpacker_operators::prompts::{PromptRow, prompt_batch};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_simulated::cluster::{Cost, TrainingLayout};
use rollpacker_simulated::rollout::lengths::LengthModel;
use rollpacker_simulated::rollout::{self, SimulatedEngine, SimulatedEngineConfig};
use rollpacker_simulated::train::SimulatedTrainer;
use rollpacker_stages::reward::Router;

use super::gantt::{TimedTrainer, TrainingLog};
use super::job::Job;
use super::outcome::{Recorder, RunOutcome};
use super::placement::SimulatedPlacement;
use super::setup::InstanceLog;
use super::{placement, population, raw, tasks};
use crate::pipeline::{Pipeline, PipelineBuilder, PromptSource, RunTime};
use crate::placements::PlannerRule;

/// The number of prompts in a batch of the reader.
const PROMPTS_PER_BATCH: usize = 1024;

/// Maximum number of rounds, of `data.train_batch_size` prompts each, by which the reader may be ahead of the schedule.
const MAX_ROUNDS_AHEAD: usize = 4;

/// Runs `job` with `seed`. Runs with the same seed have bit-identical outcomes. Only the run with the job's first seed records a timeline.
///
/// # Errors
/// If the model does not fit, an option is out of bounds, or a stage fails.
pub fn run(job: &Job, seed: u64) -> anyhow::Result<RunOutcome> {
    let stages = Stages::new(job, seed)?;
    let log = TrainingLog::default();
    let is_first = job.seeds().first() == Some(&seed);
    let traced = if is_first { job.traced_steps } else { 0 };
    let recorder = Recorder::new(job.raw.sim.warmup_steps, job.charted, traced, log.clone());
    let recorder = Rc::new(RefCell::new(recorder));
    let instances = InstanceLog::default();
    let trainer = stages.trainer(job, log);
    stages.builder(job, trainer, &instances)?.build()?.run(recorder.clone())?;
    let outcome = recorder.borrow_mut().take();
    Ok(RunOutcome { instances: instances.take(), ..outcome })
}

/// Builds the pipeline that [`run`] runs. The caller runs it with an observer of its own, for example to record the decisions of each step.
///
/// # Errors
/// If the model does not fit, an option is out of bounds, or a stage cannot be built.
pub fn pipeline(job: &Job, seed: u64) -> anyhow::Result<Pipeline> {
    let stages = Stages::new(job, seed)?;
    let trainer = stages.trainer(job, TrainingLog::default());
    Ok(stages.builder(job, trainer, &InstanceLog::default())?.build()?)
}

/// The parts that the simulated stages of a run share.
pub(super) struct Stages {
    seed: u64,
    pub(super) clock: VirtualClock,
    cost: Cost,
    layout: TrainingLayout,
    lengths: Arc<dyn LengthModel>,
    router: Router,
}

impl Stages {
    pub(super) fn new(job: &Job, seed: u64) -> anyhow::Result<Self> {
        let clock = VirtualClock::default();
        let calibration = job.calibration;
        let lengths = population::lengths(job, seed)?;
        Ok(Self {
            seed,
            cost: job.cost(),
            layout: job.training_layout,
            router: tasks::router(job, seed, &calibration, &lengths, &clock),
            lengths,
            clock,
        })
    }

    pub(super) fn builder(
        self,
        job: &Job,
        trainer: TrainerThread,
        instances: &InstanceLog,
    ) -> anyhow::Result<PipelineBuilder> {
        let placement = instances.count_rounds(placement::policy(job)?, job.raw.sim.warmup_steps);
        let raw = &job.raw;
        let builder = Pipeline::builder(
            PromptSource::Inline(Box::new(prompts(job, self.lengths.clone()))),
            job.schedule()?,
            self.engine(job)?,
            self.router,
            Rc::new(trainer),
            raw.data.max_response_length,
        )
        .curriculum(curriculum(job, self.seed)?)
        .prompts_ahead(MAX_ROUNDS_AHEAD * raw.data.train_batch_size)
        .warmup_steps(raw.sim.warmup_steps)
        .placement(placement)
        .devices(raw.cluster.gpus)
        .limit(tasks::limit(job, self.seed)?)
        .scoring(job.scoring)
        .delivery(job.delivery)
        .staleness(raw.pipeline.staleness)
        .time(RunTime::Virtual(self.clock));
        Ok(builder)
    }

    fn trainer(&self, job: &Job, log: TrainingLog) -> TrainerThread {
        let devices = job.training_gpus;
        let (cost, lengths) = (self.cost.clone(), self.lengths.clone());
        let trainer =
            SimulatedTrainer::new(cost, self.layout, devices, lengths, self.clock.clone());
        let logged = TimedTrainer { trainer, clock: Arc::new(self.clock.clone()), log };
        TrainerThread::in_virtual_time(self.clock.clone(), Box::new(logged))
    }

    fn engine(&self, job: &Job) -> anyhow::Result<SimulatedEngine> {
        let rollout = &job.raw.rollout;
        let config = SimulatedEngineConfig {
            max_running: rollout.max_num_seqs,
            dispatch: match job.dispatch {
                raw::Dispatch::RoundRobin => rollout::Dispatch::RoundRobin,
                raw::Dispatch::PromptChunks => rollout::Dispatch::PromptChunks,
                raw::Dispatch::LeastLoaded => rollout::Dispatch::LeastLoaded,
            },
            hand_out: match rollout.hand_out {
                raw::HandOut::Together => rollout::HandOut::Together,
                raw::HandOut::Streamed => rollout::HandOut::Streamed,
            },
            collect: collect(job),
            report_interval: Nanos::from_secs_f64(rollout.report_interval_s),
            slowdown: tasks::slowdown(job, self.cost.calibration()),
            kv_transfer_bandwidth: placement::kv_transfer_bandwidth(job),
            ..SimulatedEngineConfig::new(placement::initial_placement(job))
        };
        let (cost, lengths) = (self.cost.clone(), self.lengths.clone());
        SimulatedEngine::new(config, cost, lengths, self.clock.clone())
            .context("the rollout cannot start")
    }
}

fn curriculum(job: &Job, seed: u64) -> anyhow::Result<Option<CurriculumStage>> {
    let Some(options) = job.raw.data.curriculum else { return Ok(None) };
    let curriculum = Curriculum::new(options, seed).context("data.curriculum")?;
    Ok(Some(CurriculumStage { curriculum, skipped: SkippedPrompts::default() }))
}

/// Returns the way in which the engine reports completions.
///
/// If no decision, placement or score depends on a single completion before the round has ended, the engine reports all responses of a
/// round together, which saves waking the pipeline for each response.
fn collect(job: &Job) -> rollout::Collect {
    let waits_for_all = job.raw.schedule.name == "sync" && job.scoring == Scoring::AfterRollout;
    let is_placed_by_rounds = match job.placement {
        SimulatedPlacement::Colocated => job.raw.planner.rule == PlannerRule::Fixed,
        SimulatedPlacement::Separate => true,
        SimulatedPlacement::Stream | SimulatedPlacement::Custom(_) => false,
    };
    if waits_for_all && is_placed_by_rounds {
        rollout::Collect::Together
    } else {
        rollout::Collect::Streamed
    }
}

/// Returns an endless sequence of batches of prompts, epoch after epoch, in the order of the rows. The only token id of a prompt is its
/// row. The length model determines its `prompt_length`.
fn prompts(job: &Job, lengths: Arc<dyn LengthModel>) -> impl Iterator<Item = Batch> + 'static {
    let rows = job.prompts();
    (0..).step_by(PROMPTS_PER_BATCH).map(move |first| {
        let row = |id: u64| {
            let row = id % rows;
            let traits = lengths.prompt(row);
            let domain = traits.domain.to_string();
            PromptRow {
                prompt: PromptId(id),
                epoch: u32::try_from(id / rows).unwrap_or(u32::MAX),
                row,
                prompt_ids: vec![i32::try_from(row).unwrap_or(i32::MAX)],
                prompt_length: traits.prompt_length,
                data_source: domain.clone(),
                domain,
                messages: "[]".to_owned(),
                ground_truth: None,
                extra_info: None,
            }
        };
        prompt_batch(&(first..first + PROMPTS_PER_BATCH as u64).map(row).collect::<Vec<_>>())
    })
}
