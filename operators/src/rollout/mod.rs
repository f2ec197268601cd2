//! The rollout: drives an engine with what the schedule asks for, and streams responses as they end.

mod generating;
mod kept;
mod kept_rows;
pub(crate) mod notices;
mod responses;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Int32Type, UInt8Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step, Steps, Tick};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::core::feedback::Handle;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat, ConnectLoop, Feedback};
use rollpacker_dataflow::watchdog::Waiting;
use rollpacker_stages::rollout::{
    Lockstep, Placement, Policy, Request, RolloutEngine, RolloutEvent,
};
use rollpacker_stages::train::Metrics;

pub(crate) use self::generating::Generating;
pub use self::kept::is_given_again;
pub(crate) use self::kept_rows::KeptRows;

use self::kept::{Ended, Kept, Launch, Samples};
use self::notices::Notices;
use self::responses::response_batch;
use crate::exchange;
use crate::overlap::Scoring;
use crate::placement;
use crate::policy::{metrics_batch, policy_of};
use crate::resume::Resumable;
use crate::rows::Row;
use crate::schedule::encode::{ADVANCE, LAUNCH, PAUSE};
use crate::schedule::operator::{Heard, Rounds, Scheduled, schedule};
use crate::spread::kept_on;

/// The metric of a step that says how many seconds its weights took from when the engine was handed them until all of it had them; none of
/// an engine that [cannot tell](RolloutEngine::loaded_at).
pub(crate) const LOAD: &str = "rollout/load_s";

const NO_LOCKSTEP: &str = "races are to be decided by tokens, and the engine cannot race in lockstep: make it deterministic, or choose another";

