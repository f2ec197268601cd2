//! The torch engine: the policy on this machine, sampled by continuous batching over a KV cache.
//!
//! An engine is several instances, each a thread that owns a decoder and a KV cache; commands go to them over channels, events come
//! back over one. On CPUs two instances of one thread each decode faster than one of two threads, whose barriers cost more than the
//! small kernels that they split.
//!
//! What an instance does in an iteration: it carries out the commands that have arrived, gives up responses if the KV budget is
//! exceeded, takes up waiting ones, runs the prompts that are new (once a prompt, whatever its number of samples), and samples one
//! token for every running response. Responses that end leave at once, so that no time goes into padding.
//!
//! Equal logits give equal tokens in whatever company a response is generated. The logits themselves are equal up to floating-point
//! reassociation, since matrix kernels may sum in another order for another number of rows; a token differs then if its random number
//! falls between the two cumulative sums. Over 49,152 tokens of a vocabulary of 512, at 7, 32 and 64 rows, none did.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::{SampleId, Step};

use super::instance::{Command, Report, Reports};
pub use super::options::{Detokenize, TorchEngineConfig, TorchEngineError};
use super::owner::{Owner, Shared};
use super::sampling::RandomStream;
use super::sequence::Sequence;
use super::statistics::InstanceStatistics;
use super::{Policy, Request, RolloutEngine, RolloutError, RolloutEvent, Waker};
use crate::model::{Decoder, ModelError, WeightStore};

/// A policy in torch that generates responses on threads of this process.
///
/// Each response goes to the instance that has the fewest under way, the first among equals. A [`Failed`](RolloutEvent::Failed) event
/// ends the engine: it forgets what it was asked for. Dropping it stops the instances after their current iteration.
///
/// [`load`](RolloutEngine::load) does not interrupt: responses that were requested before go on with the new weights and the KV cache
/// of the old ones, and their token versions say from which token on.
pub struct TorchEngine {
    config: TorchEngineConfig,
    /// Tokens that a prompt and its response may have together.
    token_limit: usize,
    instances: Vec<Owner>,
    /// The instance of each response under way.
    launches: BTreeMap<SampleId, usize>,
    /// Responses launched, by step; counted only if lengths are replayed.
    launched: BTreeMap<Step, u64>,
    reports: Reports,
    received: Receiver<Report>,
    failed: bool,
}

impl TorchEngine {
    /// Starts the instances, each with a decoder of its own from `decoder`, called with the number of the instance. Until the first
    /// [`load`](RolloutEngine::load) they sample from the weights that they came with, as policy version 0; policies are then taken
    /// from `weights`.
    ///
    /// # Errors
    /// If an option is out of bounds, `decoder` fails, or the system has no room or no thread.
    pub fn start(
        config: TorchEngineConfig,
        mut decoder: impl FnMut(u32) -> Result<Decoder, ModelError>,
        weights: WeightStore,
        detokenize: Detokenize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TorchEngineError> {
        config.check()?;
        let decoders = (0..config.instances).map(&mut decoder).collect::<Result<Vec<_>, _>>()?;
        let token_limit = config.token_limit(&decoders)?;
        let (sender, received) = channel();
        let reports = Reports::new(sender);
        let shared =
            Shared { config: config.clone(), weights, detokenize, clock, reports: reports.clone() };
        let mut engine = Self {
            config,
            token_limit,
            instances: Vec::new(),
            launches: BTreeMap::new(),
            launched: BTreeMap::new(),
            reports,
            received,
            failed: false,
        };
        for (number, decoder) in (0..).zip(decoders) {
            engine.instances.push(shared.start(number, decoder, token_limit)?);
        }
        Ok(engine)
    }

    /// What each instance has done since it started. Free to call while they work.
    #[must_use]
    pub fn statistics(&self) -> Vec<InstanceStatistics> {
        self.instances.iter().map(|owner| owner.counters.read(self.config.max_running)).collect()
    }

    fn launch(&mut self, request: &Request, sample: u32) -> (usize, Sequence) {
        let id = SampleId { step: request.step, prompt: request.prompt, sample };
        let stream = RandomStream::new(self.config.seed, id);
        let forced_length = self.config.replay.as_ref().map(|lengths| {
            let launched = self.launched.entry(request.step).or_default();
            *launched += 1;
            lengths.get(request.step, *launched - 1)
        });
        let instance = self.least_loaded();
        self.instances[instance].outstanding += 1;
        self.launches.insert(id, instance);
        (instance, Sequence::new(id, Arc::clone(&request.prompt_ids), forced_length, stream))
    }

    fn least_loaded(&self) -> usize {
        let loads = self.instances.iter().map(|owner| owner.outstanding).enumerate();
        loads
            .min_by_key(|(_, outstanding)| *outstanding)
            .expect("invariant: an engine has an instance")
            .0
    }

    fn refusal(&self, request: &Request) -> Option<RolloutError> {
        let limit = self.token_limit - self.config.sampling.max_new_tokens as usize;
        match request.prompt_ids.len() {
            0 => Some(RolloutError::Engine {
                instance: 0,
                reason: format!("prompt {} has no token", request.prompt),
            }),
            tokens if tokens > limit => {
                Some(RolloutError::PromptTooLong { prompt: request.prompt, tokens, limit })
            }
            _ => None,
        }
    }

    fn fail(&mut self) {
        self.failed = true;
        self.instances.iter_mut().for_each(Owner::close);
        self.launches.clear();
    }
}

impl RolloutEngine for TorchEngine {
    fn load(&mut self, policy: &Policy) {
        self.instances.iter().for_each(|owner| owner.tell(Command::Load(policy.clone())));
    }

    fn generate(&mut self, request: Request) {
        if let Some(error) = self.refusal(&request) {
            self.reports.send([Report::Failed(error)]);
            return;
        }
        let mut shares: Vec<Vec<Sequence>> = self.instances.iter().map(|_| Vec::new()).collect();
        for sample in request.samples.clone() {
            let (instance, sequence) = self.launch(&request, sample);
            shares[instance].push(sequence);
        }
        for (owner, share) in self.instances.iter().zip(shares) {
            if !share.is_empty() {
                owner.tell(Command::Generate(share));
            }
        }
    }

    fn abort(&mut self, id: SampleId) {
        if let Some(instance) = self.launches.get(&id) {
            self.instances[*instance].tell(Command::Abort(id));
        }
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if self.failed {
            return None;
        }
        match self.received.try_recv().ok()? {
            Report::Completed(completion) => {
                self.launches.remove(&completion.id);
                self.instances[completion.instance as usize].outstanding -= 1;
                Some(RolloutEvent::Completed(completion))
            }
            Report::Failed(error) => {
                self.fail();
                Some(RolloutEvent::Failed(error))
            }
        }
    }

    fn wake_by(&mut self, waker: Waker) {
        self.reports.wake_by(waker);
    }
}

impl Drop for TorchEngine {
    fn drop(&mut self) {
        self.instances.iter_mut().for_each(Owner::close);
        self.instances.iter_mut().for_each(Owner::join);
    }
}
