//! Puts a [`Schedule`] and a rollout engine on streams.

use std::sync::Arc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::budget::Budget;
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, faults_batch, refuse};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_stages::rollout::FinishReason;

use crate::placement::Place;
use crate::policy::policy_of;
use crate::resume::Resumable;

use super::Schedule;
use super::driver::Driver;
use super::published::Open;
use super::state::SavedParts;
pub use super::stop::{Stop, Stopped};
use crate::spread::Spread;

/// Prompts on a stream, with the back-pressure of whoever reads them.
pub struct Prompts<'scope> {
    /// Batches of [`schema::PROMPTS`].
    pub rows: BatchStream<'scope>,
    /// Errors of the reader.
    pub errors: BatchStream<'scope>,
    /// Rows that the reader may have handed over and the schedule not yet launched.
    pub budget: Budget,
}

/// A schedule with the prompts that it will draw from; [`rollout`](crate::rollout) gives it an engine.
pub struct Scheduled<'scope> {
    pub(crate) prompts: Prompts<'scope>,
    pub(crate) schedule: Box<dyn Schedule>,
    pub(crate) stop: Stop,
    pub(crate) placement: Option<Box<dyn Place>>,
    pub(crate) in_lockstep: bool,
    pub(crate) resumable: Resumable<'scope>,
}

/// Draws rounds from a stream of prompts.
pub trait ScheduleExt<'scope> {
    /// Lets `schedule` decide what is launched, admitted, aborted and deferred.
    fn schedule(self, schedule: impl Schedule + 'static) -> Scheduled<'scope>;
}

impl<'scope> ScheduleExt<'scope> for Prompts<'scope> {
    fn schedule(self, schedule: impl Schedule + 'static) -> Scheduled<'scope> {
        let schedule = Box::new(schedule);
        let (stop, resumable) = (Stop::default(), Resumable::default());
        let (placement, in_lockstep) = (None, false);
        Scheduled { prompts: self, schedule, stop, placement, in_lockstep, resumable }
    }
}

impl<'scope> Scheduled<'scope> {
    /// Takes part in snapshots, with all that follows, and goes on from one. A schedule that goes on was
    /// [restored](crate::resume::Resumed::restore) before, and so was a [policy of placement](crate::resume::Resumed::restore_placement).
    #[must_use]
    pub fn resumable(mut self, resumable: &Resumable<'scope>) -> Self {
        self.resumable = resumable.clone();
        self
    }

    /// Ends the run after the rounds that are open when `stop` is requested.
    #[must_use]
    pub fn until(mut self, stop: &Stop) -> Self {
        self.stop = stop.clone();
        self
    }

    /// Lets `placement` say what generates and what trains, when. Without one the engine stays as it is, and the trainer always trains.
    #[must_use]
    pub fn placed(mut self, placement: impl Place + 'static) -> Self {
        self.placement = Some(Box::new(placement));
        self
    }

    /// Decides races by tokens instead of by time, if `in_lockstep`: the same is launched, admitted and aborted in every run, however
    /// fast what generates is. It must be an engine that can race in [lockstep](rollpacker_stages::rollout::lockstep).
    #[must_use]
    pub fn in_lockstep(self, in_lockstep: bool) -> Self {
        Self { in_lockstep, ..self }
    }
}

/// Requests for the rollout, and decisions for whoever forms groups.
pub(crate) struct Rounds<'scope> {
    pub(crate) requests: BatchStream<'scope>,
    pub(crate) decisions: BatchStream<'scope>,
    pub(crate) errors: BatchStream<'scope>,
}

/// What a schedule hears of from rollout and reward of the same step: the inner loop.
pub(crate) struct Heard<'scope> {
    /// Batches of [`schema::RESPONSES`]: the ends of races that are decided by time.
    pub(crate) responses: BatchStream<'scope>,
    /// Batches of [`schema::NOTICES`]: the ends of races that are decided by tokens.
    pub(crate) notices: BatchStream<'scope>,
    /// Batches of [`schema::SCORED`].
    pub(crate) scores: BatchStream<'scope>,
}

