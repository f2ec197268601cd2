//! The schedule operator: connects a [`Schedule`] to streams.

use std::collections::BTreeSet;
use std::sync::Arc;

use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, Origin, fault_stream, give_fault};
use rollpacker_dataflow::frontier::{earliest, may_arrive};
use rollpacker_dataflow::operator::{Operator, Output};
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat, InputCapability};
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;
use rollpacker_stages::rollout::Policy;

use crate::curriculum::{CurriculumStage, CurriculumState};
use crate::placement::PlacementPolicy;
use crate::policy::{metrics_batch, policy_of};
use crate::resume::Resumable;

use super::Schedule;
use super::driver::{ScheduleDriver, SchedulePort};
use super::prompt_affinity::PromptAffinity;
use super::published::OpenStep;
use super::snapshot::{HeldPrompts, SavedParts};
pub use super::stop::{Stop, StopReason};

/// A stream of prompts, with back-pressure on the reader.
pub struct Prompts<'scope> {
    /// Batches of [`schema::PROMPTS`].
    pub rows: BatchStream<'scope>,
    /// Errors of the reader.
    pub errors: BatchStream<'scope>,
    /// The limit on the number of rows that the reader has delivered and the schedule has neither launched nor rejected.
    pub budget: Budget,
}

/// A schedule with its stream of prompts; [`rollout`](crate::rollout) connects it to an engine.
pub struct Scheduled<'scope> {
    pub(crate) prompts: Prompts<'scope>,
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) stop: Stop,
    pub(crate) placement: Option<Box<dyn PlacementPolicy>>,
    /// The number of devices that the placement divides; `None` if generation and training may share devices.
    pub(crate) devices: Option<u32>,
    pub(crate) in_lockstep: bool,
    pub(crate) curriculum: Option<CurriculumStage>,
    pub(crate) resumable: Resumable<'scope>,
}

/// Runs a schedule on a stream of prompts.
///
/// No decision is sent before the first policy opens a round, so the decisions are a stream of the rollout:
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{Engine, clock, policies, prompts, run};
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::schedule::{Synchronous, sync};
/// use rollpacker_operators::{RolloutExt, ScheduleExt};
///
/// let rounds = sync::Config { prompts: 2, responses: 2, total_steps: None };
/// let decisions = run(|scope, _| {
///     let scheduled = prompts(scope, 2).schedule(Synchronous::new(rounds).expect("positive"));
///     scheduled.rollout(Engine::default(), &policies(scope), clock()).decisions
/// });
/// let names = decisions.iter().flat_map(|batch| batch.text(column::DECISION)).flatten();
/// assert_eq!(names.collect::<Vec<_>>(), ["open", "admit", "admit", "close"]);
/// ```
pub trait ScheduleExt<'scope> {
    /// Lets `schedule` decide which responses are launched, paused, aborted and trained on, and which prompts are deferred and rejected.
    fn schedule(self, schedule: impl Schedule + 'static) -> Scheduled<'scope>;
}

impl<'scope> ScheduleExt<'scope> for Prompts<'scope> {
    fn schedule(self, schedule: impl Schedule + 'static) -> Scheduled<'scope> {
        let schedule = Box::new(schedule);
        let (stop, resumable) = (Stop::default(), Resumable::default());
        let (placement, devices, curriculum, in_lockstep) = (None, None, None, false);
        Scheduled {
            prompts: self,
            schedule,
            stop,
            placement,
            devices,
            in_lockstep,
            curriculum,
            resumable,
        }
    }
}

impl<'scope> Scheduled<'scope> {
    /// Includes the schedule and all operators after it in the snapshots of `resumable`, and resumes from the snapshot that `resumable`
    /// restores, if there is one. On resume, the caller must have restored the [schedule](super::snapshot::restore) and the [placement
    /// policy](crate::placement::restore) before.
    #[must_use]
    pub fn resumable(mut self, resumable: &Resumable<'scope>) -> Self {
        self.resumable = resumable.clone();
        self
    }

