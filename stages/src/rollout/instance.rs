//! One instance of the torch engine: a decoder, its KV cache and its running batch, on a thread of their own.

use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use tch::{TchError, Tensor};

use super::counters::Counters;
use super::iterations::Busy;
use super::kv_cache::KvCache;
use super::options::Detokenize;
use super::sampler::{Sampled, Sampler};
use super::sampling::Sampling;
use super::scheduler::{Copy, Prefix, Scheduler};
use super::sequence::{Draw, Sequence};
use super::{Completion, FinishReason, Policy, RolloutError, Waker};
use crate::model::{Decoder, WeightStore};

/// Tokens that one forward pass ahead of decoding takes at most, unless a single prefix is longer; bounds its memory.
const PREFILL_TOKENS: usize = 4096;

/// What the engine tells an instance; carried out in order, between decode iterations.
#[derive(Debug)]
pub(super) enum Command {
    Load(Policy),
    Generate(Vec<Sequence>),
    Abort(SampleId),
    /// Give everything back, and the memory of the cache.
    HandOver,
}

/// What an instance tells the engine.
#[derive(Debug)]
pub(super) enum Report {
    Completed(Completion),
    /// What was under way; those that ran before those that waited.
    HandedOver(Vec<Sequence>),
    Failed(RolloutError),
}

/// The way back to the engine, and to who waits for it.
#[derive(Clone)]
pub(super) struct Reports {
    sender: Sender<Report>,
    waker: Arc<Mutex<Option<Waker>>>,
}

impl Reports {
    pub(super) fn new(sender: Sender<Report>) -> Self {
        Self { sender, waker: Arc::default() }
    }

    pub(super) fn wake_by(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Sends, then wakes once. An engine that is gone wants to hear nothing.
    pub(super) fn send(&self, reports: impl IntoIterator<Item = Report>) {
        let sent = reports.into_iter().filter_map(|report| self.sender.send(report).ok()).count();
        if sent > 0 {
            self.wake();
        }
    }

    /// Has the engine polled.
    pub(super) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker();
        }
    }
}

/// Why an instance cannot go on.
#[derive(Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error("{}", .0.to_string().lines().next().unwrap_or_default())]
    Torch(#[from] TchError),
    #[error("the log-probability of a token of {0} is not finite")]
    NotFinite(SampleId),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
}

impl Fault {
    /// As the engine of `instance` reports it.
    pub(super) fn of(self, instance: u32) -> RolloutError {
        match self {
            Self::Rollout(error) => error,
            fault => RolloutError::Engine { instance, reason: fault.to_string() },
        }
    }
}

/// The state of an instance; all of it belongs to its thread.
pub(super) struct Instance {
    pub(super) number: u32,
    pub(super) decoder: Decoder,
    pub(super) weights: WeightStore,
    pub(super) cache: KvCache,
    pub(super) sampling: Sampling,
    pub(super) sampler: Sampler,
    pub(super) scheduler: Scheduler,
    /// Policy whose weights the decoder has.
    pub(super) version: PolicyVersion,
    pub(super) detokenize: Detokenize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<Counters>,
    pub(super) commands: Receiver<Command>,
    pub(super) reports: Reports,
    pub(super) busy: Busy,
}

impl Instance {
    /// Works until the engine is gone.
    pub(super) fn run(mut self) -> Result<(), Fault> {
        let _no_grad = tch::no_grad_guard();
        while self.follow_commands()? {
            self.iterate()?;
        }
        Ok(())
    }

