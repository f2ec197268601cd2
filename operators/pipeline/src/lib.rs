//! The RL step as one dataflow graph over stages that are passed by value: a [`Pipeline`].
//!
//! Stages and observer are trait objects. The graph is therefore compiled once, in this crate, which the release profile optimizes for hot
//! loops.

mod builder;

pub use self::builder::PipelineBuilder;

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::{Emitter, Executor, TaskRuntime, produce, produce_inline};
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

/// A function that emits prompts until there are no more, or until the run needs no more. An error of the function ends the run. The error
/// has the origin `User`, unless it is a [`WithOrigin`](rollpacker_dataflow::fault::WithOrigin).
pub type PromptProducer = Box<dyn FnOnce(&Emitter) -> Result<(), BoxError> + Send>;

/// The source of a run's prompts, as batches of [`schema::PROMPTS`].
pub enum PromptSource {
    /// A producer that runs on its own thread, so that it may block, for example on files.
    Thread(PromptProducer),
    /// An iterator that runs on the worker's thread, for runs in virtual time.
    Inline(Box<dyn Iterator<Item = Batch>>),
}

impl PromptSource {
    /// Reads the prompts into the graph, at most `budget` rows ahead of the schedule.
    fn read(self, scope: Scope<'_, Step>, budget: Budget) -> Prompts<'_> {
        let ahead = budget.clone();
        let (rows, errors) = match self {
            Self::Thread(body) => produce(scope, "prompts", &schema::PROMPTS, ahead, body),
            Self::Inline(batches) => {
                produce_inline(scope, "prompts", &schema::PROMPTS, ahead, batches)
            }
        };
        Prompts { rows, errors, budget }
    }
}

/// The observer of a run, with its type erased.
type SharedObserver = Rc<RefCell<dyn Observer>>;

/// The kind of time in which a run proceeds, with its clock.
#[derive(Clone)]
pub enum RunTime {
    /// Wall time, from this clock.
    Wall(Arc<dyn Clock>),
    /// Virtual time. Whenever no work is left at the current time, the clock advances to the earliest alarm that a stage has set.
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

/// The step and the state from which a run starts.
pub enum RunStart {
    /// The run starts at the first step, with this initial policy.
    Initial(Policy),
    /// The run starts at the step after the step of a snapshot. The stages are passed in their initial state; the snapshot restores them.
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

/// A run that has not started: the stages of its steps, its settings and its start. Created by [`Pipeline::builder`].
pub struct Pipeline {
    stages: Stages,
    settings: Settings,
    start: RunStart,
    rewards: RewardThreads,
}

/// The stages and settings that have no default; see [`Pipeline::builder`].
struct Stages {
    prompts: PromptSource,
    schedule: Box<dyn Schedule>,
    engine: Box<dyn RolloutEngine>,
    router: Router,
    trainer: Rc<TrainerThread>,
    max_response_length: u32,
}

/// The settings that have a default; see the methods of [`PipelineBuilder`].
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

/// The executor on which the rewards run, and its runtime if the pipeline owns it.
struct RewardThreads {
    executor: Executor,
    /// The runtime of `executor` if the pipeline started it, and `None` otherwise. It must live until the run has ended.
    own: Option<TaskRuntime>,
}

impl Pipeline {
    /// Runs steps until the schedule finishes or the end of the run is requested through [`stop`](PipelineBuilder::stop), and reports each
    /// step to `observer`. Blocks until the run has ended, but does not wait for blocking reward functions whose scores are not needed.
    ///
    /// # Errors
    /// If a stage fails or violates its contract, the stages cannot be combined, a stall ends the run, a snapshot cannot be written, or the
    /// run cannot be restored from its snapshot. The error is the first fault; it names the operator, and the step, prompt and response if
    /// they are known.
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

    /// Runs one worker of a run with several workers, and blocks until the run has ended. Each worker has its own stages, built with the
    /// same options.
    ///
    /// Only the first worker's prompts, schedule, curriculum and placement policy are used, and only its `observer` receives the steps.
    /// Each worker validates its own policies: set the interval of validations to 0 on all workers but one.
    ///
    /// # Errors
    /// If [`run`](Self::run) would fail on any worker, a process is lost, or the run is in virtual time, which supports a single worker
    /// only. The error is the first fault.
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

    /// Returns the policies that the first steps sample with, and the budget of the prompt source. If the run resumes, restores the
    /// schedule, the placement and the trainer from the snapshot. Rejects a snapshot with the state of a curriculum if the run has none.
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
        let earlier = policies.len().saturating_sub(self.settings.staleness as usize + 1);
        Ok((policies.split_off(earlier), budget))
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
    /// Data flows from the prompts to the update in the order of the chained calls. The only cycle that this function builds is the policy
    /// stream: `feedback` opens it before the schedule, and `weights.connect` closes it at the end. The policy that step `t` produces
    /// returns at step `t + 1 + staleness`, which limits how far the rollout can run ahead.
    ///
    /// `policies` are the policies of the first steps. `budget` limits the prompts that are read ahead. After a resume, the prompts that
    /// the schedule holds and has not launched already occupy units of `budget`.
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
        let prompts = stages.prompts.read(scope, budget);
        let policies = policies.iter().map(policy_batch).collect();
        let (policies, weights) =
            feedback::policies_from(scope, settings.staleness, first, policies);

