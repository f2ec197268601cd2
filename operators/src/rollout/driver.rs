//! Translates between streams and a rollout engine.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use arrow_array::types::{Int32Type, UInt8Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::fault::{Fault, Origin, faults_batch};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step, Tick};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::watchdog::WaitHandle;
use rollpacker_stages::rollout::lockstep::Reached;
use rollpacker_stages::rollout::{
    CheckedEngine, Lockstep, Placement, Policy, Request, RolloutEngine, RolloutError, RolloutEvent,
};
use rollpacker_stages::train::named_metrics;
use rustc_hash::FxHashMap;

use super::kept_responses::{EndedResponse, KeptById, KeptResponses, LaunchPlan};
use super::notices::Notices;
use super::port::{Port, RolloutCapabilities};
use super::responses::{LaunchedPrompt, response_batch};
use crate::in_flight::InFlightResponses;
use crate::policy::{metrics_batch, policy_of};
use crate::wire::action::{ADVANCE, LAUNCH, PAUSE};
use crate::wire::metric::LOAD;
use crate::wire::rows::Row;

/// The maximum number of rows of a batch of responses. Each long list of a batch has its own buffer. The limit bounds the cost of gathering
/// rows, which visits all buffers of the batches that contain the rows.
const BATCH_ROWS: usize = 256;

const NO_LOCKSTEP: &str = "the run requires races that are decided by tokens, but the engine cannot race in lockstep: make the engine deterministic, or choose another engine";

/// The requests of one step that are in flight.
struct StepInFlight {
    capabilities: RolloutCapabilities,
    /// The policy version that the engine was asked to load for this step, and the time of the request. `None` once the loading time has
    /// been reported, or if the step was open before and its policy was loaded then.
    loading: Option<(PolicyVersion, Nanos)>,
    prompts: FxHashMap<PromptId, LaunchedPrompt>,
    /// The number of responses that were requested and not returned yet.
    outstanding: usize,
}

impl StepInFlight {
    fn capability(&self, port: Port) -> &Capability<Step> {
        &self.capabilities[port as usize]
    }
}

/// The requests of a step, with the capabilities for the outputs that follow from them.
pub(crate) type HeldRequests = (Step, RolloutCapabilities, Batch);

pub(crate) struct RolloutDriver {
    engine: CheckedEngine,
    clock: Arc<dyn Clock>,
    /// The index of this worker, and the number of workers.
    worker: (u32, u32),
    waiting: WaitHandle,
    steps: BTreeMap<Step, StepInFlight>,
    /// The policies of steps without a request so far.
    policies: BTreeMap<Step, Policy>,
    /// The last step whose policy was received.
    published: Option<Step>,
    /// Requests that arrived before this worker received the policy of their step.
    held: Vec<HeldRequests>,
    in_flight: InFlightResponses,
    kept: KeptResponses,
    /// The progress that is reported to the schedule; present in lockstep mode only.
    notices: Option<Notices>,
    /// Responses that ended and were not passed on yet.
    ended: BTreeMap<Step, Vec<EndedResponse>>,
    /// `true` after a failure. The capabilities of all open steps are then kept.
    failed: bool,
    /// A failure that was not reported yet, because no step is open or the previous step is being saved.
    unreported_failure: Option<Fault>,
    /// `true` while the failure waits for a snapshot of the previous step.
    is_saving: bool,
}

impl RolloutDriver {
    /// Creates a driver of `engine`, without requests. `pauses` is `true` if the schedule may pause responses.
    pub(crate) fn new(engine: Box<dyn RolloutEngine>, pauses: bool, clock: Arc<dyn Clock>) -> Self {
        Self {
            published: None,
            held: Vec::new(),
            in_flight: InFlightResponses::default(),
            engine: CheckedEngine::new(engine),
            clock,
            worker: (0, 1),
            waiting: WaitHandle::default(),
            steps: BTreeMap::new(),
            policies: BTreeMap::new(),
            kept: KeptResponses::new(pauses),
            notices: None,
            ended: BTreeMap::new(),
            failed: false,
            unreported_failure: None,
            is_saving: false,
        }
    }

