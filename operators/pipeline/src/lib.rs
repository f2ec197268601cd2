//! The RL step as one dataflow graph over stages that are passed by value: a [`Pipeline`].
//!
//! The types of stages and observer are erased, so that the graph is compiled once, in this crate, which the release profile optimizes for
//! hot loops.

mod builder;

pub use self::builder::PipelineBuilder;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::bridge::{Emitter, Executor, produce, produce_inline};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::{Clock, VirtualClock};
use rollpacker_dataflow::cluster::WorkerHandle;
use rollpacker_dataflow::fault::{Fault, Faults, Origin, raise, warn};
use rollpacker_dataflow::snapshot::{RestoredSnapshot, SnapshotPlan, Snapshots};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::watchdog::{Stall, Watchdog, WatchdogSettings};
use rollpacker_dataflow::{feedback, route, runtime, schema};
use rollpacker_operators::advantage::{Estimator, KlController};
use rollpacker_operators::curriculum::{self, CurriculumStage};
use rollpacker_operators::ledger::{LedgerInputs, ledger};
use rollpacker_operators::merge::merge_metrics;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::{self, PlacementPolicy};
use rollpacker_operators::policy::policy_batch;
use rollpacker_operators::report::{Observer, ReportInputs, observe, observe_snapshots};
use rollpacker_operators::resume::{Resumable, ResumeError};
use rollpacker_operators::reward::TimeLimit;
use rollpacker_operators::schedule::operator::{Prompts, Stop};
use rollpacker_operators::schedule::{self, Schedule};
use rollpacker_operators::trainer::{self, TrainerThread};
use rollpacker_operators::validate::{ValidateExt, ValidatorThread};
use rollpacker_operators::{
    AdvantageExt, GradientExt, GroupExt, InferenceExt, ReduceExt, RewardExt, RolloutExt,
    ScheduleExt, UpdateExt,
};
use rollpacker_stages::reward::Router;
use rollpacker_stages::rollout::{Policy, RolloutEngine};
use tokio::runtime::Runtime;

/// Emits prompts until there are no more, or until they are no longer needed. An error counts as the user's, unless it is a
/// [`WithOrigin`](rollpacker_dataflow::fault::WithOrigin).
pub type PromptProducer = Box<dyn FnOnce(&Emitter) -> Result<(), BoxError> + Send>;

/// The source of a run's prompts, as batches of [`schema::PROMPTS`].
pub enum PromptSource {
    /// A producer on its own thread, which may block on files.
    Thread(PromptProducer),
    /// Runs on the worker's thread; for runs in virtual time.
    Inline(Box<dyn Iterator<Item = Batch>>),
}

/// The observer of a run, with its type erased.
type SharedObserver = Rc<RefCell<dyn Observer>>;

/// The time of a run.
#[derive(Clone)]
pub enum RunTime {
    /// The time of the machine.
    Wall(Arc<dyn Clock>),
    /// Virtual time, which the stages advance.
    Virtual(VirtualClock),
}

impl RunTime {
    /// Returns the clock that shows this time.
    #[must_use]
    pub fn clock(&self) -> Arc<dyn Clock> {
        match self {
            Self::Wall(clock) => clock.clone(),
            Self::Virtual(clock) => Arc::new(clock.clone()),
        }
    }
}

/// The start of a run.
pub enum RunStart {
    /// The run starts at the first step, with this initial policy.
    Initial(Policy),
    /// The run starts after the last step of a snapshot. The schedule and the trainer are passed in their initial state; the snapshot
    /// restores them.
    Resumed(RestoredSnapshot),
}

impl RunStart {
    fn restored(&self) -> Option<&RestoredSnapshot> {
        match self {
            Self::Initial(_) => None,
            Self::Resumed(restored) => Some(restored),
        }
    }
}

/// The stages of an RL step, ready to be run. [`Pipeline::builder`] puts them together.
pub struct Pipeline {
    stages: Stages,
    settings: Settings,
    start: RunStart,
    rewards: RewardThreads,
}

/// The stages and settings without a default; see [`Pipeline::builder`].
struct Stages {
    prompts: PromptSource,
    schedule: Box<dyn Schedule>,
    engine: Box<dyn RolloutEngine>,
    router: Router,
    trainer: Rc<TrainerThread>,
    max_response_length: u32,
}

/// The settings with a default; see the methods of [`PipelineBuilder`].
struct Settings {
    prompts_ahead: usize,
    warmup_steps: u64,
    curriculum: Option<CurriculumStage>,
    placement: Option<Box<dyn PlacementPolicy>>,
    devices: Option<u32>,
    limit: Box<dyn TimeLimit>,
    scoring: Scoring,
    advantage: Estimator,
    reward_kl: Option<KlController>,
    delivery: GroupDelivery,
    validator: Option<(u64, Rc<ValidatorThread>)>,
    snapshots: Option<SnapshotPlan>,
    staleness: u64,
    deterministic: bool,
    time: RunTime,
    stop: Stop,
    watchdog: Option<WatchdogSettings>,
}

