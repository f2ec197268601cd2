//! One instance of the torch engine: a generator of the policy on its own thread.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::SampleId;

use super::backlog::Backlog;
use super::colocated::{BudgetedWorkload, ColocatedModels};
use super::counters::Counters;
use super::generator::{EndedSequence, Generator, GeneratorError};
use super::iterations::BusyFlag;
use super::options::Detokenize;
use super::race::{Progress, ProgressReading};
use super::sequence::Sequence;
use super::{Completion, FinishReason, Placement, Policy, RolloutError, Waker};
use crate::model::Weights;
use crate::model::inference::InferenceDecoder;
use crate::model::kernel_threads;

/// A command to an instance, from the engine or from the waker of a colocated model. Commands are executed between decode iterations, in
/// the order in which they were sent. In deterministic mode, `Load` and `Generate` may be deferred, and later commands of other kinds
/// overtake them; see [`Backlog`].
pub(super) enum InstanceCommand {
    /// Loads the weights of a policy. The command carries the weights, because the store may drop the version before the instance executes
    /// the command.
    Load(Policy, Weights),
    Generate(Vec<Sequence>),
    Abort(SampleId),
    /// Hands over all responses, frees the memory of the cache, and drops the colocated models.
    HandOver,
    /// Sets the number of devices. The instance must have no running responses.
    SetDevices(u32),
    /// Runs these colocated models, in addition to the models that run already. The models wake the thread through the waker.
    Colocate(ColocatedModels, Waker),
    /// Wakes the thread, so that it checks for work of its colocated models.
    CheckWorkloads,
}

/// A report to the engine, from an instance or from the engine itself.
#[derive(Debug)]
pub(super) enum Report {
    Completed(Completion),
    /// The responses that were in flight on the instance, the running responses first.
    HandedOver(Vec<Sequence>),
    /// The instance has failed and its thread ends, or the engine has refused a call or a late response.
    Failed(RolloutError),
}

/// The channel of reports to the engine, and the waker of the engine's caller.
#[derive(Clone)]
pub(super) struct ReportSender {
    sender: Sender<Report>,
    waker: Arc<Mutex<Option<Waker>>>,
    /// `true` if the caller was woken for progress that the engine has not read yet.
    progress_wake: Arc<AtomicBool>,
}

impl ReportSender {
    pub(super) fn new(sender: Sender<Report>) -> Self {
        Self { sender, waker: Arc::default(), progress_wake: Arc::default() }
    }

    pub(super) fn wake_by(&self, waker: Waker) {
        *self.waker.lock().unwrap_or_else(PoisonError::into_inner) = Some(waker);
    }

    /// Sends reports, then wakes the caller once if there was a report. Reports to an engine that was dropped are discarded.
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

    /// Calls the waker if one is set, so that the engine is polled.
    pub(super) fn wake(&self) {
        let waker = self.waker.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(waker) = waker {
            waker();
        }
    }
}

/// The error that stops an instance.
#[derive(Debug, thiserror::Error)]
pub(super) enum InstanceError {
    #[error(transparent)]
    Generator(#[from] GeneratorError),
    #[error(transparent)]
    Rollout(#[from] RolloutError),
}

impl InstanceError {
    /// Converts the error to the error that the engine reports for `instance`.
    pub(super) fn into_rollout_error(self, instance: u32) -> RolloutError {
        match self {
            Self::Rollout(error) => error,
            Self::Generator(GeneratorError::NotFinite { id, version }) => {
                RolloutError::NotFinite { id, version }
            }
            error => RolloutError::Engine { instance, reason: error.to_string() },
        }
    }
}

/// The result of [`Instance::run_once`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RunResult {
    /// The instance executed or deferred a command, or ran an iteration.
    Worked,
    /// The instance had no work.
    Idle,
    /// The engine was dropped or has failed.
    Closed,
}

/// The state of an instance, owned by its thread.
pub(super) struct Instance {
    pub(super) number: u32,
    /// Number of devices of the instance. It determines the KV budget and the number of [threads](super::instance_handle::threads).
    pub(super) devices: u32,
    /// KV budget of a device, in tokens.
    pub(super) device_kv_tokens: usize,
    pub(super) generator: Generator<InferenceDecoder>,
    pub(super) detokenize: Detokenize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) counters: Arc<Counters>,
    pub(super) commands: Receiver<InstanceCommand>,
    pub(super) reports: ReportSender,
    pub(super) busy: BusyFlag,
    pub(super) workloads: Vec<BudgetedWorkload>,
    /// `true` in deterministic mode, in which the progress is published, and a policy is loaded only while no responses are in flight.
    pub(super) deterministic: bool,
    pub(super) progress: Arc<Progress>,
    /// Number of batches that the instance has taken: the groups of responses that arrived in one [`Generate`](InstanceCommand::Generate)
    /// command.
    pub(super) batches: u64,
    pub(super) backlog: Backlog,
}