    /// Sets the index of this worker and the number of workers, from which the instances of the engine get numbers that are unique among
    /// all workers.
    pub(super) fn with_worker(self, index: usize, peers: usize) -> Self {
        Self { worker: (index as u32, peers as u32), ..self }
    }

    /// Restores the responses that a snapshot kept; later requests continue partial responses and return whole ones.
    pub(super) fn with_kept(self, samples: KeptById) -> Self {
        Self { kept: self.kept.with(samples), ..self }
    }

    /// Counts the responses in flight in `in_flight`.
    pub(super) fn with_counter(self, in_flight: InFlightResponses) -> Self {
        Self { in_flight, ..self }
    }

    /// Sets the handle with which the driver reports the responses that it awaits to the watchdog.
    pub(super) fn with_watchdog(self, waiting: WaitHandle) -> Self {
        Self { waiting, ..self }
    }

    pub(crate) fn engine(&mut self) -> &mut dyn RolloutEngine {
        &mut self.engine
    }

    /// Returns the responses that are kept for later rounds.
    pub(super) fn samples(&self) -> &KeptById {
        self.kept.samples()
    }

    /// Returns the first step that is open or has held requests; `None` if there is none.
    pub(crate) fn open(&self) -> Option<Step> {
        let held = self.held.iter().map(|held| held.0);
        self.steps.keys().next().copied().into_iter().chain(held).min()
    }

    /// Switches the rollout of `worker` to lockstep. If the engine does not support lockstep, records a failure, which ends the run when
    /// the first step opens.
    pub(crate) fn race_in_lockstep(&mut self, worker: usize) {
        match self.engine.lockstep() {
            Some(_) => self.notices = Some(Notices::new(worker)),
            None => self.fail(Fault::new("rollout", Origin::User, NO_LOCKSTEP)),
        }
    }

    /// Keeps the policy of a step until the first request of that step. With staleness, an earlier round may still sample with its own
    /// policy.
    pub(crate) fn on_policy(&mut self, step: Step, batch: &Batch) {
        self.policies.insert(step, policy_of(batch, 0));
        self.published = self.published.max(Some(step));
    }

    /// Returns `true` if this worker has received the policy of `step` or of a later step.
    pub(crate) fn has_policy(&self, step: Step) -> bool {
        self.published >= Some(step)
    }

    /// Keeps requests until this worker has received the policy of their step.
    pub(crate) fn hold(&mut self, requests: HeldRequests) {
        self.held.push(requests);
    }

    /// Removes and returns the held requests whose policy has arrived.
    pub(crate) fn take_ready(&mut self) -> Vec<HeldRequests> {
        let (due, held) =
            std::mem::take(&mut self.held).into_iter().partition(|held| self.has_policy(held.0));
        self.held = held;
        due
    }