/// The executor of the rewards.
struct RewardThreads {
    executor: Executor,
    /// The runtime of `executor`, if the program passed none. It must live until the run has ended.
    own: Option<Runtime>,
}

impl Pipeline {
    /// Runs steps until the schedule finishes or `stop` is requested, and reports each step to `observer`.
    ///
    /// # Errors
    /// The first fault of any stage, with its operator, step and response; or an error if the run cannot be restored from its snapshot.
    pub fn run(self, observer: impl Observer + 'static) -> Result<(), Fault> {
        let observer: SharedObserver = Rc::new(RefCell::new(observer));
        self.run_observed(&observer)
    }

    fn run_observed(mut self, observer: &SharedObserver) -> Result<(), Fault> {
        let _rewards = self.rewards.own.take();
        let (policies, budget) = self.restore()?;
        match self.settings.time.clone() {
            RunTime::Wall(clock) => {
                let watchdog = self.watchdog(clock, observer);
                runtime::run_watched(watchdog, |scope, faults| {
                    self.build(&policies, budget, scope, faults, observer)
                })
            }
            RunTime::Virtual(clock) => runtime::run_virtual(&clock, |scope, faults| {
                self.build(&policies, budget, scope, faults, observer)
            }),
        }
    }

    /// Runs one worker's share of a run with several workers. Each worker has its own stages, built with the same options.
    ///
    /// Only the first worker's schedule, prompts and validator are used, and only its `observer` receives the steps.
    ///
    /// # Errors
    /// The first fault of any stage of any worker, the loss of a process, or virtual time, which supports a single worker only.
    pub fn run_worker(
        self,
        handle: WorkerHandle,
        observer: impl Observer + 'static,
    ) -> Result<(), Fault> {
        let observer: SharedObserver = Rc::new(RefCell::new(observer));
        self.run_worker_observed(handle, &observer)
    }

    fn run_worker_observed(
        mut self,
        handle: WorkerHandle,
        observer: &SharedObserver,
    ) -> Result<(), Fault> {
        let RunTime::Wall(clock) = self.settings.time.clone() else {
            let message = "virtual time supports a single worker only";
            return Err(Fault::new("pipeline", Origin::User, message));
        };
        let _rewards = self.rewards.own.take();
        let (policies, budget) = self.restore()?;
        let watchdog = self.watchdog(clock, observer);
        handle.run(watchdog, |scope, faults| self.build(&policies, budget, scope, faults, observer))
    }

    fn watchdog(&self, clock: Arc<dyn Clock>, observer: &SharedObserver) -> Option<Watchdog> {
        let mut warnings = Rc::clone(observer);
        let on_stall = move |stall: &Stall| warnings.warning(&stall.fault());
        let stop = self.settings.stop.clone();
        let watchdog = self.settings.watchdog.as_ref().map(|watch| watch.on(clock, on_stall));
        watchdog.map(|watchdog| watchdog.fail_on_stall_if(move || stop.is_requested()))
    }

    /// Returns the policies that the first steps sample with, and the budget of the prompt source. Restores the schedule, the placement and
    /// the trainer from the snapshot.
    fn restore(&mut self) -> Result<(Vec<Policy>, Budget), Fault> {
        let budget = Budget::new(self.settings.prompts_ahead);
        let restored = match &self.start {
            RunStart::Initial(initial) => return Ok((vec![initial.clone()], budget)),
            RunStart::Resumed(restored) => restored.clone(),
        };
        let failed = |error: ResumeError| Fault::of("resume", &error);
        schedule::snapshot::restore(&restored, &mut self.stages.schedule).map_err(failed)?;
        schedule::snapshot::reserve(&restored, &budget).map_err(failed)?;
        if self.settings.curriculum.is_none() {
            curriculum::reject_unused_state(&restored).map_err(failed)?;
        }
        if let Some(policy) = &mut self.settings.placement {
            placement::restore(&restored, policy).map_err(failed)?;
        }
        let file = trainer::state_file(&restored).map_err(failed)?;
        let loaded = self.stages.trainer.load_state(file);
        let mut policies = loaded.map_err(|error| Fault::of("resume", &error))?;
        trainer::check_current(&restored, &policies).map_err(failed)?;
        let earlier = policies.len().saturating_sub(self.lag() + 1);
        Ok((policies.split_off(earlier), budget))
    }

    fn lag(&self) -> usize {
        usize::try_from(self.settings.staleness).unwrap_or(usize::MAX - 1)
    }

