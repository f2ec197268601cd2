//! The rollout operator: drives an engine with the requests of the schedule, and streams responses as they end.

pub(crate) mod driver;
mod kept_responses;
mod kept_rows;
pub(crate) mod notices;
pub(crate) mod port;
mod responses;

use std::iter;
use std::sync::Arc;

use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::fault::{Fault, Origin, fault_stream};
use rollpacker_dataflow::frontier::earliest;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PromptId, Step, Steps};
use rollpacker_dataflow::timely::dataflow::Scope;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::core::feedback::Handle;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_dataflow::timely::dataflow::operators::{
    Capability, Concatenate, ConnectLoop, Feedback,
};
use rollpacker_stages::rollout::RolloutEngine;

use self::kept_rows::KeptRows;
pub use crate::wire::finish_reason::is_returned_whole;

use self::driver::RolloutDriver;
use self::kept_responses::KeptById;
use self::port::Port;
use crate::in_flight::InFlightResponses;
use crate::overlap::Scoring;
use crate::placement::operator::{CheckedPlacement, PlacementInputs, place};
use crate::resume::Resumable;
use crate::schedule::operator::{FeedbackStreams, RoundStreams, Scheduled, schedule};
use crate::schedule::prompt_affinity::worker_of_kept;
use crate::schedule::snapshot::HeldPrompts;
use crate::schedule_feed;
use crate::streams::StepStreams;

/// The output streams of a rollout.
pub struct Rollouts<'scope> {
    /// Batches of [`schema::RESPONSES`], sent as responses end, including aborted responses.
    pub responses: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`]: all decisions, on the first worker.
    pub decisions: BatchStream<'scope>,
    /// Batches of [`schema::TEXTS`]: the texts of all launched prompts, on the first worker.
    pub texts: BatchStream<'scope>,
    /// The streams that the next operators pass on. Their metrics are the metrics of the curriculum, if there is one, and `rollout/load_s`
    /// of each step, if the engine reports when it has loaded the weights.
    pub streams: StepStreams<'scope>,
    /// The feedback handle for scores, if the schedule or a curriculum decides by them.
    pub(crate) scores: Option<Handle<'scope, Step, Batch>>,
    pub(crate) scoring: Scoring,
    /// `true` if the schedule decides by scores.
    pub(crate) wants_scores: bool,
    /// `true` if a curriculum decides by the scores of earlier steps.
    pub(crate) has_curriculum: bool,
    /// `true` if scoring is cancelled for dropped responses.
    pub(crate) cancels: bool,
}

impl Rollouts<'_> {
    /// Sets when responses are scored. By default, each response is scored as it ends.
    #[must_use]
    pub fn score_when(self, scoring: Scoring) -> Self {
        Self { scoring, ..self }
    }

    /// Scores all responses that end by themselves, including dropped ones, and makes steps wait for these scores. Decisions and training
    /// data stay the same. Intended for comparisons.
    #[must_use]
    pub fn without_cancellation(self) -> Self {
        Self { cancels: false, ..self }
    }
}

/// Generates the responses that a schedule requests.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{Engine, clock, numbers, policies, prompts, rounds, run};
/// use arrow_array::types::{UInt32Type, UInt64Type};
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::{RolloutExt, ScheduleExt};
///
/// // A round of two prompts with two responses each. The engine answers with one token and with two.
/// let responses = run(|scope, _| {
///     let scheduled = prompts(scope, 2).schedule(rounds());
///     scheduled.rollout(Engine::default(), &policies(scope), clock()).responses
/// });
/// assert_eq!(numbers::<UInt64Type>(&responses, column::PROMPT_ID), [0, 0, 1, 1]);
/// assert_eq!(numbers::<UInt32Type>(&responses, column::RESPONSE_LENGTH), [1, 2, 1, 2]);
/// ```
pub trait RolloutExt<'scope> {
    /// Generates the responses of each step's round with `engine`, which samples with the policy of the step from `policies`. `clock` gives
    /// the times of events. If the engine fails, the run ends with an error.
    ///
    /// Schedule and rollout form the inner loop of the step: each response is fed back to the schedule as soon as it ends.
    fn rollout(
        self,
        engine: impl RolloutEngine + 'static,
        policies: &BatchStream<'scope>,
        clock: Arc<dyn Clock>,
    ) -> Rollouts<'scope>;
}

