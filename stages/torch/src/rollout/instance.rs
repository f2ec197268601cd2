//! One instance of the torch engine: a generator of the policy on its own thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::SampleId;

use super::backlog::Backlog;
use super::colocated::BudgetedWorkload;
use super::counters::Counters;
use super::generator::{Ended, Generator, GeneratorError};
use super::iterations::Busy;
use super::options::Detokenize;
use super::race::{Progress, ProgressReading};
use super::sequence::Sequence;
use super::{Completion, FinishReason, Placement, Policy, RolloutError, Waker};
use crate::model::{Decoder, TorchError, Weights, kernel_threads};

/// A command from the engine to an instance. Commands are executed in order, between decode iterations.
pub(super) enum InstanceCommand {
    /// Load the weights of a policy. The command carries them, because the store may drop the version before the instance executes it.
    Load(Policy, Weights),
    Generate(Vec<Sequence>),
    Abort(SampleId),
    /// Hand over all responses, free the memory of the cache, and drop the colocated models.
    HandOver,
    /// Compute with this many devices from now on. The instance must have no running responses.
    Shard(u32),
    /// Add these colocated models to the existing ones.
    Colocate(Vec<BudgetedWorkload>),
    /// Check whether a colocated model has work.
    Look,
}

/// A report from an instance to the engine.
#[derive(Debug)]
pub(super) enum Report {
    Completed(Completion),
    /// The responses that were in flight; the running ones first.
    HandedOver(Vec<Sequence>),
    Failed(RolloutError),
}

/// The channel from an instance to the engine, and the waker of the engine's caller.
#[derive(Clone)]
pub(super) struct ReportSender {
    sender: Sender<Report>,
    waker: Arc<Mutex<Option<Waker>>>,
    /// `true` if the engine was woken for progress that it has not read yet.
    progress_wake: Arc<AtomicBool>,
}

impl ReportSender {
    pub(super) fn new(sender: Sender<Report>) -> Self {
        Self { sender, waker: Arc::default(), progress_wake: Arc::default() }
    }

    pub(super) fn wake_by(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Sends reports, then wakes the caller once. Reports to an engine that was dropped are discarded.
    pub(super) fn send(&self, reports: impl IntoIterator<Item = Report>) {
        let sent = reports.into_iter().filter_map(|report| self.sender.send(report).ok()).count();
        if sent > 0 {
            self.wake();
        }
    }

    /// Wakes the caller to read the progress of the instances, unless it was already woken for this.
    pub(super) fn wake_for_progress(&self) {
        if !self.progress_wake.swap(true, Ordering::AcqRel) {
            self.wake();
        }
    }

    /// Marks the progress as being read. Call this before reading, so that progress from then on wakes the caller again.
    pub(super) fn clear_progress_wake(&self) {
        self.progress_wake.store(false, Ordering::Release);
    }

    /// Calls the waker, so that the engine is polled.
    pub(super) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker();
        }
    }
}

/// The error that stops an instance.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstanceFault {
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
}

impl InstanceFault {
    /// Converts the error to the one that the engine reports for `instance`.
    pub(super) fn of(self, instance: u32) -> RolloutError {
        match self {
            Self::Rollout(error) => error,
            Self::Generator(GeneratorError::NotFinite { id, version }) => {
                RolloutError::NotFinite { id, version }
            }
            fault => RolloutError::Engine { instance, reason: fault.to_string() },
        }
    }
}

/// The result of a turn of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TurnResult {
    /// The instance worked.
    Acted,
    /// The instance had no work.
    Idle,
    /// The engine was dropped.
    Over,
}

