//! The construction of a pipeline: the stages that every run needs, and settings with defaults.

use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::bridge::{Executor, TaskRuntime};
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::fault::{Fault, HasOrigin, Origin};
use rollpacker_dataflow::feedback::MAX_STALENESS;
use rollpacker_dataflow::snapshot::SnapshotPlan;
use rollpacker_dataflow::watchdog::WatchdogSettings;
use rollpacker_operators::advantage::{Estimator, Grpo, KlController};
use rollpacker_operators::curriculum::CurriculumStage;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_operators::reward::TimeLimit;
use rollpacker_operators::schedule::Schedule;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_operators::trainer::{TrainerCallError, TrainerThread};
use rollpacker_operators::validate::ValidatorThread;
use rollpacker_stages::reward::{Limits, Router};
use rollpacker_stages::rollout::RolloutEngine;

use super::{Pipeline, PromptSource, RewardThreads, RunStart, RunTime, Settings, Stages};

/// A [`Pipeline`] under construction; see [`Pipeline::builder`].
#[must_use = "`build` returns the pipeline"]
pub struct PipelineBuilder {
    stages: Stages,
    settings: Settings,
    start: Option<RunStart>,
    rewards: Option<Executor>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            prompts_ahead: 64,
            warmup_steps: 0,
            curriculum: None,
            placement: None,
            devices: None,
            limit: Box::new(Limits::default()),
            scoring: Scoring::default(),
            advantage: Grpo::default().into(),
            reward_kl: None,
            delivery: GroupDelivery::default(),
            validator: None,
            snapshots: None,
            staleness: 0,
            deterministic: false,
            time: RunTime::Wall(Arc::new(WallClock::start())),
            stop: Stop::default(),
            watchdog: Some(WatchdogSettings::default()),
        }
    }
}

impl Pipeline {
    /// Returns a builder with the stages that every run needs. All other settings have defaults.
    ///
    /// `prompts` is the source of the prompts, `schedule` decides which prompts and responses each round launches and admits, `engine`
    /// generates responses, `router` scores them by data source, and `trainer` trains. `max_response_length` is the maximum length of a
    /// response in tokens, relative to which the metrics measure length shares.
    ///
    /// `examples/3_advantage.rs` is a complete program:
    ///
    /// ```
    /// use std::rc::Rc;
    ///
    /// use rollpacker_dataflow::BoxError;
    /// use rollpacker_operators::advantage::Rloo;
    /// use rollpacker_operators::schedule::{Synchronous, sync};
    /// use rollpacker_operators::trainer::TrainerThread;
    /// use rollpacker_pipeline::{Pipeline, PromptSource};
    /// use rollpacker_stages::reward::Router;
    /// use rollpacker_stages::rollout::RolloutEngine;
    ///
    /// fn pipeline(
    ///     prompts: PromptSource,
    ///     engine: impl RolloutEngine + 'static,
    ///     trainer: TrainerThread,
    ///     router: Router,
    /// ) -> Result<Pipeline, BoxError> {
    ///     let rounds = sync::Config { prompts: 4, responses: 8, total_steps: Some(100) };
    ///     let schedule = Synchronous::new(rounds)?;
    ///     let builder = Pipeline::builder(prompts, schedule, engine, router, Rc::new(trainer), 512);
    ///     Ok(builder.advantage(Rloo).staleness(1).build()?)
    /// }
    /// ```
    pub fn builder(
        prompts: PromptSource,
        schedule: impl Schedule + 'static,
        engine: impl RolloutEngine + 'static,
        router: Router,
        trainer: Rc<TrainerThread>,
        max_response_length: u32,
    ) -> PipelineBuilder {
        let stages = Stages {
            prompts,
            schedule: Box::new(schedule),
            engine: Box::new(engine),
            router,
            trainer,
            max_response_length,
        };
        PipelineBuilder { stages, settings: Settings::default(), start: None, rewards: None }
    }
}

