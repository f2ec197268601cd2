//! The run of a session: from its initial policy to the written model.

use super::Session;
use super::placement::{self, LoggedPolicy};
use crate::engine_observer::EngineObserver;
use crate::engines::{ServersUnavailable, StartedEngine};
use crate::lifetime::{EndReason, WallTime};
use crate::pipeline::{Pipeline, PipelineBuilder, PromptSource, RunStart, RunTime};
use crate::run_result::{RunResult, SkippedCounts};
use crate::validation::validate;
use anyhow::{Context, Error, ensure};
use rollpacker_dataflow::cluster::WorkerHandle;
use rollpacker_dataflow::fault::{FaultKind, WithOrigin};
use rollpacker_dataflow::snapshot::{RestoredSnapshot, SnapshotPlan};
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_operators::curriculum::{Curriculum, CurriculumStage};
use rollpacker_operators::report::Observer;
use rollpacker_operators::reward::AdaptiveLimits;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::schedule::snapshot::{LastPrompt, last_prompt};
use rollpacker_operators::trainer::TrainerThread;
use rollpacker_operators::validate::ValidatorThread;
use rollpacker_stages::rollout::{Policy, RolloutEngine};
use rollpacker_stages::train::Metrics;
use rollpacker_torch::rollout::live::LiveIterations;
use std::path::Path;
use std::rc::Rc;

/// Number of batches of `data.train_batch_size` prompts that the reader may be ahead of the schedule. A schedule that needs more prompts
/// raises the limit.
const MAX_ROUNDS_AHEAD: usize = 4;

impl Session {
    /// Trains to the end of the recipe, until a requested stop, or until the next step may exceed `trainer.max_wall_time`, and writes the
    /// model to `folder`.
    ///
    /// First [checks the data](Self::check_data). Reports each step to `observer`, and the metrics of the validation before the first step,
    /// if the recipe requires it, to `on_warm_start`.
    ///
    /// # Errors
    /// If the data or a setting cannot be used, a stage fails, no prompt could be trained on, or the profile or the model cannot be
    /// written. The message of a stage's fault names the operator, the step and the response.
    pub fn train(
        self,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        on_warm_start: impl FnOnce(&Metrics),
    ) -> anyhow::Result<RunResult> {
        self.train_worker(None, stop, folder, observer, on_warm_start)
    }

    /// Trains like [`Session::train`], as one worker of several if `handle` is given.
    ///
    /// Each worker has its own engine instances and a replica of the trainer. The first worker reads the prompts, decides, validates,
    /// reports to its observer and writes the model. The observers of the other workers receive no steps, and their results have default
    /// values.
    ///
    /// The order of the steps matters. A resumed run takes its initial policies from the snapshot. A new run publishes the initial weights
    /// and, with `trainer.val_before_train`, validates them before the training engine starts. After the pipeline, only the first worker
    /// continues: it writes the profile, validates the last policy and writes the model. A run that ended early skips this validation,
    /// because it will be resumed and the process may have little time left.
    ///
    /// # Errors
    /// Returns the errors of [`Session::train`], for any worker.
    pub fn train_worker(
        self,
        handle: Option<WorkerHandle>,
        stop: &Stop,
        folder: &Path,
        observer: impl Observer + 'static,
        on_warm_start: impl FnOnce(&Metrics),
    ) -> anyhow::Result<RunResult> {
        self.inputs.check_engine()?;
        self.check_data()?;
        let is_leader = handle.as_ref().is_none_or(|handle| handle.index() == 0);
        if is_leader {
            self.limit_wall_time(stop);
        }
        let resumed = self.restored_snapshot()?;
        let workers = handle.as_ref().map_or(1, WorkerHandle::peers);
        let trainer = Rc::new(self.inputs.start_trainer(workers)?);
        let (validator, validated_on) = self.inputs.validator(is_leader)?.unzip();
        let (begin, warm_start) = match resumed {
            Some(resumed) => (RunStart::Resumed(resumed), None),
            None => {
                let initial = trainer
                    .publish_initial()
                    .map_err(Error::msg)
                    .context("publishing the initial weights")?;
                let tried = validator.as_ref().filter(|_| is_leader);
                let warm_start = self.warm_start(tried, &initial)?;
                (RunStart::Initial(initial), warm_start)
            }
        };
        if let Some(metrics) = &warm_start {
            on_warm_start(metrics);
        }
        let every = if is_leader { self.inputs.recipe.test_freq } else { 0 };
        let validator_of_steps = validator.clone().map(|validator| (every, validator));
        self.run(handle, observer, &trainer, validator_of_steps, begin, stop)?;
        let validation_prompts = validated_on.unwrap_or_default();
        let started = RunResult { warm_start, validation_prompts, ..RunResult::default() };
        if is_leader {
            self.finish(started, &trainer, validator, stop, folder)
        } else {
            Ok(started)
        }
    }

