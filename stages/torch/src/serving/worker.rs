//! An instance of a serving engine: the loop of its thread.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, TryRecvError};

use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::rollout::sampling::RandomStream;
use rollpacker_stages::serving::{Generation, GenerationId, Pause, ServingError, TokenReceiver};
use tch::TchError;
use tokio::sync::oneshot;

use super::counters::ServingCounters;
use super::logprobs;
use crate::model::inference::InferenceDecoder;
use crate::model::kernel_threads;
use crate::rollout::generator::{Capacity, Generator, GeneratorError};
use crate::rollout::sequence::Sequence;

/// The channel that reports to the caller that a command has taken effect, or the reason why it has not.
pub(super) type Reply = oneshot::Sender<Result<(), ServingError>>;

/// A command to an instance. Commands are executed in order, between decode iterations.
pub(super) enum Command {
    /// Starts a request; during a pause, holds it until the pause ends.
    Generate(Generation),
    /// Aborts all responses of a request.
    Abort(GenerationId),
    /// Aborts one response of a request. Has no effect on a held request, so at least one token of the response must have been reported.
    AbortSample(GenerationId, u32),
    Pause(Pause, Reply),
    /// Ends the pause and starts the held requests.
    Resume(Reply),
    /// Samples with these weights from the next iteration on. The KV caches of running responses are kept.
    Load(InferenceDecoder, Reply),
    /// Marks later tokens with this label.
    Label(Arc<str>, Reply),
}

/// The state of an instance, owned by its thread.
pub(super) struct Worker {
    pub(super) generator: Generator<InferenceDecoder>,
    commands: Receiver<Command>,
    pub(super) counters: Arc<ServingCounters>,
    /// The requests in the generator.
    pub(super) open: BTreeMap<GenerationId, OpenGeneration>,
    /// The requests that arrived during a pause, in order.
    held: VecDeque<Generation>,
    gate: Gate,
    /// The callers of [`Pause::Wait`]. They get their replies when the gate is closed and no request is in the generator. If the gate opens
    /// before, they get an error.
    draining: Vec<Reply>,
    seed: u64,
    pub(super) label: Arc<str>,
    /// Number of times that weights were loaded. It is the version of the weights for the generator, which does not share cache entries
    /// across versions.
    loads: u64,
}

/// A request whose responses are being generated.
pub(super) struct OpenGeneration {
    /// The receiver of the tokens and of the ends of the responses.
    pub(super) receiver: Box<dyn TokenReceiver>,
    /// Number of most likely tokens to report with each sampled token; `None` to report no log-probabilities.
    pub(super) logprobs: Option<u32>,
    samples: u32,
    /// Number of responses that have not ended.
    unfinished: u32,
}

/// The state that determines whether the generator runs and takes new requests.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Gate {
    /// The generator runs and takes new requests.
    Open,
    /// The requests in the generator run to their end, and new requests wait; then the gate closes.
    Draining,
    /// The generator does not run, and requests wait.
    Closed,
}

impl Worker {
    pub(super) fn new(
        decoder: InferenceDecoder,
        capacity: Capacity,
        commands: Receiver<Command>,
        counters: Arc<ServingCounters>,
        seed: u64,
        label: Arc<str>,
    ) -> Result<Self, TchError> {
        Ok(Self {
            generator: Generator::new(decoder, capacity)?,
            commands,
            counters,
            open: BTreeMap::new(),
            held: VecDeque::new(),
            gate: Gate::Open,
            draining: Vec::new(),
            seed,
            label,
            loads: 0,
        })
    }

    /// Runs until the engine is dropped. Returns an error if an operation fails or a log-probability is not finite.
    pub(super) fn run(&mut self) -> Result<(), GeneratorError> {
        let _no_grad = tch::no_grad_guard();
        loop {
            let has_work = self.gate != Gate::Closed && !self.generator.is_idle();
            let next = if has_work {
                self.commands.try_recv()
            } else {
                self.commands.recv().map_err(Into::into)
            };
            match next {
                Ok(command) => self.execute(command)?,
                Err(TryRecvError::Disconnected) => return Ok(()),
                Err(TryRecvError::Empty) => self.iterate()?,
            }
        }
    }

