//! The engine's handle to an instance: its thread, and the commands sent to it.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::Tick;
use tch::TchError;

use super::backlog::Backlog;
use super::counters::Counters;
use super::generator::{Capacity, Generator};
use super::instance::{Instance, InstanceCommand, Report, ReportSender};
use super::invariance;
use super::iterations::BusyFlag;
use super::options::{Detokenize, TorchEngineConfig, TorchEngineError};
use super::passes::Passes;
use super::race::{BatchesInFlight, Progress};
use super::sequence::Sequence;
use super::{RolloutError, Waker};
use crate::model::inference::InferenceDecoder;
use crate::model::kernel_threads::KernelThreads;
use crate::model::vectorized::Instructions;

pub(super) struct InstanceHandle {
    /// The channel of commands; `None` once it is closed, which ends the thread. Wakers hold weak references and upgrade them only while
    /// sending, so no other handle keeps the channel open.
    commands: Option<Arc<Sender<InstanceCommand>>>,
    thread: Option<InstanceThread>,
    pub(super) counters: Arc<Counters>,
    progress: Arc<Progress>,
    in_flight: BatchesInFlight,
}

/// The thread of an instance.
///
/// A thread keeps its kernel threads until it ends. When the number of the instance's devices changes, the thread therefore starts another
/// thread, which runs the instance from then on, and ends.
struct InstanceThread(JoinHandle<Option<InstanceThread>>);

/// The data that all instances share.
pub(super) struct InstanceContext {
    pub(super) config: TorchEngineConfig,
    pub(super) detokenize: Detokenize,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) reports: ReportSender,
    /// Number of instances that have responses.
    pub(super) busy: Arc<AtomicU32>,
    /// The way to split rows into passes; `None` if generation is not deterministic.
    pub(super) passes: Option<Passes>,
}

impl InstanceHandle {
    /// Sends a command. Discards the command if the channel is closed or the instance has ended. An instance that has failed has reported
    /// the reason as an event; the caller of the engine may not have polled this event yet.
    pub(super) fn send(&self, command: InstanceCommand) {
        if let Some(commands) = &self.commands {
            let _gone = commands.send(command);
        }
    }

    /// Sends a batch of responses to generate, and records its floor until the instance has taken the batch.
    pub(super) fn send_batch(&mut self, batch: Vec<Sequence>) {
        self.in_flight.send(batch.iter().map(Sequence::tick).min().unwrap_or(Tick::MAX));
        self.send(InstanceCommand::Generate(batch));
    }

    /// Returns a floor: a tick before the end of all responses that the instance has, and of all that are in transit to it.
    pub(super) fn floor(&mut self) -> Tick {
        self.in_flight.floor(self.progress.read())
    }

    /// Returns a tick before the end of the responses that were in transit at the last call of [`floor`](Self::floor), or were sent since.
    pub(super) fn in_flight_floor(&self) -> Tick {
        self.in_flight.pending_floor()
    }

    /// Returns a waker that makes the thread check for work of its colocated models.
    pub(super) fn waker(&self) -> Waker {
        let commands = self.commands.as_ref().map(Arc::downgrade).unwrap_or_default();
        Arc::new(move || {
            if let Some(commands) = commands.upgrade() {
                let _gone = commands.send(InstanceCommand::CheckWorkloads);
            }
        })
    }

    /// Makes the thread end once it has finished its current iteration and executed the commands in its channel. Commands that the instance
    /// has deferred may be dropped.
    pub(super) fn close(&mut self) {
        self.commands = None;
    }

    /// Waits until the thread, and every thread that has taken over its instance, has ended. A panic has already been reported as an event.
    pub(super) fn join(&mut self) {
        let mut next = self.thread.take();
        while let Some(InstanceThread(thread)) = next {
            next = thread.join().ok().flatten();
        }
    }
}

impl InstanceContext {
    /// Starts instance `number` on its own thread.
    pub(super) fn start(
        &self,
        number: u32,
        decoder: InferenceDecoder,
        token_limit: usize,
    ) -> Result<InstanceHandle, TorchEngineError> {
        let (mut handle, instance) = self.instance_with_handle(number, decoder, token_limit)?;
        let thread = InstanceThread::start(instance, self.config.threads_per_instance)
            .map_err(|error| TorchEngineError::Thread { instance: number, error })?;
        handle.thread = Some(thread);
        Ok(handle)
    }