impl Instance {
    /// Runs until the engine is dropped or fails, and returns `None`. If the number of the instance's devices changes, returns the instance
    /// earlier, to run on another thread.
    pub(super) fn run(mut self) -> Result<Option<Self>, InstanceError> {
        let _no_grad = tch::no_grad_guard();
        let devices = self.devices;
        while self.run_once(true)? != RunResult::Closed {
            if self.devices != devices {
                return Ok(Some(self));
            }
        }
        Ok(None)
    }

    /// Executes one deferred command, or executes or defers one received command. If there is none, runs an iteration of the actor if it
    /// has responses, and then the colocated models. If there is nothing to do and `may_wait` is set, blocks until a command arrives.
    ///
    /// In deterministic mode, the progress is published before the next command is received. All reports of earlier calls have been sent by
    /// then, so an engine that reads the progress and then drains the channel has every end up to the published floor.
    pub(super) fn run_once(&mut self, may_wait: bool) -> Result<RunResult, InstanceError> {
        let idle = self.generator.is_idle();
        if let Some(command) = self.backlog.next(idle) {
            self.execute(command)?;
            return Ok(RunResult::Worked);
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
            Ok(command) => self.execute_or_defer(command)?,
            Err(TryRecvError::Disconnected) => return Ok(RunResult::Closed),
            Err(TryRecvError::Empty) if is_free => return Ok(RunResult::Idle),
            Err(TryRecvError::Empty) => self.run_models(!idle)?,
        }
        Ok(RunResult::Worked)
    }

    /// Runs one iteration of the actor if `run_actor` is set, and then the colocated models.
    fn run_models(&mut self, run_actor: bool) -> Result<(), InstanceError> {
        if run_actor {
            self.iterate()?;
        }
        self.run_workloads(run_actor);
        Ok(())
    }

    /// Executes a command. In deterministic mode, a command that must wait is queued in the backlog instead.
    fn execute_or_defer(&mut self, command: InstanceCommand) -> Result<(), InstanceError> {
        let now = if self.deterministic {
            self.backlog.defer_if_blocked(command, self.generator.is_idle())
        } else {
            Some(command)
        };
        now.map_or(Ok(()), |command| self.execute(command))
    }

    /// Publishes the progress of the instance in deterministic mode, and wakes the caller if the progress has changed.
    fn publish(&self) {
        if !self.deterministic {
            return;
        }
        let reading = ProgressReading { batches: self.batches, floor: self.generator.floor() };
        if self.progress.publish(reading) {
            self.reports.wake_for_progress();
        }
    }

    fn execute(&mut self, command: InstanceCommand) -> Result<(), InstanceError> {
        match command {
            InstanceCommand::Load(policy, weights) => self.load(policy, &weights)?,
            InstanceCommand::Generate(sequences) => {
                self.batches += 1;
                sequences.into_iter().for_each(|sequence| self.generator.push(sequence));
            }
            InstanceCommand::Abort(id) => self.abort(id)?,
            InstanceCommand::HandOver => self.hand_over()?,
            InstanceCommand::SetDevices(devices) => self.set_devices(devices),
            InstanceCommand::Colocate(models, waker) => {
                self.workloads.extend(models.workloads(&waker, self.number));
            }
            InstanceCommand::CheckWorkloads => {}
        }
        Ok(())
    }

