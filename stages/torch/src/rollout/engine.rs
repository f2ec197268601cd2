//! The torch engine: the policy on this machine, sampled by continuous batching over a KV cache.
//!
//! An engine has several instances, each a thread that owns a decoder and a KV cache. Commands go to each instance over its own channel,
//! and events come back over a shared one. On CPUs, two instances of one thread each decode faster than one instance of two threads,
//! because the two threads wait for each other at every kernel.
//!
//! Before an iteration, an instance executes the commands that have arrived. In the iteration, it preempts responses if the KV budget is
//! exceeded, admits waiting responses, and prefills new prompts, once per prompt for any number of samples. It then samples one token for
//! every running response. Responses that end leave the batch at once, so that no time is spent on padding.
//!
//! Requests made between two calls of `poll` or, in lockstep, `reached` are sent to an instance together, unless a load, an abort or a
//! placement comes between them. If they fit, they start in the same iteration: their prompts are prefilled together, and which response
//! ends first depends on their lengths, not on how fast the requests were made.
//!
//! [`place`](RolloutEngine::place) sets the number of instances that take responses. The others hand over their responses, as prompts and
//! tokens without the cache, and free the memory of the cache; they keep their weights up to date. A response that is handed over is
//! computed again on its new instance, and counts as preempted if it had a cache.
//!
//! Placements count devices. A device is the threads and the KV budget of one instance. With `tensor_parallel` above 1, an instance
//! computes with the devices of several instances, and the other instances hold no responses. When `tensor_parallel` changes, every
//! instance hands over its responses.
//!
//! [Colocated models](super::colocated) run on the placed instances between the iterations of the actor.
//!
//! Equal logits give equal tokens, independent of the rest of the batch. The logits themselves are equal up to floating-point
//! reassociation, because matrix kernels may sum in a different order for a different number of rows. A token then differs if its random
//! number falls between the two cumulative sums. Over 49,152 tokens of a vocabulary of 512, at 7, 32 and 64 rows, no token differed. A
//! [deterministic](TorchEngineConfig::deterministic) engine computes bit-identical logits, and supports races in
//! [lockstep](super::lockstep).

#[cfg(test)]
mod interleaving;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::{PolicyVersion, SampleId, Tick};

use super::colocated::{ColocatedModels, ColocatedUseMeter};
use super::dispatch::{Abort, Dispatch, Route};
use super::instance::{InstanceCommand, Report, ReportSender};
use super::instance_handle::{self, InstanceContext, InstanceHandle};
use super::live::LiveIterations;
use super::lockstep::{Lockstep, Reached};
use super::options::{Detokenize, TorchEngineConfig, TorchEngineError};
use super::race::{Launch, LockstepRace};
use super::replay::Replay;
use super::sampling::RandomStream;
use super::sequence::Sequence;
use super::statistics::InstanceStatistics;
use super::validation;
use super::{
    FinishReason, Partial, Placement, Policy, Request, RolloutEngine, RolloutError, RolloutEvent,
    Waker, Work,
};
use crate::model::inference::InferenceDecoder;
use crate::model::{Decoder, WeightStore};

/// A rollout engine on libtorch that generates responses on threads of this process.
///
/// Each response goes to the placed instance with the fewest responses in flight, the first among equals; initially all instances are
/// placed. After a [`Failed`](RolloutEvent::Failed) event the engine has stopped and discards all requests. Dropping the engine stops each
/// instance after its current iteration, and waits until all threads have ended. Unfinished responses are not reported.
///
/// [`load`](RolloutEngine::load) does not interrupt responses: responses that were requested before continue with the new weights and the
/// KV cache of the old weights. Their token versions show which policy sampled each token. A
/// [deterministic](TorchEngineConfig::deterministic) engine finishes these responses with the old weights instead.
pub struct TorchEngine {
    shared: InstanceContext,
    weights: WeightStore,
    /// Maximum number of tokens of a prompt and its response together.
    token_limit: usize,
    instances: Vec<InstanceHandle>,
    dispatch: Dispatch<Sequence>,
    /// Number of devices of each placed instance.
    tensor_parallel: u32,
    /// Responses that are assigned to instances but not sent yet, by instance.
    requested: BTreeMap<usize, Vec<Sequence>>,
    replay: Option<Replay>,
    received: Receiver<Report>,
    colocated_models: ColocatedModels,
    /// The version of the policy in the last call of [`load`](RolloutEngine::load); 0 before the first call.
    policy: PolicyVersion,
    /// The state of lockstep mode; present once the lockstep interface was requested.
    race: Option<LockstepRace>,
    failed: bool,
}