impl<'scope> RolloutExt<'scope> for Scheduled<'scope> {
    fn rollout(
        self,
        engine: impl RolloutEngine + 'static,
        policies: &BatchStream<'scope>,
        clock: Arc<dyn Clock>,
    ) -> Rollouts<'scope> {
        let scope = policies.scope();
        let mut scheduled = self;
        let reader_errors = scheduled.prompts.errors.clone();
        let devices = scheduled.devices;
        let placement = scheduled.placement.take();
        let placement = placement.map(|policy| CheckedPlacement { policy, devices });
        let resumable = scheduled.resumable.clone();
        let unsaved = resumable.is_enabled()
            && placement.as_ref().is_some_and(|checked| checked.policy.save().is_none());
        let mut kept = resumable.read::<KeptRows>().map(|kept| kept.samples()).unwrap_or_default();
        // The last round of the earlier run may have rejected prompts whose responses it had paused.
        if !kept.is_empty()
            && let Some(prompts) = resumable.read::<HeldPrompts>()
        {
            kept.retain(|(prompt, _), _| prompts.held.contains_key(prompt));
        }
        let kept_prompts = kept.keys().map(|(prompt, _)| *prompt).collect();
        let pauses = scheduled.schedule.pauses();
        let wants_scores = scheduled.schedule.wants_scores();
        let has_curriculum = scheduled.curriculum.is_some();
        let in_lockstep = scheduled.in_lockstep;
        // A single schedule, on the first worker, decides for all workers. It receives all events, and its requests go to the workers that
        // hold the prompts.
        let published =
            route::gather_at_first("policies_to_first", policies.clone(), &schema::POLICIES);
        let (inner_loop, feedback) = InnerLoop::begin(scope, wants_scores || has_curriculum);
        let reports = feedback.responses.clone();
        let RoundStreams { requests, texts, decisions, metrics: judged, errors: failed } =
            schedule(scheduled, kept_prompts, published.clone(), feedback, clock.clone());
        let rounds = PlacementInputs {
            policies: published,
            requests: requests.clone(),
            responses: reports,
            decisions: decisions.clone(),
        };
        let (placements, misplaced) =
            placement.map(|checked| place(checked, rounds, clock.clone(), &resumable)).unzip();
        let placements = placements
            .map(|placed| route::broadcast("placements_to_all", placed, &schema::PLACEMENTS));
        let own = OwnStreams::of_worker(requests, texts.clone(), decisions.clone());
        let placed = placements.clone().unwrap_or_else(|| empty(scope));
        let in_flight = InFlightResponses::default();
        let kept = of_worker(kept, scope.index(), scope.peers());
        let mut driver = RolloutDriver::new(Box::new(engine), pauses, clock)
            .with_worker(scope.index(), scope.peers())
            .with_kept(kept)
            .with_counter(in_flight.clone());
        if in_lockstep {
            driver.race_in_lockstep(scope.index());
        }
        let RolloutOutputs { responses, notices, metrics, errors } =
            generate(own.requests, policies.clone(), placed, driver, &resumable);
        let scores = inner_loop.close(responses.clone(), notices);
        let unsaved = unsaved.then(|| fault_stream(scope, unsaved_fault()));
        let errors = [reader_errors, failed, errors].into_iter().chain(misplaced).chain(unsaved);
        let streams = StepStreams {
            decisions: own.decisions,
            texts: own.texts,
            placements,
            metrics: scope.concatenate(iter::once(metrics).chain(judged)),
            errors: scope.concatenate(errors),
            warnings: empty(scope),
            in_flight,
            resumable,
        };
        Rollouts {
            responses,
            decisions,
            texts,
            streams,
            scores,
            scoring: Scoring::default(),
            wants_scores,
            has_curriculum,
            cancels: true,
        }
    }
}

/// The feedback handles of the inner loop: responses and notices of the rollout, and scores if the schedule or a curriculum decides by
/// them.
struct InnerLoop<'scope> {
    responses: Handle<'scope, Step, Batch>,
    notices: Handle<'scope, Step, Batch>,
    scores: Option<Handle<'scope, Step, Batch>>,
}

impl<'scope> InnerLoop<'scope> {
    /// Opens the loop and returns its streams, as the schedule receives them. `wants_scores` is `true` if the schedule or a curriculum
    /// decides by scores.
    ///
    /// The path summaries may be 0. Schedule and placement declare that none of their outputs is derived from responses, notices or scores,
    /// so the loop contains no cycle of timestamps.
    fn begin(scope: Scope<'scope, Step>, wants_scores: bool) -> (Self, FeedbackStreams<'scope>) {
        let (responses, reports) = scope.feedback(Steps(0));
        let (notices, noticed) = scope.feedback(Steps(0));
        let (scores, scored) = wants_scores.then(|| scope.feedback(Steps(0))).unzip();
        let feedback = FeedbackStreams {
            responses: schedule_feed::gather_ends(reports),
            notices: route::gather_at_first("notices_to_first", noticed, &schema::NOTICES),
            scores: scored.map_or_else(|| empty(scope), schedule_feed::gather_scores),
        };
        (Self { responses, notices, scores }, feedback)
    }