/// The state of an instance, owned by its thread.
pub(super) struct Instance {
    pub(super) number: u32,
    /// Number of devices of the instance. Its thread computes with the threads of all of them.
    pub(super) devices: u32,
    /// KV budget of a device, in tokens.
    pub(super) device_kv_tokens: usize,
    pub(super) generator: Generator<Decoder>,
    pub(super) detokenize: Detokenize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<Counters>,
    pub(super) commands: Receiver<InstanceCommand>,
    pub(super) reports: ReportSender,
    pub(super) busy: Busy,
    pub(super) workloads: Vec<BudgetedWorkload>,
    /// `true` if tokens determine the order of events: progress is published, and a response keeps its policy.
    pub(super) deterministic: bool,
    pub(super) progress: Arc<Progress>,
    /// Number of shares of work taken.
    pub(super) shares: u64,
    pub(super) backlog: Backlog,
}

impl Instance {
    /// Runs until the engine is dropped. Returns the instance earlier if the number of its devices changes.
    pub(super) fn run(mut self) -> Result<Option<Self>, InstanceFault> {
        let _no_grad = tch::no_grad_guard();
        let devices = self.devices;
        while self.turn(true)? != TurnResult::Over {
            if self.devices != devices {
                return Ok(Some(self));
            }
        }
        Ok(None)
    }

    /// Executes one delayed or received command if there is one, and otherwise runs an iteration and the colocated models. If there is
    /// nothing else to do and `may_wait` is set, it blocks until a command arrives.
    ///
    /// The progress is published before the next command is received. All reports of earlier turns have been sent by then, so an engine
    /// that reads the progress and then drains the channel has every end up to the published floor.
    pub(super) fn turn(&mut self, may_wait: bool) -> Result<TurnResult, InstanceFault> {
        let idle = self.generator.is_idle();
        if let Some(command) = self.backlog.next(idle) {
            self.follow(command)?;
            return Ok(TurnResult::Acted);
        }
        self.busy.set(!idle);
        self.publish();
        let is_free = idle && self.workloads.iter_mut().all(BudgetedWorkload::is_idle);
        let next = if is_free && may_wait {
            self.commands.recv().map_err(Into::into)
        } else {
            self.commands.try_recv()
        };
        match next {
            Ok(command) => self.take(command)?,
            Err(TryRecvError::Disconnected) => return Ok(TurnResult::Over),
            Err(TryRecvError::Empty) if is_free => return Ok(TurnResult::Idle),
            Err(TryRecvError::Empty) => self.work(!idle)?,
        }
        Ok(TurnResult::Acted)
    }

    /// Runs one iteration if `acts` is set, and then the colocated models.
    fn work(&mut self, acts: bool) -> Result<(), InstanceFault> {
        if acts {
            self.iterate()?;
        }
        self.run_workloads(acts);
        Ok(())
    }

    /// Executes a command, or queues it in the backlog.
    fn take(&mut self, command: InstanceCommand) -> Result<(), InstanceFault> {
        let now = if self.deterministic {
            self.backlog.pass(command, self.generator.is_idle())
        } else {
            Some(command)
        };
        now.map_or(Ok(()), |command| self.follow(command))
    }

    /// Publishes the progress of the instance.
    fn publish(&self) {
        if !self.deterministic {
            return;
        }
        let reading = ProgressReading { shares: self.shares, floor: self.generator.floor() };
        if self.progress.publish(reading) {
            self.reports.wake_for_progress();
        }
    }

    fn follow(&mut self, command: InstanceCommand) -> Result<(), InstanceFault> {
        match command {
            InstanceCommand::Load(policy, weights) => self.load(policy, &weights)?,
            InstanceCommand::Generate(sequences) => {
                self.shares += 1;
                sequences.into_iter().for_each(|sequence| self.generator.push(sequence));
            }
            InstanceCommand::Abort(id) => self.abort(id)?,
            InstanceCommand::HandOver => self.hand_over()?,
            InstanceCommand::Shard(devices) => self.shard(devices),
            InstanceCommand::Colocate(workloads) => self.workloads.extend(workloads),
            InstanceCommand::Look => {}
        }
        Ok(())
    }