    /// Creates an instance without a thread, and its handle.
    pub(super) fn instance_with_handle(
        &self,
        number: u32,
        decoder: InferenceDecoder,
        token_limit: usize,
    ) -> Result<(InstanceHandle, Instance), TchError> {
        let (commands, received) = channel();
        let counters = Arc::new(Counters::default());
        let instance = self.instance(number, decoder, token_limit, &counters, received)?;
        let handle = InstanceHandle {
            commands: Some(Arc::new(commands)),
            thread: None,
            counters,
            progress: Arc::clone(&instance.progress),
            in_flight: BatchesInFlight::default(),
        };
        Ok((handle, instance))
    }

    pub(super) fn instance(
        &self,
        number: u32,
        decoder: InferenceDecoder,
        token_limit: usize,
        counters: &Arc<Counters>,
        commands: Receiver<InstanceCommand>,
    ) -> Result<Instance, TchError> {
        let TorchEngineConfig { max_running, kv_cache_tokens, .. } = self.config;
        let capacity = Capacity { max_running, kv_cache_tokens, token_limit };
        let generator = match self.passes {
            Some(passes) => Generator::invariant(decoder, capacity, passes)?,
            None => Generator::new(decoder, capacity)?,
        };
        Ok(Instance {
            number,
            devices: 1,
            device_kv_tokens: kv_cache_tokens,
            generator,
            detokenize: Arc::clone(&self.detokenize),
            clock: Arc::clone(&self.clock),
            counters: Arc::clone(counters),
            commands,
            reports: self.reports.clone(),
            busy: BusyFlag::new(&self.busy),
            workloads: Vec::new(),
            deterministic: self.passes.is_some(),
            progress: Arc::default(),
            batches: 0,
            backlog: Backlog::default(),
        })
    }
}

impl InstanceThread {
    /// Starts a thread that runs `instance`. `device_threads` is the number of threads of a device; see [`threads`].
    fn start(instance: Instance, device_threads: usize) -> std::io::Result<Self> {
        let (number, reports) = (instance.number, instance.reports.clone());
        let work = move || match run_instance(instance, device_threads) {
            Ok(ended) => {
                let failed = |error| {
                    let reason = format!("cannot start a thread: {error}");
                    reports
                        .send([Report::Failed(RolloutError::Engine { instance: number, reason })]);
                };
                Self::start(ended?, device_threads).map_err(failed).ok()
            }
            Err(error) => {
                reports.send([Report::Failed(error)]);
                None
            }
        };
        std::thread::Builder::new().name(format!("rollout-{number}")).spawn(work).map(Self)
    }
}

/// Returns the passes for instances of `config`, tested with `decoder` on a thread with as many kernel threads as an instance of one device
/// has. Returns `None` if generation is not deterministic.
pub(super) fn select_passes(
    config: &TorchEngineConfig,
    decoder: &mut InferenceDecoder,
) -> Result<Option<Passes>, TorchEngineError> {
    if !config.deterministic {
        return Ok(None);
    }
    let passes = std::thread::scope(|scope| {
        let tried = scope.spawn(|| {
            let _threads = KernelThreads::for_this_thread(config.threads_per_instance)
                .map_err(|error| TorchEngineError::Thread { instance: 0, error })?;
            invariance::select_passes(decoder).map_err(TorchEngineError::from)
        });
        tried.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })?;
    tracing::debug!(?passes, "deterministic generation");
    Ok(Some(passes))
}

/// Runs an instance. `device_threads` is the number of threads of a device; see [`threads`]. Returns the instance if the number of its
/// devices changes, and `None` if the engine was dropped or has failed. A panic is converted to an error, so that callers do not wait for a
/// thread that has ended.
fn run_instance(
    instance: Instance,
    device_threads: usize,
) -> Result<Option<Instance>, RolloutError> {
    let number = instance.number;
    let threads = threads(instance.devices, device_threads, instance.deterministic);
    let failed = |reason: String| RolloutError::Engine { instance: number, reason };
    let run = || {
        let _threads = KernelThreads::for_this_thread(threads)
            .map_err(|error| failed(format!("cannot start its threads: {error}")))?;
        instance.run().map_err(|error| error.into_rollout_error(number))
    };
    match catch_unwind(AssertUnwindSafe(run)) {
        Ok(ended) => ended,
        Err(panic) => Err(failed(format!("panicked: {}", panic_message(&*panic)))),
    }
}

/// Returns the number of threads of an instance of `devices` devices.
///
/// Where the kernels of this crate cannot run, libtorch computes, and sums in another order with another number of threads. There,
/// `deterministic` instances have the threads of one device, whatever the placement.
pub(super) fn threads(devices: u32, device_threads: usize, deterministic: bool) -> usize {
    let is_fixed = deterministic && Instructions::detect().is_none();
    if is_fixed { device_threads } else { device_threads.saturating_mul(devices as usize) }
}

/// Returns the message of a panic, or `without a message` if the payload is not a text.
pub(crate) fn panic_message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a message")
}