impl TorchEngine {
    /// Starts the instances, which share the weights.
    ///
    /// Until the first [`load`](RolloutEngine::load) the instances sample with the weights of `decoder`, as policy version 0; later
    /// policies are read from `weights`. `detokenize` makes the text of each completed response. `clock` gives the times of responses and
    /// iterations.
    ///
    /// # Errors
    /// Returns an error if an option is out of bounds, the machine cannot generate deterministically although the options require it,
    /// memory cannot be allocated, or the system cannot create a thread.
    pub fn start(
        config: TorchEngineConfig,
        decoder: Decoder,
        weights: WeightStore,
        detokenize: Detokenize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TorchEngineError> {
        config.check()?;
        let token_limit = config.token_limit(decoder.config())?;
        let mut decoder = InferenceDecoder::new(decoder, config.dtype)?;
        let passes = instance_handle::select_passes(&config, &mut decoder)?;
        let (sender, received) = channel();
        let (reports, busy) = (ReportSender::new(sender), Arc::default());
        let shared = InstanceContext { config, detokenize, clock, reports, busy, passes };
        let mut engine = Self::without_instances(shared, weights, received, token_limit);
        for number in 0..engine.shared.config.instances {
            engine.instances.push(engine.shared.start(number, decoder.share(), token_limit)?);
        }
        Ok(engine)
    }

    /// Creates an engine without instances; the caller adds them.
    fn without_instances(
        shared: InstanceContext,
        weights: WeightStore,
        received: Receiver<Report>,
        token_limit: usize,
    ) -> Self {
        let TorchEngineConfig { instances, deterministic, replay, .. } = &shared.config;
        Self {
            dispatch: Dispatch::new(*instances as usize),
            tensor_parallel: 1,
            replay: replay.clone().map(|replay| Replay::new(replay, *deterministic)),
            shared,
            weights,
            token_limit,
            instances: Vec::new(),
            requested: BTreeMap::new(),
            received,
            colocated_models: ColocatedModels::default(),
            policy: PolicyVersion(0),
            race: None,
            failed: false,
        }
    }

    /// Returns the counters of each instance since it started. The call does not interrupt the instances.
    #[must_use]
    pub fn statistics(&self) -> Vec<InstanceStatistics> {
        let slots = self.shared.config.max_running;
        self.instances.iter().map(|handle| handle.counters.read(slots)).collect()
    }

    /// Returns a reader of the decode iterations of the running engine, for comparison with a profile.
    #[must_use]
    pub fn live_iterations(&self) -> LiveIterations {
        LiveIterations::new(
            self.instances.iter().map(|handle| Arc::clone(&handle.counters)).collect(),
        )
    }

    /// Runs the models of the list `models` on the placed instances. An instance that is placed later runs the models that are in the list
    /// at that time. Call this once. Colocated models leave an instance that is released, and leave the engine when it fails or is dropped;
    /// requests to these models are answered nevertheless.
    pub fn colocate(&mut self, models: &ColocatedModels) {
        self.colocated_models = models.clone();
        self.colocate_on(0..self.dispatch.placed());
    }

    /// Returns a meter of the work of the colocated models: the tokens that they process, and the time that they take between the engine's
    /// own iterations, summed over the instances.
    #[must_use]
    pub fn colocated_use(&self) -> ColocatedUseMeter {
        ColocatedUseMeter::new(
            self.instances.iter().map(|handle| Arc::clone(&handle.counters)).collect(),
        )
    }

    /// Sends the colocated models to `instances`, which must not have colocated models or must have been sent a hand-over.
    ///
    /// Each instance asks the models for workloads itself, after the hand-overs that it was sent.
    fn colocate_on(&self, instances: Range<usize>) {
        if self.colocated_models.is_empty() {
            return;
        }
        for handle in &self.instances[instances] {
            let models = self.colocated_models.clone();
            handle.send(InstanceCommand::Colocate(models, handle.waker()));
        }
    }

    /// Creates a sequence for each sample of a request; samples with a partial response are resumed.
    fn sequences(&mut self, request: &Request) -> Vec<(SampleId, Sequence)> {
        let mut resumed = request.resumed.iter().peekable();
        let samples = request.samples.clone();
        samples
            .map(|sample| {
                let partial = resumed.next_if(|partial| partial.sample == sample);
                self.sequence(request, sample, partial)
            })
            .collect()
    }

    fn sequence(
        &mut self,
        request: &Request,
        sample: u32,
        partial: Option<&Partial>,
    ) -> (SampleId, Sequence) {
        let id = SampleId { step: request.step, prompt: request.prompt, sample };
        let launched =
            SampleId { step: partial.map_or(request.step, |partial| partial.launched), ..id };
        let stream = RandomStream::new(self.shared.config.seed, launched);
        let forced_length = self.replay.as_mut().map(|replay| match partial {
            Some(_) => replay.resume(launched),
            None => replay.launch(launched),
        });
        let (prompt_ids, sampling) = (Arc::clone(&request.prompt_ids), self.shared.config.sampling);
        let launch = self.launch(id, partial.map_or(0, |partial| partial.response_length));
        let fresh = Sequence::new(id, prompt_ids, sampling, stream)
            .with_forced_length(forced_length)
            .with_launch(launch);
        match partial {
            Some(partial) => (id, fresh.resume(partial)),
            None => (id, fresh),
        }
    }

    /// Returns the launch of a response, and records it in lockstep mode. `resumed_tokens` is the number of tokens that the response is
    /// resumed with, 0 for a new response.
    fn launch(&mut self, id: SampleId, resumed_tokens: u32) -> Launch {
        let tick = self.race.as_ref().map_or(Tick(0), LockstepRace::now);
        let launch = Launch { tick, resumed_tokens, policy: self.policy };
        if let Some(race) = &mut self.race {
            race.launch(id, launch);
        }
        launch
    }

    /// Queues routed responses for their instances; [`send_requested`](Self::send_requested) sends them. Reports the responses that end as
    /// aborted. The first [late](Self::is_late) response fails the engine, and the routes after it are discarded.
    fn queue_routes(&mut self, routes: Vec<Route<Sequence>>) {
        for route in routes {
            match route {
                Route::To(instance, sequence) if self.is_late(&sequence) => {
                    return self.refuse_late(instance, &sequence);
                }
                Route::To(instance, sequence) => {
                    self.requested.entry(instance).or_default().push(sequence);
                }
                Route::Ends(sequence) => self.report_abort(sequence),
            }
        }
    }

    /// Returns `true` if the engine is deterministic, so that a response keeps its policy, and a newer policy has been loaded since the
    /// response was requested.
    fn is_late(&self, sequence: &Sequence) -> bool {
        self.shared.config.deterministic && sequence.launch.policy != self.policy
    }

    fn refuse_late(&self, instance: usize, sequence: &Sequence) {
        let (id, requested, loaded) = (sequence.id, sequence.launch.policy, self.policy);
        let reason = format!(
            "{id} was requested under policy {requested}, but its instance was released after {loaded} was loaded; \
             deterministic generation uses one policy per response"
        );
        let instance = u32::try_from(instance).unwrap_or(u32::MAX);
        self.refuse(RolloutError::Engine { instance, reason });
    }

    /// Sends the queued responses to their instances.
    fn send_requested(&mut self) {
        for (instance, batch) in std::mem::take(&mut self.requested) {
            self.instances[instance].send_batch(batch);
        }
    }

    /// Reports a response that was aborted while no instance had it. The report names instance 0.
    fn report_abort(&self, sequence: Sequence) {
        let (now, detokenize) = (self.shared.clock.now(), &*self.shared.detokenize);
        let completion = sequence.complete(FinishReason::Abort, now, 0, detokenize);
        self.shared.reports.send([Report::Completed(completion)]);
    }

    /// Assigns the responses that an instance has handed over to placed instances and sends them. Reports those that were aborted
    /// meanwhile.
    fn reassign(&mut self, sequences: Vec<Sequence>) {
        let routes = sequences
            .into_iter()
            .filter_map(|sequence| self.dispatch.send_again(sequence.id, sequence))
            .collect();
        self.queue_routes(routes);
        self.send_requested();
    }

    /// Returns the next event of the instances; `None` if there is no event now, or the engine has failed. [Reassigns](Self::reassign) the
    /// responses that instances have handed over.
    fn receive(&mut self) -> Option<RolloutEvent> {
        while !self.failed {
            match self.received.try_recv().ok()? {
                Report::Completed(completion) => {
                    self.dispatch.end(completion.id);
                    if completion.finish_reason.is_whole()
                        && let Some(replay) = &mut self.replay
                    {
                        replay.end(completion.id);
                    }
                    return Some(RolloutEvent::Completed(completion));
                }
                Report::HandedOver(sequences) => self.reassign(sequences),
                Report::Failed(error) => {
                    self.fail();
                    return Some(RolloutEvent::Failed(error));
                }
            }
        }
        None
    }

    /// Moves the events of the instances into the lockstep race.
    fn collect_events(&mut self) {
        while let Some(event) = self.receive() {
            if let Some(race) = &mut self.race {
                race.process_event(event, &self.shared.detokenize);
            }
        }
    }

    /// Aborts a response. The response keeps the tokens that it had at `tick`, or all its tokens if `tick` is `None`.
    fn drop_response(&mut self, id: SampleId, tick: Option<Tick>) {
        // The instance must receive the response before its abort.
        self.send_requested();
        if let Some(race) = &mut self.race
            && !race.abort(id, tick, &self.shared.detokenize)
        {
            return self.shared.reports.wake();
        }
        match self.dispatch.abort(id) {
            Abort::Of(instance) => self.instances[instance].send(InstanceCommand::Abort(id)),
            Abort::Held(sequence) => self.report_abort(sequence),
            Abort::Unknown => {}
        }
    }

    fn refuse(&self, error: RolloutError) {
        self.shared.reports.send([Report::Failed(error)]);
    }

    fn fail(&mut self) {
        self.failed = true;
        self.instances.iter_mut().for_each(InstanceHandle::close);
        self.dispatch.clear();
        self.requested.clear();
    }
}

impl RolloutEngine for TorchEngine {
    fn load(&mut self, policy: &Policy) {
        // Earlier requests must reach the instances before the new policy.
        self.send_requested();
        self.policy = policy.version;
        match self.weights.find(policy) {
            Ok(weights) => self.instances.iter().for_each(|handle| {
                handle.send(InstanceCommand::Load(policy.clone(), weights.share()));
            }),
            Err(error) => self.refuse(RolloutError::Load {
                version: policy.version,
                location: policy.location.clone(),
                reason: error.to_string(),
            }),
        }
    }