    pub(super) fn on_placements(&mut self, batch: &Batch) {
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

    /// Applies a batch of requests of a step, in order. `capabilities` is called only if the step is not open yet.
    ///
    /// The engine loads the policy of a step at the first request of the step, not when the policy arrives. With staleness, the engine may
    /// still sample an earlier round with an earlier policy when the policy arrives.
    pub(crate) fn request(
        &mut self,
        step: Step,
        capabilities: impl FnOnce() -> RolloutCapabilities,
        batch: &Batch,
    ) {
        let loading = self.policies.remove(&step).map(|policy| {
            let requested = self.clock.now();
            self.engine.load(&policy);
            (policy.version, requested)
        });
        // Rounds open in the order of steps. A policy of an earlier step is unused if other workers received all requests of its round.
        self.policies = self.policies.split_off(&step);
        self.steps.entry(step).or_insert_with(|| StepInFlight {
            capabilities: capabilities(),
            loading,
            prompts: FxHashMap::default(),
            outstanding: 0,
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
            notices.record_received(batch.num_rows());
        }
    }

    /// Requests samples of a prompt. Samples that an earlier round kept are continued, or returned again if they were whole.
    fn launch(&mut self, step: Step, prompt: PromptId, samples: Range<u32>, row: Row) {
        let (batch, index) = (&row.batch, row.index);
        let prompt_ids: Arc<[i32]> = batch.lists::<Int32Type>(column::PROMPT_IDS).get(index).into();
        let version =
            PolicyVersion(batch.values::<UInt64Type>(column::POLICY_VERSION).value(index));
        if let Some(open_step) = self.steps.get_mut(&step) {
            open_step.outstanding += samples.len();
            self.in_flight.begin(samples.len());
            open_step.prompts.insert(prompt, LaunchedPrompt { row, version });
        }
        self.kept.open(step);
        let LaunchPlan { runs, returned } = self.kept.launch(step, prompt, samples);
        for (samples, resumed) in runs {
            let ids = samples.clone().map(|sample| SampleId { step, prompt, sample });
            ids.for_each(|id| self.waiting.begin(id, "the engine's response"));
            let prompt_ids = Arc::clone(&prompt_ids);
            self.engine.generate(Request { step, prompt, samples, prompt_ids, resumed });
        }
        if let Some(notices) = &mut self.notices {
            returned.iter().for_each(|ended| notices.end(&ended.completion));
        }
        self.ended.entry(step).or_default().extend(returned);
    }

    /// Stops a response. If `paused` is `true`, the response is kept so that a later round can continue it.
    fn stop(&mut self, id: SampleId, paused: bool) {
        if paused {
            self.kept.pause(id);
        }
        match self.lockstep_parts() {
            Some((notices, lockstep)) => lockstep.abort_at(id, notices.tick()),
            None => self.engine.abort(id),
        }
    }

    /// Announces `tick` to the engine, and immediately collects the responses that ended at `tick` or before. The schedule counts these
    /// responses as ended, so a pause that follows must find them whole.
    fn advance(&mut self, tick: Tick) {
        if let Some((notices, lockstep)) = self.lockstep_parts() {
            notices.advance(tick);
            lockstep.advance(tick);
        }
        self.poll_engine();
    }

    /// Sends the progress of a lockstep race to the schedule, at the earliest open step. Does nothing outside of lockstep mode or if no
    /// step is open.
    ///
    /// Without outstanding responses, the notice has the floor [`Tick::MAX`], because the engine's floor may lag: an instance reports an
    /// aborted response before it publishes its new floor. No later notice could correct a lagging floor before the next request, because
    /// the steps are closed after this notice. The schedule would wait for this worker until then.
    fn send_notice(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        if self.steps.is_empty() {
            return;
        }
        let none_outstanding = self.steps.values().all(|open_step| open_step.outstanding == 0);
        let Some((notices, lockstep)) = self.lockstep_parts() else { return };
        let reached = lockstep.reached();
        let floor = if none_outstanding { Tick::MAX } else { reached.floor };
        let batch = notices.batch(Reached { floor, ..reached });
        if let Some(open_step) = self.steps.values().next() {
            give(Port::Notices, open_step.capability(Port::Notices), batch);
        }
    }

    /// Returns the notices and the lockstep interface of the engine, if the rollout races in lockstep. An engine stays in lockstep after
    /// the first call of [`RolloutEngine::lockstep`].
    fn lockstep_parts(&mut self) -> Option<(&mut Notices, &mut dyn Lockstep)> {
        let notices = self.notices.as_mut()?;
        Some((notices, self.engine.lockstep()?))
    }

    /// Collects the events of the engine, sends everything that is new, and drops the capabilities of steps without outstanding responses.
    ///
    /// The order matters. The last response of a step ends it, so its metrics are sent before. Notices depend on the number of outstanding
    /// responses, so they are sent after the responses.
    pub(crate) fn report(&mut self, mut give: impl FnMut(Port, &Capability<Step>, Batch)) {
        self.poll_engine();
        self.report_loads(&mut give);
        self.report_failure(&mut give);
        self.send_ended(&mut give);
        self.send_notice(&mut give);
        self.drop_finished_steps();
    }

    /// Reports the loading time of the weights of each step, once the engine has measured it.
    fn report_loads(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        for open_step in self.steps.values_mut() {
            let loading =
                |(version, requested)| Some(self.engine.loaded_at(version)?.since(requested));
            if let Some(took) = open_step.loading.and_then(loading) {
                open_step.loading = None;
                let load = named_metrics([(LOAD, took.as_secs_f64())]);
                give(Port::Metrics, open_step.capability(Port::Metrics), metrics_batch(&load));
            }
        }
    }

    fn poll_engine(&mut self) {
        while let Some(event) = self.engine.poll() {
            match event {
                RolloutEvent::Completed(mut completion) => {
                    let (index, peers) = self.worker;
                    completion.instance =
                        completion.instance.saturating_mul(peers).saturating_add(index);
                    self.waiting.end(completion.id);
                    let version = self.version(completion.id);
                    let ended = self.kept.end(completion, version);
                    // In lockstep, the engine reports the ends of whole responses itself, through `Lockstep::reached`.
                    if let Some(notices) = &mut self.notices
                        && !ended.completion.finish_reason.is_whole()
                    {
                        notices.end(&ended.completion);
                    }
                    self.ended.entry(ended.completion.id.step).or_default().push(ended);
                }
                RolloutEvent::Failed(error) => {
                    // The fault is temporary, so the run should be resumable from its last complete step.
                    self.is_saving |= matches!(error, RolloutError::Unavailable { .. });
                    self.fail(Fault::of("rollout", &error));
                }
            }
        }
    }

    /// Returns the first open step, if the step before it must be saved before the failure is reported.
    pub(super) fn step_awaiting_save(&self) -> Option<Step> {
        self.steps.keys().next().copied().filter(|_| self.is_saving)
    }

    /// Records that the step before the failed one was saved, or that it cannot be saved.
    pub(super) fn finish_saving(&mut self) {
        self.is_saving = false;
    }

    fn fail(&mut self, fault: Fault) {
        if !std::mem::replace(&mut self.failed, true) {
            self.unreported_failure = Some(fault);
        }
    }

    /// Reports a failure at the first open step. The capabilities are kept, so that no frontier passes the failed step.
    fn report_failure(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        if !self.is_saving
            && let Some(open_step) = self.steps.values().next()
            && let Some(fault) = self.unreported_failure.take()
        {
            give(Port::Errors, open_step.capability(Port::Errors), faults_batch(&[fault]));
        }
    }

    /// Sends the responses that ended since the last call, in batches of at most [`BATCH_ROWS`] rows of a step.
    fn send_ended(&mut self, give: &mut impl FnMut(Port, &Capability<Step>, Batch)) {
        for (step, completions) in std::mem::take(&mut self.ended) {
            if completions.is_empty() {
                continue;
            }
            let open_step = self
                .steps
                .get_mut(&step)
                .expect("invariant: an engine reports only requested responses");
            open_step.outstanding -= completions.len();
            self.in_flight.end(completions.len());
            let mut completions = completions.into_iter();
            while !completions.as_slice().is_empty() {
                let some = completions.by_ref().take(BATCH_ROWS).collect();
                let responses = response_batch(some, &open_step.prompts);
                give(Port::Responses, open_step.capability(Port::Responses), responses);
            }
        }
    }

    /// Returns the policy version with which a response was requested.
    fn version(&self, id: SampleId) -> PolicyVersion {
        let requested =
            self.steps.get(&id.step).and_then(|open_step| open_step.prompts.get(&id.prompt));
        requested.expect("invariant: an engine reports only requested responses").version
    }

    /// Drops the capabilities of steps without outstanding responses. After a failure, all capabilities are kept.
    fn drop_finished_steps(&mut self) {
        if !self.failed {
            self.steps.retain(|_, open_step| open_step.outstanding > 0);
        }
    }
}