    /// Carries out the commands that have arrived, and waits for one if there is nothing else to do. False if the engine is gone.
    fn follow_commands(&mut self) -> Result<bool, Fault> {
        loop {
            let idle = self.scheduler.is_idle();
            self.busy.set(!idle);
            let next = if idle {
                self.commands.recv().map_err(Into::into)
            } else {
                self.commands.try_recv()
            };
            match next {
                Ok(command) => self.follow(command)?,
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn follow(&mut self, command: Command) -> Result<(), Fault> {
        match command {
            Command::Load(policy) => self.load(policy)?,
            Command::Generate(sequences) => {
                sequences.into_iter().for_each(|sequence| self.scheduler.push(sequence))
            }
            Command::Abort(id) => self.abort(id)?,
            Command::HandOver => self.hand_over()?,
        }
        Ok(())
    }

    fn load(&mut self, policy: Policy) -> Result<(), RolloutError> {
        let Policy { version, location, .. } = &policy;
        self.weights.apply(&policy, &mut self.decoder).map_err(|error| RolloutError::Load {
            version: *version,
            location: location.clone(),
            reason: error.to_string(),
        })?;
        self.version = *version;
        self.counters.loaded(*version, self.clock.now());
        Ok(())
    }

    fn abort(&mut self, id: SampleId) -> Result<(), Fault> {
        let mut copies = Vec::new();
        let removed = self.scheduler.remove(id, &mut copies);
        self.carry_out(&copies)?;
        self.reports.send(
            removed.map(|sequence| self.complete(sequence, FinishReason::Abort, self.clock.now())),
        );
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), TchError> {
        let (sequences, lost) = self.scheduler.clear();
        self.counters.preempted(lost);
        self.cache.clear()?;
        self.reports.send([Report::HandedOver(sequences)]);
        Ok(())
    }

    /// One decode iteration: a token for every running response.
    fn iterate(&mut self) -> Result<(), Fault> {
        let (begun, prefilled) = (self.clock.now(), self.counters.prefill_tokens());
        self.take_up(begun)?;
        let sampled = self.decode()?;
        let now = self.clock.now();
        self.counters.iterated(self.scheduler.running().len(), now.since(begun));
        if self.counters.prefill_tokens() == prefilled {
            self.tally(now.since(begun));
        }
        self.take_in(sampled, now)
    }

    /// Counts an iteration that only decoded.
    fn tally(&self, time: Nanos) {
        let batch_size = u32::try_from(self.scheduler.running().len()).unwrap_or(u32::MAX);
        let tokens: usize = self.scheduler.running().map(Sequence::tokens).sum();
        self.counters.iterations.count(self.busy.count(), batch_size, tokens as u64, time);
    }

    /// Gives up what exceeds the KV budget, takes up what fits, and computes what the cache lacks.
    pub(super) fn take_up(&mut self, now: Nanos) -> Result<(), Fault> {
        let mut copies = Vec::new();
        self.counters.preempted(self.scheduler.preempt(&mut copies));
        self.scheduler.admit(now, &mut copies);
        let longest = self.scheduler.running().map(Sequence::tokens).max().unwrap_or(0);
        self.cache.reserve(self.scheduler.running().len(), longest)?;
        self.carry_out(&copies)?;
        let (prefixes, copies) = self.scheduler.prefixes(self.version);
        for pack in packs(&prefixes) {
            self.prefill(pack)?;
        }
        self.carry_out(&copies)?;
        self.scheduler.cached(self.version);
        Ok(())
    }

    fn carry_out(&mut self, copies: &[Copy]) -> Result<(), TchError> {
        copies.iter().try_for_each(|copy| self.cache.copy(*copy))
    }

    fn prefill(&mut self, prefixes: &[Prefix]) -> Result<(), TchError> {
        let ids: Vec<i64> =
            prefixes.iter().flat_map(|prefix| &prefix.tokens).copied().map(i64::from).collect();
        let positions: Vec<i64> =
            prefixes.iter().flat_map(|prefix| 0..prefix.tokens.len() as i64).collect();
        self.counters.prefilled(ids.len());
        let (ids, positions) = (self.tensor(&ids)?, self.tensor(&positions)?);
        let Self { decoder, cache, .. } = self;
        let _hidden = decoder.forward(&ids, &positions, &mut |layer, q, k, v| {
            cache.prefill(layer, prefixes, q, k, v)
        })?;
        Ok(())
    }

    pub(super) fn decode(&mut self) -> Result<Sampled, TchError> {
        let lengths: Vec<usize> = self.scheduler.running().map(Sequence::tokens).collect();
        let positions: Vec<i64> = lengths.iter().map(|length| *length as i64 - 1).collect();
        let ids: Vec<i64> =
            self.scheduler.running().map(|sequence| i64::from(sequence.last_token())).collect();
        let draws: Vec<Draw> =
            self.scheduler.running_mut().map(|sequence| sequence.draw(&self.sampling)).collect();
        let (ids, positions) = (self.tensor(&ids)?, self.tensor(&positions)?);
        let plan = self.cache.plan(&lengths)?;
        let Self { decoder, cache, .. } = self;
        let hidden = decoder
            .forward(&ids, &positions, &mut |layer, q, k, v| cache.decode(layer, &plan, q, k, v))?;
        self.sampler.sample(&decoder.logits(&hidden)?, &draws)
    }

    /// Gives every running response its token, and reports those that end with it.
    pub(super) fn take_in(&mut self, sampled: Sampled, now: Nanos) -> Result<(), Fault> {
        let eos = &self.decoder.config().eos_token_ids;
        let mut ended = Vec::new();
        let tokens = sampled.tokens.into_iter().zip(sampled.logprobs);
        for (slot, (sequence, (token, logprob))) in
            self.scheduler.running_mut().zip(tokens).enumerate()
        {
            if !logprob.is_finite() {
                return Err(Fault::NotFinite(sequence.id));
            }
            let end = sequence.push(
                token as i32,
                logprob,
                self.version,
                eos,
                self.sampling.max_new_tokens,
            );
            ended.extend(end.map(|reason| (slot, reason)));
        }
        self.scheduler.grown();
        self.retire(&ended, now)
    }

    /// Takes out the responses of the slots, which ascend.
    fn retire(&mut self, ended: &[(usize, FinishReason)], now: Nanos) -> Result<(), Fault> {
        let mut copies = Vec::new();
        let mut sequences = Vec::new();
        // From the last slot on: a slot that is given up moves only later ones.
        for (slot, reason) in ended.iter().rev() {
            sequences.push((self.scheduler.retire(*slot, &mut copies), *reason));
        }
        self.carry_out(&copies)?;
        sequences.sort_by_key(|(sequence, _)| sequence.id);
        self.reports.send(
            sequences.into_iter().map(|(sequence, reason)| self.complete(sequence, reason, now)),
        );
        Ok(())
    }

    fn complete(&self, sequence: Sequence, reason: FinishReason, now: Nanos) -> Report {
        Report::Completed(sequence.complete(reason, now, self.number, &*self.detokenize))
    }

    fn tensor(&self, numbers: &[i64]) -> Result<Tensor, TchError> {
        Tensor::f_from_slice(numbers)?.f_to_device(self.decoder.device())
    }
}

/// Cuts prefixes into runs of at most [`PREFILL_TOKENS`], or a single longer one.
fn packs(prefixes: &[Prefix]) -> Vec<&[Prefix]> {
    let mut packs = Vec::new();
    let (mut start, mut tokens) = (0, 0);
    for (at, prefix) in prefixes.iter().enumerate() {
        tokens += prefix.tokens.len();
        if tokens > PREFILL_TOKENS && at > start {
            packs.push(&prefixes[start..at]);
            (start, tokens) = (at, prefix.tokens.len());
        }
    }
    packs.extend((start < prefixes.len()).then(|| &prefixes[start..]));
    packs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packs_hold_every_prefix_once_and_no_more_than_fits() {
        let prefix = |length: usize| Prefix { tokens: vec![1; length], slots: vec![0] };
        let lengths = |lengths: &[usize]| {
            let prefixes: Vec<Prefix> = lengths.iter().map(|length| prefix(*length)).collect();
            packs(&prefixes).iter().map(|pack| pack.len()).collect::<Vec<_>>()
        };
        assert_eq!(lengths(&[]), [] as [usize; 0]);
        assert_eq!(lengths(&[2000, 2000, 96, 1]), [3, 1]);
        assert_eq!(lengths(&[5000, 1, 5000]), [1, 1, 1]);
    }
}