    /// Starts the engine and runs the pipeline to its end.
    fn run(
        &self,
        handle: Option<WorkerHandle>,
        observer: impl Observer + 'static,
        trainer: &Rc<TrainerThread>,
        validator: Option<(u64, Rc<ValidatorThread>)>,
        begin: RunStart,
        stop: &Stop,
    ) -> anyhow::Result<()> {
        let StartedEngine { engine, measurements, server_metrics } =
            self.inputs.engine.start(self.inputs.training_engine()?)?;
        let workers = handle.as_ref().map_or(1, WorkerHandle::peers);
        let placement = placement::policy(&self.inputs.recipe, workers, self.monitor.clone())?;
        let (live, colocated_use) = measurements.map(|all| (all.live, all.colocated)).unzip();
        let snapshots = self.snapshot_plan(server_metrics.is_some());
        let observer = EngineObserver {
            observer,
            server_metrics,
            monitor: self.monitor.clone(),
            live: move || live.as_ref().map(LiveIterations::take).unwrap_or_default(),
            colocated_use: colocated_use.flatten(),
            placement: placement.as_ref().map(LoggedPolicy::log),
        };
        let pipeline = self.pipeline(engine, placement, trainer, validator, begin, stop)?;
        let pipeline = pipeline.snapshots(snapshots).build()?;
        let ran = match handle {
            None => pipeline.run(observer),
            Some(handle) => pipeline.run_worker(handle, observer),
        };
        ran.map_err(|error| match error.kind {
            FaultKind::Unavailable => anyhow::Error::from(error).context(ServersUnavailable),
            FaultKind::BadInput | FaultKind::Failure => error.into(),
        })
    }

    /// Writes the profile, validates the last policy, writes the model to `folder`, and adds the results to `started`.
    fn finish(
        &self,
        started: RunResult,
        trainer: &TrainerThread,
        validator: Option<Rc<ValidatorThread>>,
        stop: &Stop,
        folder: &Path,
    ) -> anyhow::Result<RunResult> {
        if let Some(monitor) = &self.monitor {
            monitor.borrow().finish()?;
        }
        let overlong_prompts = self.overlong_prompts.count();
        let recipe = &self.inputs.recipe;
        let policy = trainer.policy().map_err(Error::msg).context("reading the last policy")?;
        let updates = policy.version;
        ensure!(
            updates > PolicyVersion(0) || stop.is_requested(),
            "no prompt could be trained on: {overlong_prompts} are longer than data.max_prompt_length, and the schedule has no quota for the others"
        );
        let ended = EndReason::of(stop, updates.0, recipe.run.total_training_steps);
        // Skip the validation of a run that ended early: it is validated when the resumed run ends, and the process may have little time
        // left.
        let validator = validator.filter(|_| ended == EndReason::Finished);
        let last = validator.map(|validator| validate(&validator, policy)).transpose()?;
        self.inputs.save(trainer, folder)?;
        let skipped = recipe.data.curriculum.map(|_| SkippedCounts::from(&self.skipped));
        Ok(RunResult { overlong_prompts, skipped, ended, last, ..started })
    }