    fn generate(&mut self, request: Request) {
        let longest_response = self.shared.config.sampling.max_new_tokens;
        if let Err(error) = validation::check(&request, self.token_limit, longest_response) {
            return self.refuse(error);
        }
        let sequences = self.sequences(&request).into_iter();
        let routes = sequences.filter_map(|(id, sequence)| self.dispatch.send(id, sequence));
        let routes = routes.collect();
        let was_idle = self.requested.is_empty();
        self.queue_routes(routes);
        if was_idle && !self.requested.is_empty() {
            self.shared.reports.wake();
        }
    }

    fn abort(&mut self, id: SampleId) {
        self.drop_response(id, None);
    }

    fn place(&mut self, placement: Placement) {
        let Placement { instances, tensor_parallel } = placement;
        if !self.shared.config.has_devices_for(placement) {
            let instances = self.shared.config.instances;
            return self.refuse(RolloutError::Placement { found: placement, instances });
        }
        // Earlier requests must reach the instances before they hand over their responses.
        self.send_requested();
        let (before, instances) = (self.dispatch.placed(), instances as usize);
        let (mut released, held) = self.dispatch.place(instances);
        let mut taken = before.min(instances)..instances;
        let reshaped = instances > 0 && tensor_parallel != self.tensor_parallel;
        if reshaped {
            (released, taken) = (0..before, 0..instances);
        }
        self.instances[released].iter().for_each(|handle| handle.send(InstanceCommand::HandOver));
        if reshaped {
            self.tensor_parallel = tensor_parallel;
            let (placed, joined) = self.instances.split_at(instances);
            placed
                .iter()
                .for_each(|handle| handle.send(InstanceCommand::SetDevices(tensor_parallel)));
            joined.iter().for_each(|handle| handle.send(InstanceCommand::SetDevices(1)));
        }
        self.colocate_on(taken);
        let sent = held.into_iter().filter_map(|(id, sequence)| self.dispatch.send(id, sequence));
        let routes = sent.collect();
        self.queue_routes(routes);
        self.send_requested();
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        let each = self.instances.iter().map(|handle| handle.counters.loaded_at(version));
        each.collect::<Option<Vec<_>>>()?.into_iter().max()
    }