/// Installs the operator, which acts on the first worker; its inputs are what all workers tell the first. No output follows from what is
/// `heard` in the sense of progress tracking: what a schedule does upon it it does at the step of a round that it holds open.
pub(crate) fn schedule<'scope>(
    scheduled: Scheduled<'scope>,
    policies: BatchStream<'scope>,
    heard: Heard<'scope>,
    clock: Arc<dyn Clock>,
) -> Rounds<'scope> {
    let Scheduled { prompts: Prompts { rows, budget, .. }, schedule, stop, resumable, .. } =
        scheduled;
    let in_lockstep = scheduled.in_lockstep;
    let wants_scores = schedule.wants_scores();
    let unsaved = resumable.is_kept() && schedule.save().is_none();
    let scope = rows.scope();
    let leads = scope.index() == 0;
    let mut operator = Operator::new("schedule", scope);
    let mut rows = operator.input(rows, Pipeline, &schema::PROMPTS);
    let mut policies = operator.input(policies, Pipeline, &schema::POLICIES);
    let mut responses = operator.input(heard.responses, Pipeline, &schema::RESPONSES);
    let mut notices = operator.input(heard.notices, Pipeline, &schema::NOTICES);
    let mut scores = operator.input(heard.scores, Pipeline, &schema::SCORED);
    let (mut requests, request_stream) = operator.output(&schema::REQUESTS, &[1]);
    let (mut decisions, decision_stream) = operator.output(&schema::DECISIONS, &[1]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[1]);
    let decision_stream = operator.spanned(decision_stream);
    let mut parts = SavedParts::register(&resumable, &mut operator);
    let stocked = resumable.resumed().map(|resumed| resumed.schedule.stocked());
    let spread = Spread::over(scope.peers());
    let spread = match resumable.resumed() {
        Some(resumed) => spread.with_kept(resumed.kept.prompts()),
        None => spread,
    };
    let waiting = operator.waiting();
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        drop(capabilities);
        let stocked = stocked.unwrap_or_default();
        let driver = Driver::new(schedule, stocked, budget, stop, clock);
        let mut driver = driver.tells(waiting).over(spread);
        if in_lockstep {
            driver.race();
        }
        move |frontiers| {
            rows.for_each(|_, batch| driver.offer(&batch));
            if leads && frontiers[0].is_empty() {
                driver.end_of_prompts();
            }
            policies.for_each(|capability, batch| {
                let capabilities = Open {
                    policy: policy_of(&batch, 0),
                    requests: capability.retain(requests.index()),
                    decisions: capability.retain(decisions.index()),
                    errors: capability.retain(errors.index()),
                };
                driver.announced(*capability.time(), capabilities);
            });
            responses.for_each(|capability, batch| driver.responses(*capability.time(), &batch));
            notices.for_each(|_, batch| driver.notice(&batch));
            scores.for_each(|capability, batch| driver.scores(*capability.time(), &batch));
            let told = if wants_scores { &frontiers[2..5] } else { &frontiers[2..4] };
            loop {
                // The schedules of the other workers are never told anything.
                if !leads {
                    break;
                }
                driver.decide(
                    |capability, batch| requests.give(capability, batch),
                    |open, batch| decisions.give(&open.decisions, batch),
                );
                if let Some(step) = driver.take_opened() {
                    parts.before(step, &driver.state());
                }
                // Where there are snapshots, that of a step is of the time between its last response and the next round.
                let ends = |step: Step| told.iter().all(|input| !input.less_equal(&step));
                let held_back = |step: Step| parts.is_on() && !ends_before(step, ends);
                let Some(step) = driver.due().filter(|step| !held_back(*step)) else { break };
                if parts.are_behind() {
                    break;
                }
                parts.closed(Some(step), &driver.state());
                driver.policy(step);
            }
            let open = frontiers[1..].iter().filter_map(|input| input.frontier().first().copied());
            parts.closed(open.min(), &driver.state());
            driver.fail(|open, fault| errors.give(&open.errors, faults_batch(&[fault])));
        }
    });
    let errors =
        if unsaved { error_stream.concat(refuse(scope, unsaved_fault())) } else { error_stream };
    Rounds { requests: request_stream, decisions: decision_stream, errors }
}

/// Whether what `ends` says is so of the step before `step`, if there is one.
fn ends_before(step: Step, ends: impl Fn(Step) -> bool) -> bool {
    step.0.checked_sub(1).is_none_or(|before| ends(Step(before)))
}

fn unsaved_fault() -> Fault {
    Fault::new(
        "schedule",
        "the schedule has no state that a snapshot could hold: let it implement `save` and `restore`, or train without snapshots",
    )
}

pub(crate) fn finish_reason(written: &str) -> FinishReason {
    written.parse().expect("invariant: the rollout writes finish reasons only")
}