    /// Connects the outputs of the rollout. Returns the handle for scores, which the reward operator connects; `None` if nothing decides by
    /// scores.
    fn close(
        self,
        responses: BatchStream<'scope>,
        notices: BatchStream<'scope>,
    ) -> Option<Handle<'scope, Step, Batch>> {
        responses.connect_loop(self.responses);
        notices.connect_loop(self.notices);
        self.scores
    }
}

/// The streams of the schedule, restricted to the rows that concern one worker.
struct OwnStreams<'scope> {
    requests: BatchStream<'scope>,
    texts: BatchStream<'scope>,
    decisions: BatchStream<'scope>,
}

impl<'scope> OwnStreams<'scope> {
    fn of_worker(
        requests: BatchStream<'scope>,
        texts: BatchStream<'scope>,
        decisions: BatchStream<'scope>,
    ) -> Self {
        let by_worker = || route::to_worker(column::WORKER);
        let requests =
            route::exchange("requests_to_workers", requests, by_worker(), &schema::REQUESTS);
        let texts = route::exchange("texts_to_workers", texts, by_worker(), &schema::TEXTS);
        let decisions = route::by_worker_or_all(
            "decisions_to_workers",
            decisions,
            &schema::DECISIONS,
            column::WORKER,
        );
        Self { requests, texts, decisions }
    }
}

fn unsaved_fault() -> Fault {
    Fault::new(
        "placement",
        Origin::User,
        "the placement policy has no state that can be saved in a snapshot: implement `save` and `restore` for it, or train without snapshots",
    )
}

/// Returns the kept responses of worker `index` among `peers` workers. The snapshot may have been written by a different number of workers.
fn of_worker(kept: KeptById, index: usize, peers: usize) -> KeptById {
    let is_local = |prompt: PromptId| worker_of_kept(prompt, peers) as usize == index;
    kept.into_iter().filter(|((prompt, _), _)| is_local(*prompt)).collect()
}

struct RolloutOutputs<'scope> {
    responses: BatchStream<'scope>,
    /// Batches of [`schema::NOTICES`]; none unless the rollout races in lockstep.
    notices: BatchStream<'scope>,
    metrics: BatchStream<'scope>,
    errors: BatchStream<'scope>,
}

fn generate<'scope>(
    requests: BatchStream<'scope>,
    policies: BatchStream<'scope>,
    placements: BatchStream<'scope>,
    driver: RolloutDriver,
    resumable: &Resumable<'scope>,
) -> RolloutOutputs<'scope> {
    let mut operator = Operator::new("rollout", requests.scope());
    let mut requests = operator.input(requests, Pipeline, &schema::REQUESTS);
    let mut policies = operator.input(policies, Pipeline, &schema::POLICIES);
    let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
    let (responses, response_stream) = operator.output(&schema::RESPONSES, &[0]);
    let (metrics, metric_stream) = operator.output(&schema::METRICS, &[0]);
    let (errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let (notices, notice_stream) = operator.output(&schema::NOTICES, &[0]);
    // The order must match `Port`.
    let mut outputs = [responses, errors, metrics, notices];
    let response_stream = operator.end_spans_by(response_stream);
    let mut parts = resumable.register_each(kept_rows::PART, &mut operator);
    let wake = operator.waker();
    let mut driver = driver.with_watchdog(operator.wait_handle());
    if let Some(work) = driver.engine().work() {
        operator.count_progress(work);
    }
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        driver.engine().wake_by(Arc::new(wake));
        move |frontiers| {
            // Policies and placements come first: the requests of a step must find the policy and placement of that step.
            policies.for_each(|capability, batch| driver.on_policy(*capability.time(), &batch));
            placements.for_each(|_, batch| driver.on_placements(&batch));
            for (step, capabilities, batch) in driver.take_ready() {
                // The part of a snapshot must be written before a request of a later step changes the kept responses.
                parts.begin_step(step, |_| kept_rows::part(driver.samples()));
                driver.request(step, || capabilities, &batch);
            }
            requests.for_each(|capability, batch| {
                let retained =
                    || Port::ALL.map(|port| capability.retain(outputs[port as usize].index()));
                let step = *capability.time();
                if !driver.has_policy(step) {
                    driver.hold((step, retained(), batch));
                    return;
                }
                parts.begin_step(step, |_| kept_rows::part(driver.samples()));
                driver.request(step, retained, &batch);
            });
            let mut give = |port: Port, capability: &Capability<Step>, batch: Batch| {
                outputs[port as usize].give(capability, batch);
            };
            driver.report(&mut give);
            if driver.step_awaiting_save().is_some_and(|step| parts.save_held(step)) {
                driver.finish_saving();
                driver.report(&mut give);
            }
            let open = earliest(&frontiers[..1]).into_iter().chain(driver.open()).min();
            parts.advance_to(open, |_| kept_rows::part(driver.samples()));
        }
    });
    RolloutOutputs {
        responses: response_stream,
        notices: notice_stream,
        metrics: metric_stream,
        errors: error_stream,
    }
}