    /// Returns the access to snapshots through which operators save and restore their state.
    fn resumable<'scope>(&self, scope: Scope<'scope, Step>) -> Resumable<'scope> {
        let restored = self.start.restored().cloned();
        let resumed = restored.as_ref().map(RestoredSnapshot::step);
        let plan = self.settings.snapshots.clone().map(|plan| SnapshotPlan { resumed, ..plan });
        let snapshots = plan.map(|plan| match &self.settings.time {
            RunTime::Wall(_) => Snapshots::new(scope, &plan),
            RunTime::Virtual(clock) => Snapshots::in_virtual_time(scope, &plan, clock.clone()),
        });
        Resumable::new(snapshots, restored)
    }

    /// Builds the graph of the RL step.
    ///
    /// Data flows from the prompts to the update in the order of the chained calls. The only cycle is the policy stream: `feedback` opens
    /// it before the schedule, and `weights.connect` closes it at the end. A policy is delayed by `staleness` steps on its way back, which
    /// limits how far the rollout can run ahead. After a resume, prompts that the schedule holds already occupy their share of the budget.
    /// Responses, groups and warnings of all workers are routed to the first worker, whose observer reports them. The observer is
    /// registered with the faults before the error streams are, so that it receives a fault before the run ends.
    fn build(
        self,
        policies: &[Policy],
        budget: Budget,
        scope: Scope<'_, Step>,
        faults: &Faults,
        observer: &SharedObserver,
    ) {
        let resumable = self.resumable(scope);
        let first = self.start.restored().map_or(Step(0), |restored| restored.step().next());
        let Self { stages, settings, rewards, .. } = self;
        let clock = settings.time.clock();
        let (rows, errors) = match stages.prompts {
            PromptSource::Thread(body) => {
                produce(scope, "prompts", &schema::PROMPTS, budget.clone(), body)
            }
            PromptSource::Inline(batches) => {
                produce_inline(scope, "prompts", &schema::PROMPTS, budget.clone(), batches)
            }
        };
        let policies = policies.iter().map(policy_batch).collect();
        let (policies, weights) =
            feedback::policies_from(scope, settings.staleness, first, policies);

        let mut scheduled = Prompts { rows, errors, budget }
            .schedule(stages.schedule)
            .until(&settings.stop)
            .in_lockstep(settings.deterministic)
            .resumable(&resumable);
        if let Some(CurriculumStage { curriculum, skipped }) = settings.curriculum {
            let curriculum = curriculum.with_staleness(settings.staleness);
            scheduled = scheduled.with_curriculum(CurriculumStage { curriculum, skipped });
        }
        if let Some(placement) = settings.placement {
            scheduled = scheduled.placed(placement);
        }
        if let Some(devices) = settings.devices {
            scheduled = scheduled.on_devices(devices);
        }
        let rollouts = scheduled.rollout(stages.engine, &policies, clock.clone());
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let texts = rollouts.texts.clone();
        let mut grouped = rollouts
            .score_when(settings.scoring)
            .reward(stages.router, settings.limit, rewards.executor, clock.clone())
            .group()
            .deliver_when(settings.delivery);
        if let Some(controller) = settings.reward_kl {
            grouped = grouped.with_kl_penalty(controller);
        }
        if settings.advantage.needs_values() {
            grouped = grouped.with_values();
        }
        if settings.reward_kl.is_some() || settings.advantage.needs_values() {
            grouped = grouped.infer(&stages.trainer);
        }
        let gradients = grouped.advantage(settings.advantage).gradient(stages.trainer);
        let groups = gradients.accumulated.clone();
        let gradients = gradients.reduce(clock.clone());
        let updates = match settings.validator {
            Some((every, validator)) => gradients.update().validate(every, validator),
            None => gradients.update(),
        };

        let mut warned = Rc::clone(observer);
        let warnings =
            route::gather_at_first("warnings_to_first", updates.warnings, &schema::ERRORS);
        warn(warnings, move |warning| warned.warning(&warning));
        let mut failing = Rc::clone(observer);
        faults.on_fault(move |fault| failing.failed(fault));
        raise(updates.errors, faults);
        let responses = route::gather_at_first("responses_to_first", responses, &schema::RESPONSES);
        let groups = route::gather_at_first("trained_to_first", groups, &schema::GROUPS);
        let recorded = LedgerInputs {
            responses: responses.clone(),
            groups: groups.clone(),
            decisions: decisions.clone(),
            warmup_steps: settings.warmup_steps,
            resumable: resumable.clone(),
        };
        let metrics = updates.metrics.concat(ledger(recorded, stages.max_response_length));
        let metrics = merge_metrics(metrics);
        let resume = resumable.clone();
        let observed =
            ReportInputs { responses, groups, decisions, texts, metrics, resumable: resume };
        observe(observed, clock, Rc::clone(observer));
        raise(resumable.errors(scope), faults);
        if let Some(commits) = resumable.commit() {
            raise(commits.errors, faults);
            let mut warned = Rc::clone(observer);
            warn(commits.warnings, move |warning| warned.warning(&warning));
            observe_snapshots(commits.metrics, Rc::clone(observer));
        }
        weights.connect(updates.policies);
    }
}