    /// Returns the snapshot to resume from, or `None` for a new run. Restores the monitor of the profile from the snapshot.
    fn restored_snapshot(&self) -> anyhow::Result<Option<RestoredSnapshot>> {
        let Some(restored) = &self.inputs.snapshots.restored else { return Ok(None) };
        if let Some(monitor) = &self.monitor {
            monitor.borrow_mut().resume(restored)?;
        }
        Ok(Some(restored.clone()))
    }

    /// Validates the initial policy, if the recipe requires it.
    fn warm_start(
        &self,
        validator: Option<&Rc<ValidatorThread>>,
        initial: &Policy,
    ) -> anyhow::Result<Option<Metrics>> {
        let validator = validator.filter(|_| self.inputs.recipe.run.val_before_train);
        validator.map(|validator| validate(validator, initial.clone())).transpose()
    }

    /// Makes `stop` end the run before its wall-time limit.
    fn limit_wall_time(&self, stop: &Stop) {
        if let Some(limit) = self.inputs.recipe.max_wall_time {
            let time = WallTime::new(self.clock(), limit, self.inputs.recipe.staleness);
            stop.set_deadline_check(move |step| time.allows(step));
        }
    }

    fn pipeline(
        &self,
        engine: Box<dyn RolloutEngine>,
        placement: Option<LoggedPolicy>,
        trainer: &Rc<TrainerThread>,
        validator: Option<(u64, Rc<ValidatorThread>)>,
        begin: RunStart,
        stop: &Stop,
    ) -> anyhow::Result<PipelineBuilder> {
        let recipe = &self.inputs.recipe;
        let last = match &begin {
            RunStart::Initial(_) => None,
            RunStart::Resumed(restored) => last_prompt(restored)?,
        };
        let stages = &self.inputs.stages;
        let builder = Pipeline::builder(
            self.prompt_source(last),
            recipe.schedule()?,
            engine,
            stages.router.clone(),
            trainer.clone(),
            recipe.data.max_response_length,
        )
        .curriculum(self.curriculum()?)
        .prompts_ahead(MAX_ROUNDS_AHEAD * recipe.data.train_batch_size)
        .limit(AdaptiveLimits::new(recipe.reward.timeout, recipe.run.seed)?)
        .scoring(recipe.scoring)
        .advantage(self.inputs.advantage.clone())
        .reward_kl(recipe.reward_kl)
        .delivery(recipe.gradient)
        .validator(validator)
        .start(begin)
        .staleness(recipe.staleness)
        .deterministic(recipe.run.deterministic)
        .rewards(self.inputs.rewards.executor())
        .time(RunTime::Wall(stages.clock.clone()))
        .stop(stop.clone())
        .watchdog(self.inputs.watch.clone());
        let builder = match placement {
            Some(policy) => builder.placement(policy).devices(recipe.rollout.instances),
            None => builder,
        };
        Ok(builder)
    }

    /// Returns the plan of snapshots. With servers, the run may end because none is available. Operators therefore hold the state of the
    /// last complete step, so that it can be saved even then.
    fn snapshot_plan(&self, has_servers: bool) -> Option<SnapshotPlan> {
        let plan = self.inputs.snapshots.plan.clone()?;
        Some(if has_servers {
            SnapshotPlan { cadence: plan.cadence.with_held_states(), ..plan }
        } else {
            plan
        })
    }

    fn curriculum(&self) -> anyhow::Result<Option<CurriculumStage>> {
        let recipe = &self.inputs.recipe;
        let Some(options) = recipe.data.curriculum else { return Ok(None) };
        let curriculum =
            Curriculum::new(options, recipe.train_data.seed).context("data.curriculum")?;
        Ok(Some(CurriculumStage { curriculum, skipped: self.skipped.clone() }))
    }

    fn prompt_source(&self, last: Option<LastPrompt>) -> PromptSource {
        let reader =
            self.inputs.reader(self.inputs.train_data.clone(), self.overlong_prompts.clone());
        let epochs = self.inputs.recipe.run.total_epochs;
        PromptSource::Thread(Box::new(move |emitter| {
            Ok(reader.emit(epochs, last, emitter).map_err(WithOrigin::from)?)
        }))
    }
}
