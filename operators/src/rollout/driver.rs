//! Translates between streams and a rollout engine.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow::datatypes::{Int32Type, UInt8Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step, Tick};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::watchdog::Waiting;
use rollpacker_stages::rollout::lockstep::Reached;
use rollpacker_stages::rollout::{
    Lockstep, Placement, Policy, Request, RolloutEngine, RolloutEvent,
};
use rollpacker_stages::train::Metrics;

use super::LOAD;
use super::generating::Generating;
use super::kept::{Ended, Kept, Launch, Samples};
use super::notices::Notices;
use super::port::{Capabilities, Port};
use super::responses::response_batch;
use crate::policy::{metrics_batch, policy_of};
use crate::rows::Row;
use crate::schedule::encode::{ADVANCE, LAUNCH, PAUSE};

const NO_LOCKSTEP: &str = "races are to be decided by tokens, and the engine cannot race in lockstep: make it deterministic, or choose another";

/// What is under way at one step.
struct UnderWay {
    capabilities: Capabilities,
    /// The weights that the engine was handed for it and when, until it is told when they were there.
    loading: Option<(PolicyVersion, Nanos)>,
    prompts: BTreeMap<PromptId, Launched>,
    owed: usize,
}

impl UnderWay {
    fn capability(&self, port: Port) -> &Capability<Step> {
        &self.capabilities[port as usize]
    }
}

/// A prompt as it was asked of the engine.
pub(super) struct Launched {
    pub(super) row: Row,
    version: PolicyVersion,
}

/// Requests of a step, with the capabilities for what follows from them.
pub(crate) type HeldRequests = (Step, Capabilities, Batch);

/// What the operator does between its inputs and its outputs.
pub(crate) struct Driver {
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
    /// A driver of an engine that has not been asked for anything, for a schedule that `pauses` responses or never does.
    pub(crate) fn new(engine: Box<dyn RolloutEngine>, pauses: bool, clock: Arc<dyn Clock>) -> Self {
        Self {
            published: None,
            held: Vec::new(),
            generating: Generating::default(),
            engine,
            clock,
            waiting: Waiting::default(),
            steps: BTreeMap::new(),
            policies: BTreeMap::new(),
            kept: Kept::new(pauses),
            notices: None,
            ended: BTreeMap::new(),
            failed: false,
            untold: None,
        }
    }

    /// Lets later requests go on from `samples`, which a snapshot has.
    pub(super) fn resumes(self, samples: Samples) -> Self {
        Self { kept: self.kept.with(samples), ..self }
    }

    /// Counts in `generating` the responses that are under way.
    pub(super) fn counts(self, generating: Generating) -> Self {
        Self { generating, ..self }
    }

    /// Tells `waiting` which responses are outstanding.
    pub(super) fn tells(self, waiting: Waiting) -> Self {
        Self { waiting, ..self }
    }

    pub(crate) fn engine(&mut self) -> &mut dyn RolloutEngine {
        &mut *self.engine
    }

    /// What is kept of paused responses.
    pub(super) fn samples(&self) -> &Samples {
        self.kept.samples()
    }

    /// The first step at which something is asked for, held back or owed.
    pub(crate) fn open(&self) -> Option<Step> {
        let held = self.held.iter().map(|held| held.0);
        self.steps.keys().next().copied().into_iter().chain(held).min()
    }

    /// Races in lockstep, as the rollout of `worker`.
    pub(crate) fn race(&mut self, worker: usize) {
        match self.engine.lockstep() {
            Some(_) => self.notices = Some(Notices::new(worker)),
            None => self.fail(NO_LOCKSTEP.to_owned()),
        }
    }

    /// Keeps the policy of a step for the step's first request: with staleness, an earlier round may still be sampling with its own.
    pub(crate) fn policy(&mut self, step: Step, batch: &Batch) {
        self.policies.insert(step, policy_of(batch, 0));
        self.published = self.published.max(Some(step));
    }

    pub(crate) fn published(&self, step: Step) -> bool {
        self.published >= Some(step)
    }