    /// Answers the requests in flight, and all requests that arrive until the engine is dropped, with a failure.
    pub(super) fn fail_all(&mut self, reason: &str) {
        self.counters.fail(reason);
        let open = std::mem::take(&mut self.open).into_values().map(|open| open.receiver);
        let held = self.held.drain(..).map(|generation| generation.receiver);
        open.chain(held).for_each(|mut receiver| receiver.fail(reason));
        // The replies of other commands are dropped, which their callers see as a failure.
        self.draining.clear();
        while let Ok(command) = self.commands.recv() {
            if let Command::Generate(mut generation) = command {
                generation.receiver.fail(reason);
            }
        }
    }

    fn execute(&mut self, command: Command) -> Result<(), GeneratorError> {
        match command {
            Command::Generate(generation) => self.start_or_hold(generation)?,
            Command::Abort(id) => self.abort(id)?,
            Command::AbortSample(id, sample) => self.abort_sample(id, sample)?,
            Command::Pause(mode, reply) => self.pause(mode, reply)?,
            Command::Resume(reply) => self.resume(reply)?,
            Command::Load(decoder, reply) => self.load(decoder, reply),
            Command::Label(label, reply) => {
                self.label = label;
                self.answer(reply);
            }
        }
        self.count_requests();
        Ok(())
    }

    fn start_or_hold(&mut self, generation: Generation) -> Result<(), GeneratorError> {
        match self.gate {
            Gate::Open => self.start(generation),
            Gate::Draining | Gate::Closed => {
                self.held.push_back(generation);
                Ok(())
            }
        }
    }

    fn start(&mut self, mut generation: Generation) -> Result<(), GeneratorError> {
        if let Some(top) = generation.prompt_logprobs {
            let decoder = self.generator.network_mut();
            let prompt = &generation.prompt_ids;
            let scored =
                kernel_threads::with_libtorch_threads(|| logprobs::of_prompt(decoder, prompt, top));
            match scored {
                Ok(scored) => generation.receiver.prompt(scored),
                Err(error) => {
                    // A held request is answered when the instance fails.
                    self.held.push_front(generation);
                    return Err(error.into());
                }
            }
        }
        for sample in 0..generation.samples {
            let sequence = self.sequence(&generation, sample);
            self.generator.push(sequence);
        }
        let Generation { id, samples, logprobs, receiver, .. } = generation;
        if samples > 0 {
            let open = OpenGeneration { receiver, logprobs, samples, unfinished: samples };
            self.open.insert(id, open);
        }
        Ok(())
    }

    fn sequence(&self, generation: &Generation, sample: u32) -> Sequence {
        let id = SampleId { step: Step(0), prompt: PromptId(generation.id.0), sample };
        // The steps differ, so that no request without a seed draws the numbers of one with a seed.
        let stream = match generation.seed {
            Some(seed) => {
                RandomStream::new(seed, SampleId { step: Step(1), prompt: PromptId(0), sample })
            }
            None => RandomStream::new(self.seed, id),
        };
        Sequence::new(id, Arc::clone(&generation.prompt_ids), generation.sampling, stream)
            .with_end_tokens(generation.ends.clone())
    }

    fn abort(&mut self, id: GenerationId) -> Result<(), GeneratorError> {
        if let Some(at) = self.held.iter().position(|held| held.id == id) {
            let held = self.held.remove(at);
            held.into_iter().for_each(|held| self.abort_held(held));
        }
        let samples = self.open.get(&id).map_or(0, |open| open.samples);
        (0..samples).try_for_each(|sample| self.abort_sample(id, sample))
    }