impl PipelineBuilder {
    /// Sets the maximum number of prompts by which the source may be ahead of the schedule. Default: 64. The limit is raised whenever the
    /// schedule needs another prompt and the limit allows none, so that no limit blocks the run.
    pub fn prompts_ahead(mut self, prompts_ahead: usize) -> Self {
        self.settings.prompts_ahead = prompts_ahead;
        self
    }

    /// Sets the number of initial steps that the ledger leaves out of its facts about response lengths, pairs of responses and dataset
    /// rows. Default: 0. Deferred prompts are counted from the first step on.
    pub fn warmup_steps(mut self, warmup_steps: u64) -> Self {
        self.settings.warmup_steps = warmup_steps;
        self
    }

    /// Sets the curriculum, which skips prompts by the pass rate of their dataset row. The pipeline sets the curriculum's staleness to the
    /// value of [`staleness`](Self::staleness). Default: `None`, which offers every prompt to the schedule.
    pub fn curriculum(mut self, curriculum: impl Into<Option<CurriculumStage>>) -> Self {
        self.settings.curriculum = curriculum.into();
        self
    }

    /// Sets the policy that divides devices between generation and training. Default: none. The engine then keeps its placement, and the
    /// trainer may train at any time.
    pub fn placement(mut self, policy: impl PlacementPolicy + 'static) -> Self {
        self.settings.placement = Some(Box::new(policy));
        self
    }

    /// Sets the number of devices that the placement divides. A placement that uses more devices for generation and training together ends
    /// the run with an error. Default: none; the devices of a placement are then not counted, so that generation and training may share
    /// devices.
    pub fn devices(mut self, devices: u32) -> Self {
        self.settings.devices = Some(devices);
        self
    }

    /// Sets the time limits of test cases. Default: [`Limits::default`] for all responses.
    pub fn limit(mut self, limit: impl TimeLimit + 'static) -> Self {
        self.settings.limit = Box::new(limit);
        self
    }

    /// Sets when responses are scored. Default: each response as it ends.
    pub fn scoring(mut self, scoring: Scoring) -> Self {
        self.settings.scoring = scoring;
        self
    }

    /// Sets the advantage estimator. Default: [`Grpo`].
    pub fn advantage(mut self, estimator: impl Into<Estimator>) -> Self {
        self.settings.advantage = estimator.into();
        self
    }

    /// Sets the controller of the coefficient of a KL penalty in the rewards. The trainer must infer the divergence from the reference
    /// policy; the run ends with an error if it does not. Default: `None`, no KL penalty.
    pub fn reward_kl(mut self, controller: impl Into<Option<KlController>>) -> Self {
        self.settings.reward_kl = controller.into();
        self
    }

    /// Sets the rule by which groups are passed to the trainer. Default: as they become complete.
    pub fn delivery(mut self, delivery: GroupDelivery) -> Self {
        self.settings.delivery = delivery;
        self
    }

    /// Sets the interval of validations in steps, and the validator. An interval of 0 disables validation. Default: `None`, no validation.
    /// Not supported in virtual time, because the validator runs on its own thread.
    pub fn validator(mut self, validator: impl Into<Option<(u64, Rc<ValidatorThread>)>>) -> Self {
        self.settings.validator = validator.into();
        self
    }

    /// Sets the step and the state from which the run starts. Default: the first step, with the weights that the trainer publishes in
    /// [`build`](Self::build).
    pub fn start(self, start: RunStart) -> Self {
        Self { start: Some(start), ..self }
    }

    /// Sets the plan by which snapshots of the run are taken. Default: `None`, no snapshots.
    pub fn snapshots(mut self, plan: impl Into<Option<SnapshotPlan>>) -> Self {
        self.settings.snapshots = plan.into();
        self
    }

    /// Sets the maximum number of steps by which the policy of a round may lag behind the policy that the step trains, at most
    /// [`MAX_STALENESS`]. Default: 0. A response that is paused and continued may have older tokens.
    pub fn staleness(mut self, staleness: u64) -> Self {
        self.settings.staleness = staleness;
        self
    }