    /// Keeps requests until this worker has the policy of their step.
    pub(crate) fn hold(&mut self, requests: HeldRequests) {
        self.held.push(requests);
    }

    /// What waited for its policy, and does no more.
    pub(crate) fn take_due(&mut self) -> Vec<HeldRequests> {
        let (due, held) =
            std::mem::take(&mut self.held).into_iter().partition(|held| self.published(held.0));
        self.held = held;
        due
    }

    pub(super) fn place(&mut self, batch: &Batch) {
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

    pub(crate) fn request(
        &mut self,
        step: Step,
        capabilities: impl FnOnce() -> Capabilities,
        batch: &Batch,
    ) {
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

    /// Tells the schedule how far the race has come, at the earliest step under way.
    ///
    /// A step that owes nothing any more is told here for the last time, and without a step there is no capability to tell anything with. An
    /// instance reports an aborted response before it publishes its new floor, so the floor that the engine knows may still be that of the
    /// aborted response. The schedule must not be left with it: it would wait for this worker until the next request. Hence the floor of a
    /// worker that owes nothing is [`Tick::MAX`], whatever the engine has heard.
    fn notice(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        if self.steps.is_empty() {
            return;
        }
        let owes_nothing = self.steps.values().all(|under_way| under_way.owed == 0);
        let Some((notices, side)) = self.race_side() else { return };
        let reached = side.reached();
        let floor = if owes_nothing { Tick::MAX } else { reached.floor };
        let news = notices.batch(Reached { floor, ..reached });
        if let Some(under_way) = self.steps.values().next() {
            give(Port::Notices, under_way.capability(Port::Notices), news);
        }
    }

    /// What races in lockstep, if it does; an engine that is asked for its side of it once is in lockstep from then on.
    fn race_side(&mut self) -> Option<(&mut Notices, &mut dyn Lockstep)> {
        let notices = self.notices.as_mut()?;
        Some((notices, self.engine.lockstep()?))
    }

    /// Takes in what the engine reports, gives out everything that is new, and lets go of the steps that owe nothing any more.
    ///
    /// The order matters: metrics of a step come before its last response, which ends it, and notices after the responses, since they depend
    /// on what is still owed.
    pub(crate) fn report(&mut self, mut give: impl FnMut(Port, &Capability<Step>, Batch)) {
        self.listen();
        self.tell_loads(&mut give);
        self.tell_failure(&mut give);
        self.pass_on(&mut give);
        self.notice(&mut give);
        self.settle();
    }

    /// Tells of each step how long its weights took, once that is known.
    fn tell_loads(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        for under_way in self.steps.values_mut() {
            let loading = |(version, asked)| Some(self.engine.loaded_at(version)?.since(asked));
            if let Some(took) = under_way.loading.and_then(loading) {
                under_way.loading = None;
                let load = Metrics::from([(LOAD.to_owned(), took.as_secs_f64())]);
                give(Port::Metrics, under_way.capability(Port::Metrics), metrics_batch(&load));
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

    /// Tells a failure at the first step under way. Its capabilities stay: no frontier may say that the step is done.
    fn tell_failure(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        if let Some(under_way) = self.steps.values().next()
            && let Some(message) = self.untold.take()
        {
            let faults = faults_batch(&[Fault::new("rollout", message)]);
            give(Port::Errors, under_way.capability(Port::Errors), faults);
        }
    }

    /// Passes on what was reported: one batch a step for all responses that ended since the last time.
    fn pass_on(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        for (step, completions) in std::mem::take(&mut self.ended) {
            if completions.is_empty() {
                continue;
            }
            let under_way = self
                .steps
                .get_mut(&step)
                .expect("invariant: an engine reports what it was asked for");
            let responses = response_batch(&completions, &under_way.prompts);
            give(Port::Responses, under_way.capability(Port::Responses), responses);
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

    /// Lets go of steps that owe nothing any more.
    fn settle(&mut self) {
        if !self.failed {
            self.steps.retain(|_, under_way| under_way.owed > 0);
        }
    }
}