    fn abort_sample(&mut self, id: GenerationId, sample: u32) -> Result<(), GeneratorError> {
        let id = SampleId { step: Step(0), prompt: PromptId(id.0), sample };
        if self.generator.remove(id)?.is_some() {
            self.count_requests();
            self.end(id, FinishReason::Abort);
        }
        self.close_if_drained();
        Ok(())
    }

    fn abort_held(&self, mut generation: Generation) {
        for sample in 0..generation.samples {
            self.counters.end();
            generation.receiver.end(sample, FinishReason::Abort);
        }
    }

    fn abort_all(&mut self) -> Result<(), GeneratorError> {
        let held = self.held.iter().map(|held| held.id);
        let all: Vec<GenerationId> = self.open.keys().copied().chain(held).collect();
        all.into_iter().try_for_each(|id| self.abort(id))
    }

    fn pause(&mut self, mode: Pause, reply: Reply) -> Result<(), GeneratorError> {
        match mode {
            Pause::Wait => {
                self.draining.push(reply);
                if self.gate == Gate::Open {
                    self.gate = Gate::Draining;
                }
            }
            Pause::Keep => {
                self.close();
                self.answer(reply);
            }
            Pause::Abort => {
                self.abort_all()?;
                self.close();
                self.answer(reply);
            }
        }
        self.close_if_drained();
        Ok(())
    }

    fn resume(&mut self, reply: Reply) -> Result<(), GeneratorError> {
        self.gate = Gate::Open;
        self.counters.set_paused(false);
        self.answer_draining(&Err(ServingError::Resumed));
        while let Some(generation) = self.held.pop_front() {
            self.start(generation)?;
        }
        self.answer(reply);
        Ok(())
    }

    /// Closes the gate if the generator has drained, and answers the callers that waited for this.
    pub(super) fn close_if_drained(&mut self) {
        if self.gate != Gate::Open && self.generator.is_idle() {
            self.close();
            self.answer_draining(&Ok(()));
        }
    }

    fn close(&mut self) {
        self.gate = Gate::Closed;
        self.counters.set_paused(true);
    }

    fn answer_draining(&mut self, result: &Result<(), ServingError>) {
        for reply in std::mem::take(&mut self.draining) {
            self.send(reply, result.clone());
        }
    }

    fn load(&mut self, decoder: InferenceDecoder, reply: Reply) {
        self.loads += 1;
        *self.generator.network_mut() = decoder;
        self.generator.set_version(PolicyVersion(self.loads));
        self.answer(reply);
    }

    /// Replies to a caller that its command has taken effect.
    fn answer(&self, reply: Reply) {
        self.send(reply, Ok(()));
    }

    /// Sends the result of a command to its caller, unless the caller no longer waits. The requests are counted first, so that the caller
    /// reads statistics that show the effect.
    fn send(&self, reply: Reply, result: Result<(), ServingError>) {
        self.count_requests();
        let _gone = reply.send(result);
    }

    /// Reports the end of a response. Removes the request if this was its last response.
    pub(super) fn end(&mut self, id: SampleId, reason: FinishReason) {
        self.counters.end();
        let generation = generation_of(id);
        let Some(open) = self.open.get_mut(&generation) else { return };
        open.receiver.end(id.sample, reason);
        open.unfinished -= 1;
        if open.unfinished == 0 {
            self.open.remove(&generation);
        }
    }

    pub(super) fn count_requests(&self) {
        let running = self.generator.running();
        let (count, tokens) = (running.len() as u64, running.map(Sequence::tokens).sum::<usize>());
        let held: u64 = self.held.iter().map(|held| u64::from(held.samples)).sum();
        self.counters.update(|statistics| {
            statistics.running = count;
            statistics.waiting = self.generator.waiting() as u64 + held;
            statistics.kv_cache_tokens = tokens as u64;
        });
    }
}

pub(super) fn generation_of(id: SampleId) -> GenerationId {
    GenerationId(id.prompt.0)
}