    /// Sets whether races between responses are decided by tokens instead of time. If `true`, every run launches, admits and trains on the
    /// same responses. Default: `false`. The trainer must be deterministic. The run ends with an error if the engine cannot race in
    /// [lockstep](rollpacker_stages::rollout::lockstep).
    pub fn deterministic(mut self, deterministic: bool) -> Self {
        self.settings.deterministic = deterministic;
        self
    }

    /// Sets the executor on which the rewards run. Default: a tokio runtime with one thread that the pipeline starts, or the worker's own
    /// thread in virtual time.
    pub fn rewards(self, executor: Executor) -> Self {
        Self { rewards: Some(executor), ..self }
    }

    /// Sets the clock of the run. Default: the wall time since the builder was created. In virtual time, every stage must run on the
    /// worker's thread, because the run does not wait for other threads.
    pub fn time(mut self, time: RunTime) -> Self {
        self.settings.time = time;
        self
    }

    /// Sets the handle through which a caller requests that the run ends after the open rounds. Default: a new handle, through which no
    /// caller can request the end.
    pub fn stop(mut self, stop: Stop) -> Self {
        self.settings.stop = stop;
        self
    }

    /// Sets the watchdog, which reports a stall to the observer or ends the run; `None` disables it. Default: the default of
    /// [`WatchdogSettings`]. It is not used in virtual time. Once the end of the run was requested through [`stop`](Self::stop), any stall
    /// ends the run.
    pub fn watchdog(mut self, watchdog: impl Into<Option<WatchdogSettings>>) -> Self {
        self.settings.watchdog = watchdog.into();
        self
    }

    /// Returns the pipeline. If no [`start`](Self::start) was set, blocks until the trainer has published its initial weights.
    ///
    /// # Errors
    /// If the trainer cannot publish its weights, the default thread of the rewards cannot be started, the staleness is above
    /// [`MAX_STALENESS`], or a run in virtual time has a validator with an interval above 0.
    pub fn build(self) -> Result<Pipeline, Fault> {
        let Self { stages, settings, start, rewards } = self;
        if settings.staleness > MAX_STALENESS {
            let found = settings.staleness;
            let message = format!("`staleness` is {found}, expected at most {MAX_STALENESS}");
            return Err(Fault::new("pipeline", Origin::User, message));
        }
        // The thread of a validator works in wall time: in virtual time, nothing would wait for it.
        let validates = settings.validator.as_ref().is_some_and(|(every, _)| *every > 0);
        if validates && matches!(settings.time, RunTime::Virtual(_)) {
            let message = "a run in virtual time cannot validate: remove the validator";
            return Err(Fault::new("pipeline", Origin::User, message));
        }
        let start = match start {
            Some(start) => start,
            None => initial(&stages.trainer)?,
        };
        let rewards = match (rewards, &settings.time) {
            (Some(executor), _) => RewardThreads { executor, own: None },
            (None, RunTime::Virtual(_)) => RewardThreads { executor: Executor::Inline, own: None },
            (None, RunTime::Wall(_)) => {
                let own = reward_thread()?;
                RewardThreads { executor: own.executor(), own: Some(own) }
            }
        };
        Ok(Pipeline { stages, settings, start, rewards })
    }
}

fn initial(trainer: &TrainerThread) -> Result<RunStart, Fault> {
    let failed = |error: TrainerCallError| {
        let message = format!("publishing the initial weights: {error}");
        Fault::new("pipeline", error.origin(), message)
    };
    trainer.publish_initial().map(RunStart::Initial).map_err(failed)
}

/// Starts the default executor of the rewards: a runtime with one thread.
fn reward_thread() -> Result<TaskRuntime, Fault> {
    TaskRuntime::start(1, "reward").map_err(|error| {
        let message = format!("cannot start the thread of the rewards: {error}");
        Fault::new("pipeline", Origin::Environment, message)
    })
}