    /// Ends the run once `stop` is requested, after the rounds that are open or due.
    #[must_use]
    pub fn with_stop(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Lets `placement` decide which devices generate and which train. Without a placement policy, the engine keeps its placement, and the
    /// trainer may train at any time.
    ///
    /// ```
    /// # mod step {
    /// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
    /// # }
    /// # use step::{Engine, clock, numbers, policies, prompts, rounds, run};
    /// use arrow_array::types::UInt32Type;
    /// use rollpacker_dataflow::schema::column;
    /// use rollpacker_operators::placement::Colocated;
    /// use rollpacker_operators::{RolloutExt, ScheduleExt};
    /// use rollpacker_stages::rollout::Placement;
    ///
    /// // All four devices generate, and then train.
    /// let policy = Colocated::new(Placement { instances: 4, tensor_parallel: 1 });
    /// let placements = run(|scope, _| {
    ///     let scheduled = prompts(scope, 2).schedule(rounds()).with_placement(policy);
    ///     let rollouts = scheduled.rollout(Engine::default(), &policies(scope), clock());
    ///     rollouts.streams.placements.expect("there is a policy")
    /// });
    /// assert_eq!(numbers::<UInt32Type>(&placements, column::INSTANCES), [4, 0]);
    /// assert_eq!(numbers::<UInt32Type>(&placements, column::TRAINING_DEVICES), [0, 4]);
    /// ```
    #[must_use]
    pub fn with_placement(mut self, placement: impl PlacementPolicy + 'static) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Sets the number of devices that the placement divides. A placement that uses more devices for generation and training together ends
    /// the run with an error. By default, the devices of a placement are not counted, so that generation and training may share devices.
    #[must_use]
    pub fn with_devices(self, devices: u32) -> Self {
        Self { devices: Some(devices), ..self }
    }

    /// Lets a curriculum judge each prompt before the schedule receives it. A resumed run continues with the state of the curriculum in the
    /// snapshot, if the snapshot has one.
    ///
    /// ```
    /// # mod step {
    /// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
    /// # }
    /// # use step::{Engine, clock, lengths, metric, policies, prompts, rounds, run};
    /// use rollpacker_dataflow::bridge::Executor;
    /// use rollpacker_operators::curriculum::{
    ///     Curriculum, CurriculumOptions, CurriculumStage, SkippedPrompts,
    /// };
    /// use rollpacker_operators::{RewardExt, RolloutExt, ScheduleExt};
    /// use rollpacker_stages::reward::Limits;
    ///
    /// let curriculum = Curriculum::new(CurriculumOptions::default(), 1).expect("the defaults are valid");
    /// let stage = CurriculumStage { curriculum, skipped: SkippedPrompts::default() };
    /// let metrics = run(|scope, _| {
    ///     let scheduled = prompts(scope, 2).schedule(rounds()).with_curriculum(stage);
    ///     let rollouts = scheduled.rollout(Engine::default(), &policies(scope), clock());
    ///     rollouts.reward(lengths(), Limits::default(), Executor::Inline, clock()).streams.metrics
    /// });
    /// // Both prompts are new, so that neither is too easy or too hard.
    /// assert_eq!(metric(&metrics, "curriculum/untried_prompts"), [2.0]);
    /// ```
    #[must_use]
    pub fn with_curriculum(self, curriculum: CurriculumStage) -> Self {
        Self { curriculum: Some(curriculum), ..self }
    }

    /// Sets whether races between responses are decided by tokens instead of time. If `true`, every run launches, admits and aborts the
    /// same responses at any speed of the engine. The engine must support [lockstep](rollpacker_stages::rollout::lockstep); otherwise the
    /// run ends with an error.
    #[must_use]
    pub fn in_lockstep(self, in_lockstep: bool) -> Self {
        Self { in_lockstep, ..self }
    }
}

/// Requests for the rollout, texts for the rewards, and decisions for the operators that form groups.
pub(crate) struct RoundStreams<'scope> {
    pub(crate) requests: BatchStream<'scope>,
    /// Batches of [`schema::TEXTS`]: the texts of launched prompts.
    pub(crate) texts: BatchStream<'scope>,
    pub(crate) decisions: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`]: the metrics of the curriculum. `None` without a curriculum.
    pub(crate) metrics: Option<BatchStream<'scope>>,
    pub(crate) errors: BatchStream<'scope>,
}

/// The inputs of a schedule that rollout and reward send back within a step.
pub(crate) struct FeedbackStreams<'scope> {
    /// Batches of [`schema::RESPONSES`]: the ends of responses, for races that are decided by time.
    pub(crate) responses: BatchStream<'scope>,
    /// Batches of [`schema::NOTICES`]: the ends of responses and the progress of the workers, for races that are decided by tokens.
    pub(crate) notices: BatchStream<'scope>,
    /// Batches of [`schema::SCORED`]: the rewards of responses that ended by themselves.
    pub(crate) scores: BatchStream<'scope>,
}

/// Installs the operator. `kept` has the prompts whose tokens are in the snapshot from which the run resumes. Only the operator of the
/// first worker acts; it receives the data of all workers.
///
/// For progress tracking, no output depends on the inputs in `feedback`: the schedule answers them at the step of a round for which it
/// already holds capabilities. Outputs are derived only from policies (input 1), so that the cycle through rollout and reward does not hold
/// the frontier back.
///
/// [`advance`] alternates between two phases. `decide` delivers events and sends decisions until the schedule has no more. Then the next
/// policy is delivered if it is due, which may open a round and cause further decisions. With snapshots, a policy is held back until all
/// responses (and scores, if used) of the previous step have arrived. The snapshot of a step is taken between its last response and the
/// next round. A policy is also held back while too many snapshots are being written. With a curriculum, it is held back until the scores
/// by which the curriculum judges prompts have arrived.
pub(crate) fn schedule<'scope>(
    scheduled: Scheduled<'scope>,
    kept: BTreeSet<PromptId>,
    policies: BatchStream<'scope>,
    feedback: FeedbackStreams<'scope>,
    clock: Arc<dyn Clock>,
) -> RoundStreams<'scope> {
    let Scheduled { prompts: Prompts { rows, budget, .. }, schedule, stop, resumable, .. } =
        scheduled;
    let in_lockstep = scheduled.in_lockstep;
    let curriculum = scheduled.curriculum;
    let uses_scores = schedule.wants_scores() || curriculum.is_some();
    let unsaved = resumable.is_enabled() && schedule.save().is_none();
    let scope = rows.scope();
    let leads = scope.index() == 0;
    let mut operator = Operator::new("schedule", scope);
    let mut rows = operator.input(rows, Pipeline, &schema::PROMPTS);
    let mut policies = operator.input(policies, Pipeline, &schema::POLICIES);
    let mut responses = operator.input(feedback.responses, Pipeline, &schema::RESPONSES);
    let mut notices = operator.input(feedback.notices, Pipeline, &schema::NOTICES);
    let mut scores = operator.input(feedback.scores, Pipeline, &schema::SCORED);
    let (requests, request_stream) = operator.output(&schema::REQUESTS, &[1]);
    let (texts, text_stream) = operator.output(&schema::TEXTS, &[1]);
    let (decisions, decision_stream) = operator.output(&schema::DECISIONS, &[1]);
    let (errors, error_stream) = operator.output(&schema::ERRORS, &[1]);
    let measured = curriculum.is_some().then(|| operator.output(&schema::METRICS, &[1]));
    let (metrics, metric_stream) = measured.unzip();
    let mut outputs = Outputs { requests, texts, decisions, errors, metrics };
    let decision_stream = operator.end_spans_by(decision_stream);
    let mut parts = SavedParts::register(&resumable, &mut operator, curriculum.is_some());
    let judged = curriculum.is_some().then(|| resumable.read::<CurriculumState>()).flatten();
    let stocked = resumable.read::<HeldPrompts>();
    let affinity = PromptAffinity::new(scope.peers()).with_kept(kept);
    let waiting = operator.wait_handle();
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        drop(capabilities);
        let stocked = stocked.unwrap_or_default();
        let driver = ScheduleDriver::new(schedule, stocked, budget, stop, clock);
        let mut driver = driver.with_watchdog(waiting).with_affinity(affinity);
        if let Some(CurriculumStage { curriculum, skipped }) = curriculum.filter(|_| leads) {
            let state = judged.unwrap_or_default();
            driver = driver.with_curriculum(curriculum.with_state(state), skipped);
        }
        if in_lockstep {
            driver.race_in_lockstep();
        }
        move |frontiers| {
            rows.for_each(|_, batch| driver.on_prompts(&batch));
            if leads && frontiers[0].is_empty() {
                driver.on_end_of_prompts();
            }
            policies.for_each(|capability, batch| {
                let opened = outputs.open(policy_of(&batch, 0), &capability);
                driver.on_policy(*capability.time(), opened);
            });
            responses.for_each(|capability, batch| driver.on_responses(*capability.time(), &batch));
            notices.for_each(|_, batch| driver.on_notice(&batch));
            scores.for_each(|capability, batch| driver.on_scores(*capability.time(), &batch));
            // The schedules of the other workers receive no events.
            if leads {
                let reports = Reports {
                    ends: if uses_scores { &frontiers[2..5] } else { &frontiers[2..4] },
                    scores: &frontiers[4],
                };
                advance(&mut driver, &mut outputs, &mut parts, &reports);
            }
            parts.advance_to(earliest(&frontiers[1..]), &driver.state());
            driver.fail(|open, fault| give_fault(&mut outputs.errors, &open.errors, fault));
        }
    });
    let errors = if unsaved {
        error_stream.concat(fault_stream(scope, unsaved_fault()))
    } else {
        error_stream
    };
    RoundStreams {
        requests: request_stream,
        texts: text_stream,
        decisions: decision_stream,
        metrics: metric_stream,
        errors,
    }
}

struct Outputs {
    requests: Output,
    texts: Output,
    decisions: Output,
    errors: Output,
    /// The metrics of the curriculum, if there is one.
    metrics: Option<Output>,
}

impl Outputs {
    /// Returns a step with the capabilities for all outputs that follow from its policy.
    fn open(&self, policy: Policy, capability: &InputCapability<Step>) -> OpenStep {
        let Self { requests, texts, decisions, errors, metrics } = self;
        OpenStep {
            policy,
            requests: capability.retain(requests.index()),
            texts: capability.retain(texts.index()),
            decisions: capability.retain(decisions.index()),
            errors: capability.retain(errors.index()),
            metrics: metrics.as_ref().map(|metrics| capability.retain(metrics.index())),
        }
    }

    fn give(&mut self, port: SchedulePort, capability: &Capability<Step>, batch: Batch) {
        match port {
            SchedulePort::Texts => self.texts.give(capability, batch),
            SchedulePort::Requests => self.requests.give(capability, batch),
            SchedulePort::Decisions => self.decisions.give(capability, batch),
        }
    }
}

/// The frontiers of the inputs from rollout and reward.
struct Reports<'a> {
    /// The frontiers that must have passed a step before its state is saved: responses, notices and, if they are used, scores.
    ends: &'a [MutableAntichain<Step>],
    scores: &'a MutableAntichain<Step>,
}

impl Reports<'_> {
    /// Returns `true` if all reports of the steps before `step` that a snapshot needs have arrived.
    fn have_ended_before(&self, step: Step) -> bool {
        let before = step.0.checked_sub(1).map(Step);
        before.is_none_or(|before| !may_arrive(self.ends, &before))
    }

    /// Returns `true` if all scores of `step` have arrived.
    fn is_scored(&self, step: Step) -> bool {
        !self.scores.less_equal(&step)
    }
}

/// Sends decisions until the schedule has no more, and then delivers the next policy. Repeats both until no policy is due, or until
/// snapshots must be written first.
fn advance(
    driver: &mut ScheduleDriver,
    outputs: &mut Outputs,
    parts: &mut SavedParts,
    reports: &Reports<'_>,
) {
    loop {
        driver.decide(|port, capability, batch| outputs.give(port, capability, batch));
        for (capability, measured) in driver.take_metrics() {
            if let Some(metrics) = &mut outputs.metrics {
                metrics.give(&capability, metrics_batch(&measured));
            }
        }
        if let Some(step) = driver.take_opened() {
            parts.begin_step(step, &driver.state());
        }
        // With snapshots, the state of a step is saved between its last response and the next round.
        let is_saved = |step: Step| !parts.is_enabled() || reports.have_ended_before(step);
        // A curriculum judges the prompts of a step by the scores of earlier steps. Even if the policy has arrived, scores of other workers
        // may still be on their way.
        let is_judged =
            |step: Step| driver.last_judged_by(step).is_none_or(|last| reports.is_scored(last));
        let due = driver.next_due_policy().filter(|step| is_saved(*step) && is_judged(*step));
        let Some(step) = due.filter(|_| !parts.writes_pending()) else { break };
        parts.advance_to(Some(step), &driver.state());
        driver.deliver_policy(step);
    }
}

fn unsaved_fault() -> Fault {
    Fault::new(
        "schedule",
        Origin::User,
        "the schedule cannot be saved in a snapshot: implement `save` and `restore` for it, or train without snapshots",
    )
}