    fn load(&mut self, policy: Policy, weights: &Weights) -> Result<(), RolloutError> {
        let Policy { version, location, .. } = policy;
        let loaded = self.apply(weights);
        loaded.map_err(|error| RolloutError::Load {
            version,
            location,
            reason: error.to_string(),
        })?;
        self.generator.loaded(version);
        self.counters.loaded(version, self.clock.now());
        Ok(())
    }

    fn apply(&mut self, weights: &Weights) -> Result<(), TorchError> {
        let decoder = self.generator.network_mut();
        decoder.copy_from(weights)?;
        Ok(decoder.pack(weights.packing())?)
    }

    fn abort(&mut self, id: SampleId) -> Result<(), InstanceFault> {
        let removed = self.generator.remove(id)?.or_else(|| self.backlog.remove(id));
        self.reports.send(
            removed.map(|sequence| self.complete(sequence, FinishReason::Abort, self.clock.now())),
        );
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), InstanceFault> {
        let (mut sequences, lost) = self.generator.give_up();
        let (waiting, shares) = self.backlog.clear();
        sequences.extend(waiting);
        // The queued shares count as taken; otherwise the engine would keep their floors.
        self.shares += shares;
        self.counters.preempted(lost);
        self.generator.free();
        self.workloads.clear();
        self.reports.send([Report::HandedOver(sequences)]);
        Ok(())
    }

    /// Changes the number of devices, and the KV budget with it. The threads of more devices need another thread to run the instance.
    pub(super) fn shard(&mut self, devices: u32) {
        self.devices = devices;
        let kv_tokens = self.device_kv_tokens.saturating_mul(devices as usize);
        self.generator.set_kv_cache_tokens(kv_tokens);
    }

    /// Runs one decode iteration, which samples a token for every running response.
    fn iterate(&mut self) -> Result<(), InstanceFault> {
        let begun = self.clock.now();
        let taken_up = self.generator.take_up(begun, usize::MAX)?;
        self.counters.preempted(taken_up.preempted);
        self.counters.prefilled(taken_up.prefilled);
        let sampled = self.generator.decode()?;
        let now = self.clock.now();
        self.counters.iterated(self.generator.running().len(), now.since(begun));
        if taken_up.prefilled == 0 {
            self.tally(now.since(begun));
        }
        let ended = self.generator.take_in(sampled)?;
        self.report(ended, now);
        Ok(())
    }

    /// Runs the colocated models, next to an iteration of the actor or alone.
    fn run_workloads(&mut self, with_actor: bool) {
        if self.workloads.is_empty() {
            return;
        }
        let turn = if with_actor {
            BudgetedWorkload::step_with_actor
        } else {
            BudgetedWorkload::step_alone
        };
        let begun = self.clock.now();
        // The models of colocated models are not packed, so libtorch computes most of their work.
        let tokens = kernel_threads::with_all(|| self.workloads.iter_mut().map(turn).sum());
        let time = self.clock.now().since(begun);
        self.counters.count_colocated(tokens, if with_actor { time } else { Nanos(0) });
    }

    /// Counts an iteration that only decoded.
    fn tally(&self, time: Nanos) {
        let batch_size = u32::try_from(self.generator.running().len()).unwrap_or(u32::MAX);
        let tokens: usize = self.generator.running().map(Sequence::tokens).sum();
        let placement = Placement { instances: self.busy.count(), tensor_parallel: self.devices };
        self.counters.iterations.count(placement, batch_size, tokens as u64, time);
    }

    fn report(&self, ended: Vec<Ended>, now: Nanos) {
        self.reports.send(
            ended
                .into_iter()
                .map(|Ended { sequence, reason }| self.complete(sequence, reason, now)),
        );
    }

    fn complete(&self, sequence: Sequence, reason: FinishReason, now: Nanos) -> Report {
        Report::Completed(sequence.complete(reason, now, self.number, &*self.detokenize))
    }
}