    fn work(&self) -> Option<Work> {
        let counters: Vec<_> =
            self.instances.iter().map(|handle| Arc::clone(&handle.counters)).collect();
        Some(Box::new(move || counters.iter().map(|of| of.work()).fold(0, u64::wrapping_add)))
    }

    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        if !self.shared.config.deterministic {
            return None;
        }
        self.race.get_or_insert_default();
        Some(self)
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.send_requested();
        if self.race.is_none() {
            return self.receive();
        }
        self.collect_events();
        let race = self.race.as_mut()?;
        race.advance(race.now());
        race.event()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.shared.reports.wake_by(waker);
    }
}

impl Lockstep for TorchEngine {
    fn reached(&mut self) -> Reached {
        self.send_requested();
        self.shared.reports.clear_progress_wake();
        // All ends up to the returned floor must have been gathered, although the instances keep running. Three orderings ensure this:
        // 1. `clear_progress_wake` precedes the reads, so that progress after them wakes the caller again.
        // 2. Floors are read before the reports are gathered. An instance sends the ends up to a floor before it publishes the floor, so
        //    `collect_events` receives all of them. In the other order an end could arrive between the two reads and be missed.
        let floors = self.instances.iter_mut().map(InstanceHandle::floor).min();
        self.collect_events();
        // 3. Gathering may move responses that an instance handed over. They are then in transit to an instance whose floor was read
        //    before, or held, so both are included.
        let in_flight = self.instances.iter().map(InstanceHandle::in_flight_floor).min();
        let held = self.dispatch.held().map(Sequence::tick).min();
        let floor = [floors, in_flight, held].into_iter().flatten().min().unwrap_or(Tick::MAX);
        self.race.get_or_insert_default().reached(floor)
    }

    fn advance(&mut self, tick: Tick) {
        if self.race.get_or_insert_default().advance(tick) {
            self.shared.reports.wake();
        }
    }

    fn abort_at(&mut self, id: SampleId, tick: Tick) {
        self.drop_response(id, Some(tick));
    }
}

impl Drop for TorchEngine {
    fn drop(&mut self) {
        // Close all channels before joining a thread, so that the instances stop concurrently.
        self.instances.iter_mut().for_each(InstanceHandle::close);
        self.instances.iter_mut().for_each(InstanceHandle::join);
    }
}