    fn load(&mut self, policy: Policy, weights: &Weights) -> Result<(), RolloutError> {
        let Policy { version, location, .. } = policy;
        let decoder = self.generator.network().with_weights(weights);
        *self.generator.network_mut() = decoder.map_err(|error| RolloutError::Load {
            version,
            location,
            reason: error.to_string(),
        })?;
        self.generator.set_version(version);
        self.counters.record_load(version, self.clock.now());
        Ok(())
    }

    fn abort(&mut self, id: SampleId) -> Result<(), InstanceError> {
        let removed = self.generator.remove(id)?.or_else(|| self.backlog.remove(id));
        self.reports.send(
            removed.map(|sequence| self.complete(sequence, FinishReason::Abort, self.clock.now())),
        );
        Ok(())
    }

    fn hand_over(&mut self) -> Result<(), InstanceError> {
        let (mut sequences, lost) = self.generator.drain();
        let (waiting, batches) = self.backlog.clear();
        sequences.extend(waiting);
        // The queued batches count as taken; otherwise the engine would keep their floors.
        self.batches += batches;
        self.counters.count_preemptions(lost);
        self.generator.free();
        self.workloads.clear();
        self.reports.send([Report::HandedOver(sequences)]);
        Ok(())
    }

    /// Sets the number of devices, and the KV budget with it. The number of kernel threads changes only when another thread runs the
    /// instance.
    pub(super) fn set_devices(&mut self, devices: u32) {
        self.devices = devices;
        let kv_tokens = self.device_kv_tokens.saturating_mul(devices as usize);
        self.generator.set_kv_cache_tokens(kv_tokens);
    }

    /// Runs one iteration: admits and prefills waiting responses, samples a token for every running response, and reports the responses
    /// that end.
    fn iterate(&mut self) -> Result<(), InstanceError> {
        let begun = self.clock.now();
        let admission = self.generator.admit_and_prefill(begun, usize::MAX)?;
        self.counters.count_preemptions(admission.preempted);
        self.counters.count_prefill(admission.prefilled);
        let sampled = self.generator.decode()?;
        let now = self.clock.now();
        self.counters.count_iteration(self.generator.running().len(), now.since(begun));
        if admission.prefilled == 0 {
            self.count_decode_iteration(now.since(begun));
        }
        let ended = self.generator.append_tokens(sampled)?;
        self.report(ended, now);
        Ok(())
    }

    /// Runs the colocated models, after an iteration of the actor or alone.
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
        // libtorch computes most of the work of a streamed model, whose weights are not packed.
        let tokens =
            kernel_threads::with_libtorch_threads(|| self.workloads.iter_mut().map(turn).sum());
        let time = self.clock.now().since(begun);
        self.counters.count_colocated(tokens, if with_actor { time } else { Nanos(0) });
    }

    /// Counts an iteration that did not prefill.
    fn count_decode_iteration(&self, time: Nanos) {
        let batch_size = u32::try_from(self.generator.running().len()).unwrap_or(u32::MAX);
        let tokens: usize = self.generator.running().map(Sequence::tokens).sum();
        let placement = Placement { instances: self.busy.count(), tensor_parallel: self.devices };
        self.counters.iterations.count(placement, batch_size, tokens as u64, time);
    }

    fn report(&self, ended: Vec<EndedSequence>, now: Nanos) {
        self.reports.send(
            ended
                .into_iter()
                .map(|EndedSequence { sequence, reason }| self.complete(sequence, reason, now)),
        );
    }

    fn complete(&self, sequence: Sequence, reason: FinishReason, now: Nanos) -> Report {
        Report::Completed(sequence.complete(reason, now, self.number, &*self.detokenize))
    }
}