        let mut scheduled = prompts
            .schedule(stages.schedule)
            .with_stop(&settings.stop)
            .in_lockstep(settings.deterministic)
            .resumable(&resumable);
        if let Some(CurriculumStage { curriculum, skipped }) = settings.curriculum {
            let curriculum = curriculum.with_staleness(settings.staleness);
            scheduled = scheduled.with_curriculum(CurriculumStage { curriculum, skipped });
        }
        if let Some(placement) = settings.placement {
            scheduled = scheduled.with_placement(placement);
        }
        if let Some(devices) = settings.devices {
            scheduled = scheduled.with_devices(devices);
        }
        let rollouts = scheduled.rollout(stages.engine, &policies, clock.clone());
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let texts = rollouts.texts.clone();
        let mut grouped = rollouts
            .score_when(settings.scoring)
            .reward(stages.router, settings.limit, rewards.executor, clock.clone())
            .group()
            .deliver_when(settings.delivery);
        let infers = settings.reward_kl.is_some() || settings.advantage.needs_values();
        if let Some(controller) = settings.reward_kl {
            grouped = grouped.with_kl_penalty(controller);
        }
        if settings.advantage.needs_values() {
            grouped = grouped.with_values();
        }
        if infers {
            grouped = grouped.infer(&stages.trainer);
        }
        let gradients = grouped.advantage(settings.advantage).gradient(stages.trainer);
        let groups = gradients.accumulated.clone();
        let mut updates = gradients.reduce(clock.clone()).update();
        if let Some((every, validator)) = settings.validator {
            updates = updates.validate(every, validator);
        }

        report_faults(updates.warnings, updates.errors, faults, observer);
        let metrics = updates.metrics;
        let report = ReportInputs {
            responses,
            groups,
            decisions,
            texts,
            metrics,
            resumable: resumable.clone(),
        };
        report_steps(report, settings.warmup_steps, stages.max_response_length, clock, observer);
        commit_snapshots(resumable, scope, faults, observer);
        weights.connect(updates.policies);
    }
}

/// Reports the warnings of all workers to the observer of the first worker, and the fault of this worker that ends the run to this worker's
/// observer. The observer is registered with `faults` before the error stream, so that it receives the fault before the run ends.
fn report_faults(
    warnings: BatchStream<'_>,
    errors: BatchStream<'_>,
    faults: &Faults,
    observer: &SharedObserver,
) {
    let warnings = route::gather_at_first("warnings_to_first", warnings, &schema::ERRORS);
    report_warnings(warnings, observer);
    let mut failing = Rc::clone(observer);
    faults.on_fault(move |fault| failing.failed(fault));
    raise(errors, faults);
}

fn report_warnings(warnings: BatchStream<'_>, observer: &SharedObserver) {
    let mut observer = Rc::clone(observer);
    warn(warnings, move |warning| observer.warning(&warning));
}

/// Reports the steps of all workers to the observer of the first worker, with the metrics of the ledger.
fn report_steps(
    report: ReportInputs<'_>,
    warmup_steps: u64,
    max_response_length: u32,
    clock: Arc<dyn Clock>,
    observer: &SharedObserver,
) {
    let responses =
        route::gather_at_first("responses_to_first", report.responses, &schema::RESPONSES);
    let groups = route::gather_at_first("trained_to_first", report.groups, &schema::GROUPS);
    let recorded = LedgerInputs {
        responses: responses.clone(),
        groups: groups.clone(),
        decisions: report.decisions.clone(),
        warmup_steps,
        resumable: report.resumable.clone(),
    };
    let metrics = merge_metrics(report.metrics.concat(ledger(recorded, max_response_length)));
    observe(ReportInputs { responses, groups, metrics, ..report }, clock, Rc::clone(observer));
}

/// Ends the run if a part of the snapshot from which it resumes could not be read. If the run takes snapshots, commits each snapshot once
/// its parts have arrived, and reports each snapshot and all warnings to the observer. A commit that fails with an error ends the run.
fn commit_snapshots<'scope>(
    resumable: Resumable<'scope>,
    scope: Scope<'scope, Step>,
    faults: &Faults,
    observer: &SharedObserver,
) {
    raise(resumable.errors(scope), faults);
    if let Some(commits) = resumable.commit() {
        raise(commits.errors, faults);
        report_warnings(commits.warnings, observer);
        observe_snapshots(commits.metrics, Rc::clone(observer));
    }
}