/// What a rollout gives.
pub struct Rollouts<'scope> {
    /// Batches of [`schema::RESPONSES`], as responses end; aborted ones too.
    pub responses: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`]: all of them, on the first worker.
    pub decisions: BatchStream<'scope>,
    /// Those of them that concern this worker.
    pub(crate) own_decisions: BatchStream<'scope>,
    /// Batches of [`schema::PLACEMENTS`], if a policy places.
    pub placements: Option<BatchStream<'scope>>,
    /// Batches of [`schema::METRICS`]: `rollout/load_s` of each step, where the engine tells when it has the weights.
    pub metrics: BatchStream<'scope>,
    /// Errors so far.
    pub errors: BatchStream<'scope>,
    /// Where the schedule hears of scores.
    pub(crate) scores: Handle<'scope, Step, Batch>,
    pub(crate) scoring: Scoring,
    pub(crate) generating: Generating,
    /// Whether the schedule decides by scores.
    pub(crate) wants_scores: bool,
    pub(crate) cancels: bool,
    pub(crate) resumable: Resumable<'scope>,
}

impl Rollouts<'_> {
    /// Scores responses when `scoring` says; without it, each as it ends.
    #[must_use]
    pub fn scored(self, scoring: Scoring) -> Self {
        Self { scoring, ..self }
    }

    /// Scores what is dropped as well, and lets steps wait for it. What is decided and trained on is the same: for comparisons.
    #[must_use]
    pub fn without_cancellation(self) -> Self {
        Self { cancels: false, ..self }
    }
}

/// Generates what a schedule decides.
pub trait RolloutExt<'scope> {
    /// Runs the rounds of each step with `engine`, sampling with the policies of `policies`.
    ///
    /// Schedule and rollout form the inner loop of the step: each response goes back to the schedule at once.
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
        let placement = scheduled.placement.take();
        let resumable = scheduled.resumable.clone();
        let pauses = scheduled.schedule.pauses();
        let wants_scores = scheduled.schedule.wants_scores();
        let in_lockstep = scheduled.in_lockstep;
        // The summaries may be 0: schedule and placement declare that no output of theirs follows from responses, notices or scores, so
        // these are no cycles of times.
        let (loop_end, heard) = scope.feedback(Steps(0));
        let (notices_end, notices) = scope.feedback(Steps(0));
        let (scores, scored) = scope.feedback(Steps(0));
        // One schedule, on the first worker, decides for all: it hears of everything, and what it wants goes where the prompts are.
        let published = route::first("policies_to_first", policies.clone(), &schema::POLICIES);
        let heard = exchange::ends(heard);
        let told = Heard {
            responses: heard.clone(),
            notices: route::first("notices_to_first", notices, &schema::NOTICES),
            scores: exchange::scores(scored),
        };
        let Rounds { requests, decisions, errors: failed } =
            schedule(scheduled, published.clone(), told, clock.clone());
        let rounds = placement::operator::Observed {
            policies: published,
            requests: requests.clone(),
            responses: heard,
            decisions: decisions.clone(),
        };
        let time = clock.clone();
        let placements = placement.map(|policy| placement::operator::place(policy, rounds, time));
        let placements =
            placements.map(|placed| route::all("placements_to_all", placed, &schema::PLACEMENTS));
        let requests =
            route::spread("requests_to_workers", requests, &schema::REQUESTS, column::WORKER);
        let own_decisions = route::shared(
            "decisions_to_workers",
            decisions.clone(),
            &schema::DECISIONS,
            column::WORKER,
        );
        let placed = placements.clone().unwrap_or_else(|| empty(scope));
        let generating = Generating::default();
        let kept = resumable.resumed().map(|resumed| resumed.kept.samples()).unwrap_or_default();
        let kept = Kept::new(pauses, of_worker(kept, scope.index(), scope.peers()));
        let mut driver = Driver::new(Box::new(engine), kept, clock, generating.clone());
        if in_lockstep {
            driver.race(scope.index());
        }
        let Generated { responses, notices, metrics, errors } =
            generate(requests, policies.clone(), placed, driver, &resumable);
        responses.clone().connect_loop(loop_end);
        notices.connect_loop(notices_end);
        let errors = reader_errors.concat(failed).concat(errors);
        Rollouts {
            responses,
            decisions,
            own_decisions,
            generating,
            placements,
            metrics,
            errors,
            scores,
            scoring: Scoring::default(),
            wants_scores,
            cancels: true,
            resumable,
        }
    }
}

/// What a worker goes on from, of all that was kept: a snapshot may be of other workers.
fn of_worker(kept: Samples, index: usize, peers: usize) -> Samples {
    let home = |prompt: PromptId| kept_on(prompt, peers) as usize == index;
    kept.into_iter().filter(|((prompt, _), _)| home(*prompt)).collect()
}

/// What the operator gives.
struct Generated<'scope> {
    responses: BatchStream<'scope>,
    /// Batches of [`schema::NOTICES`], in lockstep.
    notices: BatchStream<'scope>,
    metrics: BatchStream<'scope>,
    errors: BatchStream<'scope>,
}

fn generate<'scope>(
    requests: BatchStream<'scope>,
    policies: BatchStream<'scope>,
    placements: BatchStream<'scope>,
    mut driver: Driver,
    resumable: &Resumable<'scope>,
) -> Generated<'scope> {
    let mut operator = Operator::new("rollout", requests.scope());
    let mut requests = operator.input(requests, Pipeline, &schema::REQUESTS);
    let mut policies = operator.input(policies, Pipeline, &schema::POLICIES);
    let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
    let (mut responses, response_stream) = operator.output(&schema::RESPONSES, &[0]);
    let (mut metrics, metric_stream) = operator.output(&schema::METRICS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let (mut notices, notice_stream) = operator.output(&schema::NOTICES, &[0]);
    let response_stream = operator.spanned(response_stream);
    let mut parts = resumable.keep_each(kept_rows::PART, &mut operator);
    let wake = operator.waker();
    driver.waiting = operator.waiting();
    if let Some(work) = driver.engine.work() {
        operator.moves_with(work);
    }
    operator.build(move |capabilities| {
        parts.start(&capabilities);
        driver.engine.wake_by(Arc::new(wake));
        move |frontiers| {
            // Policies and placements first: a request of a step comes after those of the step.
            policies.for_each(|capability, batch| driver.policy(*capability.time(), &batch));
            placements.for_each(|_, batch| driver.place(&batch));
            for (step, capabilities, batch) in driver.take_due() {
                parts.before(step, |_| kept_rows::part(driver.kept.samples()));
                driver.request(step, || capabilities, &batch);
            }
            requests.for_each(|capability, batch| {
                let outputs = || {
                    [responses.index(), errors.index(), metrics.index(), notices.index()]
                        .map(|output| capability.retain(output))
                };
                let step = *capability.time();
                if !driver.published(step) {
                    driver.held.push((step, outputs(), batch));
                    return;
                }
                parts.before(step, |_| kept_rows::part(driver.kept.samples()));
                driver.request(step, outputs, &batch);
            });
            driver.listen();
            // Before the responses: with the last of them the step ends.
            driver.tell_loads(|capability, batch| metrics.give(capability, batch));
            driver.pass_on(
                |capability, batch| responses.give(capability, batch),
                |capability, fault| errors.give(capability, faults_batch(&[fault])),
            );
            driver.notice(|capability, batch| notices.give(capability, batch));
            driver.settle();
            let asked = frontiers[0].frontier().first().copied();
            let held = driver.held.iter().map(|held| held.0);
            let open =
                asked.into_iter().chain(driver.steps.keys().next().copied()).chain(held).min();
            parts.closed(open, |_| kept_rows::part(driver.kept.samples()));
        }
    });
    Generated {
        responses: response_stream,
        notices: notice_stream,
        metrics: metric_stream,
        errors: error_stream,
    }
}

/// For responses, errors, metrics and notices.
type Capabilities = [Capability<Step>; 4];

/// What is under way at one step.
struct UnderWay {
    capabilities: Capabilities,
    /// The weights that the engine was handed for it and when, until it is told when they were there.
    loading: Option<(PolicyVersion, Nanos)>,
    prompts: BTreeMap<PromptId, Launched>,
    owed: usize,
}

struct Launched {
    row: Row,
    version: PolicyVersion,
}

/// Requests of a step, with the capabilities for what follows from them.
type HeldRequests = (Step, [Capability<Step>; 4], Batch);

struct Driver {
    engine: Box<dyn RolloutEngine>,
    clock: Arc<dyn Clock>,
    waiting: Waiting,
    steps: BTreeMap<Step, UnderWay>,
    /// Policies of steps that have asked for nothing yet.
    policies: BTreeMap<Step, Policy>,
    /// The last step whose policy is there.
    published: Option<Step>,
    /// Requests that came from another worker before this one's own policy of the step.
    held: Vec<HeldRequests>,
    generating: Generating,
    kept: Kept,
    /// In lockstep, what the schedule is to be told.
    notices: Option<Notices>,
    /// What ended and is not passed on yet.
    ended: BTreeMap<Step, Vec<Ended>>,
    failed: bool,
    /// A failure that no step was there to tell it at.
    untold: Option<String>,
}

impl Driver {
    fn new(
        engine: Box<dyn RolloutEngine>,
        kept: Kept,
        clock: Arc<dyn Clock>,
        generating: Generating,
    ) -> Self {
        Self {
            published: None,
            held: Vec::new(),
            generating,
            engine,
            clock,
            waiting: Waiting::default(),
            steps: BTreeMap::new(),
            policies: BTreeMap::new(),
            kept,
            notices: None,
            ended: BTreeMap::new(),
            failed: false,
            untold: None,
        }
    }

    /// Races in lockstep, as the rollout of `worker`.
    fn race(&mut self, worker: usize) {
        match self.engine.lockstep() {
            Some(_) => self.notices = Some(Notices::new(worker)),
            None => self.fail(NO_LOCKSTEP.to_owned()),
        }
    }

    /// Keeps the policy of a step for the step's first request: with staleness, an earlier round may still be sampling with its own.
    fn policy(&mut self, step: Step, batch: &Batch) {
        self.policies.insert(step, policy_of(batch, 0));
        self.published = self.published.max(Some(step));
    }

    fn published(&self, step: Step) -> bool {
        self.published >= Some(step)
    }

    /// What waited for its policy, and does no more.
    fn take_due(&mut self) -> Vec<HeldRequests> {
        let (due, held) =
            std::mem::take(&mut self.held).into_iter().partition(|held| self.published(held.0));
        self.held = held;
        due
    }

    fn place(&mut self, batch: &Batch) {
        let (instances, tensor_parallel) = (
            batch.values::<UInt32Type>(column::INSTANCES),
            batch.values::<UInt32Type>(column::TENSOR_PARALLEL),
        );
        for row in 0..batch.num_rows() {
            self.engine.place(Placement {
                instances: instances.value(row),
                tensor_parallel: tensor_parallel.value(row),
            });
        }
    }

    fn request(&mut self, step: Step, capabilities: impl FnOnce() -> Capabilities, batch: &Batch) {
        let loading = self.policies.remove(&step).map(|policy| {
            let asked = self.clock.now();
            self.engine.load(&policy);
            (policy.version, asked)
        });
        // Rounds go in the order of steps: an earlier one asked another worker alone.
        self.policies = self.policies.split_off(&step);
        self.steps.entry(step).or_insert_with(|| UnderWay {
            capabilities: capabilities(),
            loading,
            prompts: BTreeMap::new(),
            owed: 0,
        });
        let actions = batch.values::<UInt8Type>(column::ACTION);
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let firsts = batch.values::<UInt32Type>(column::SAMPLE);
        let counts = batch.values::<UInt32Type>(column::SAMPLES);
        let ticks = batch.values::<UInt64Type>(column::TICK);
        for row in Row::all(batch) {
            let index = row.index;
            let prompt = PromptId(prompts.value(index));
            let samples = firsts.value(index)..firsts.value(index) + counts.value(index);
            match actions.value(index) {
                LAUNCH => self.launch(step, prompt, samples, row),
                ADVANCE => self.advance(Tick(ticks.value(index))),
                action => samples.for_each(|sample| {
                    self.stop(SampleId { step, prompt, sample }, action == PAUSE);
                }),
            }
        }
        if let Some(notices) = &mut self.notices {
            notices.take_in(batch.num_rows());
        }
    }

    /// Asks for samples of a prompt, or for the rest of them.
    fn launch(&mut self, step: Step, prompt: PromptId, samples: Range<u32>, row: Row) {
        let (batch, index) = (&row.batch, row.index);
        let prompt_ids: Arc<[i32]> = batch.lists::<Int32Type>(column::PROMPT_IDS).get(index).into();
        let version =
            PolicyVersion(batch.values::<UInt64Type>(column::POLICY_VERSION).value(index));
        if let Some(under_way) = self.steps.get_mut(&step) {
            under_way.owed += samples.len();
            self.generating.begin(samples.len());
            under_way.prompts.insert(prompt, Launched { row, version });
        }
        self.kept.open(step);
        let Launch { runs, again } = self.kept.launch(step, prompt, samples);
        for (samples, resumed) in runs {
            let ids = samples.clone().map(|sample| SampleId { step, prompt, sample });
            ids.for_each(|id| self.waiting.begin(id, "the engine's response"));
            let prompt_ids = Arc::clone(&prompt_ids);
            self.engine.generate(Request { step, prompt, samples, prompt_ids, resumed });
        }
        if let Some(notices) = &mut self.notices {
            again.iter().for_each(|ended| notices.end(&ended.completion));
        }
        self.ended.entry(step).or_default().extend(again);
    }

    /// Stops a response, to go on later if it is `paused`.
    fn stop(&mut self, id: SampleId, paused: bool) {
        if paused {
            self.kept.pause(id);
        }
        match self.race_side() {
            Some((notices, lockstep)) => lockstep.abort_at(id, notices.tick()),
            None => self.engine.abort(id),
        }
    }

    /// What ended up to `tick` is the schedule's to keep: a pause that follows finds it ended.
    fn advance(&mut self, tick: Tick) {
        if let Some((notices, lockstep)) = self.race_side() {
            notices.advance(tick);
            lockstep.advance(tick);
        }
        self.listen();
    }

    /// Tells the schedule what is new of the race, at the earliest step under way.
    fn notice(&mut self, tell: impl FnOnce(&Capability<Step>, Batch)) {
        if self.steps.is_empty() {
            return;
        }
        let news = self.race_side().map(|(notices, side)| notices.batch(side.reached()));
        if let (Some(news), Some(under_way)) = (news, self.steps.values().next()) {
            tell(&under_way.capabilities[3], news);
        }
    }

    /// What races in lockstep, if it does; an engine that is asked for its side of it once is in lockstep from then on.
    fn race_side(&mut self) -> Option<(&mut Notices, &mut dyn Lockstep)> {
        let notices = self.notices.as_mut()?;
        Some((notices, self.engine.lockstep()?))
    }

    /// Tells of each step how long its weights took, once that is known.
    fn tell_loads(&mut self, mut tell: impl FnMut(&Capability<Step>, Batch)) {
        for under_way in self.steps.values_mut() {
            let loading = |(version, asked)| Some(self.engine.loaded_at(version)?.since(asked));
            if let Some(took) = under_way.loading.and_then(loading) {
                under_way.loading = None;
                let load = Metrics::from([(LOAD.to_owned(), took.as_secs_f64())]);
                tell(&under_way.capabilities[2], metrics_batch(&load));
            }
        }
    }

    /// Takes in what the engine reports.
    fn listen(&mut self) {
        while let Some(event) = self.engine.poll() {
            match event {
                RolloutEvent::Completed(completion) => {
                    self.waiting.end(completion.id);
                    let version = self.version(completion.id);
                    let ended = self.kept.end(completion, version);
                    // In lockstep the ends of whole ones were told when the engine had them.
                    if let Some(notices) = &mut self.notices
                        && !ended.completion.finish_reason.is_whole()
                    {
                        notices.end(&ended.completion);
                    }
                    self.ended.entry(ended.completion.id.step).or_default().push(ended);
                }
                RolloutEvent::Failed(error) => self.fail(error.to_string()),
            }
        }
    }

    fn fail(&mut self, message: String) {
        if !std::mem::replace(&mut self.failed, true) {
            self.untold = Some(message);
        }
    }

    /// Passes on what was reported: one batch a step for all responses that ended since the last time.
    fn pass_on(
        &mut self,
        mut respond: impl FnMut(&Capability<Step>, Batch),
        mut fail: impl FnMut(&Capability<Step>, Fault),
    ) {
        if let Some(under_way) = self.steps.values().next()
            && let Some(message) = self.untold.take()
        {
            // The capabilities stay: no frontier may say that these steps are done.
            fail(&under_way.capabilities[1], Fault::new("rollout", message));
        }
        for (step, completions) in std::mem::take(&mut self.ended) {
            if completions.is_empty() {
                continue;
            }
            let under_way = self
                .steps
                .get_mut(&step)
                .expect("invariant: an engine reports what it was asked for");
            respond(&under_way.capabilities[0], response_batch(&completions, &under_way.prompts));
            under_way.owed -= completions.len();
            self.generating.end(completions.len());
        }
    }

    /// The policy that a response was asked of.
    fn version(&self, id: SampleId) -> PolicyVersion {
        let asked =
            self.steps.get(&id.step).and_then(|under_way| under_way.prompts.get(&id.prompt));
        asked.expect("invariant: an engine reports what it was asked for").version
    }

    /// Lets go of steps of which nothing is owed any more.
    fn settle(&mut self) {
        if !self.failed {
            self.steps.retain(|_, under_way| under_way.owed > 0);
        }
    }
}
