//! An engine for servers: the model of a folder on threads of this process, with options for each request.
//!
//! Each instance is a thread that generates with the same KV cache, scheduler and sampler as an instance of the [rollout
//! engine](crate::rollout::TorchEngine). The instances share one copy of the weights. All samples of a request go to the instance with the
//! fewest responses in flight, so that the prompt is computed once.
//!
//! A request shares a cached prefix only with running responses, and only if the current weights computed it. No later request therefore
//! reuses a prefix that old weights computed.

mod counters;
mod iteration;
mod logprobs;
mod options;
#[cfg(test)]
mod tests;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::FutureExt;
use futures::executor::block_on;
use futures::future::{BoxFuture, try_join_all};
use rollpacker_model::ModelConfig;
use rollpacker_stages::serving::{
    Generation, GenerationId, Pause, ServingEngine, ServingError, ServingLimits, ServingStatistics,
};
use rollpacker_stages::train::config::Precision;
use tch::Device;
use tokio::sync::oneshot;

use self::counters::ServingCounters;
pub use self::options::{TorchServingConfig, TorchServingError};
use self::worker::{Command, Reply, Worker};
use crate::model::inference::InferenceDecoder;
use crate::model::kernel_threads::KernelThreads;
use crate::model::network::Network;
use crate::model::{Decoder, TorchError};
use crate::rollout::generator::Capacity;
use crate::rollout::instance_handle::panic_message;

/// A model that answers independent requests on threads of this process. Dropping it ends each thread once it has finished its current
/// iteration and executed the commands that were already sent to it, and waits for the threads. The receivers of responses in flight get a
/// failure. Loads whose weights have not been read yet have no effect.
pub struct TorchServing {
    folder: PathBuf,
    limits: ServingLimits,
    shared: Arc<Shared>,
    /// The channel of loads; taken when the engine is dropped, which ends the thread that reads weights.
    loads: Option<Sender<PendingLoad>>,
    /// The thread that reads weights, and those of the instances.
    threads: Vec<JoinHandle<()>>,
}

/// The state that the engine shares with the futures of its commands.
struct Shared {
    config: ModelConfig,
    device: Device,
    instances: Vec<ServingInstance>,
    /// The label that was set last.
    label: Mutex<Arc<str>>,
    /// Locked while a command is sent to all instances, so that commands take effect in the same order on all instances.
    sending: Mutex<()>,
    /// `true` once the engine was dropped, so that no further load is read.
    is_dropped: AtomicBool,
}

/// A call of [`load`](ServingEngine::load) whose weights have not been read yet.
struct PendingLoad {
    folder: PathBuf,
    /// Sends the result to the caller when all instances use the weights.
    done: oneshot::Sender<Result<(), ServingError>>,
}

struct ServingInstance {
    /// The channel of commands; taken when the engine is dropped, which ends the thread.
    commands: Mutex<Option<Sender<Command>>>,
    counters: Arc<ServingCounters>,
}

impl TorchServing {
    /// Loads the model of `folder` and starts the instances.
    ///
    /// # Errors
    /// Returns an error if an option is out of bounds, the folder cannot be loaded, memory cannot be allocated, or the system cannot create
    /// a thread.
    pub fn start(
        folder: &Path,
        device: Device,
        config: &TorchServingConfig,
    ) -> Result<Self, TorchServingError> {
        let decoder = InferenceDecoder::new(Decoder::load(folder, device)?, Precision::Float32)
            .map_err(TorchError::from)?;
        let model = decoder.config().clone();
        let limits = config.limits(&model)?;
        let mut started = Self {
            folder: folder.to_owned(),
            shared: Arc::new(Shared {
                config: model,
                device,
                instances: Vec::new(),
                label: Mutex::new(Arc::clone(&config.label)),
                sending: Mutex::default(),
                is_dropped: AtomicBool::new(false),
            }),
            loads: None,
            threads: Vec::new(),
            limits,
        };
        let mut instances = Vec::new();
        for number in 0..config.instances {
            let (instance, thread) = started.start_instance(number, decoder.share(), config)?;
            instances.push(instance);
            started.threads.push(thread);
        }
        let shared = Arc::get_mut(&mut started.shared);
        shared.expect("invariant: no command was called yet").instances = instances;
        let (loads, received) = channel();
        let shared = Arc::clone(&started.shared);
        let thread = std::thread::Builder::new()
            .name("serve-load".to_owned())
            .spawn(move || received.iter().for_each(|load| shared.load(load)))
            .map_err(TorchServingError::LoadThread)?;
        started.loads = Some(loads);
        started.threads.push(thread);
        Ok(started)
    }

    fn start_instance(
        &self,
        number: usize,
        decoder: InferenceDecoder,
        config: &TorchServingConfig,
    ) -> Result<(ServingInstance, JoinHandle<()>), TorchServingError> {
        let (commands, received) = channel();
        let counters = Arc::<ServingCounters>::default();
        let capacity = Capacity {
            max_running: config.max_running,
            kv_cache_tokens: config.kv_cache_tokens,
            token_limit: self.limits.context,
        };
        let (seed, label) = (config.seed, Arc::clone(&config.label));
        let worker = Worker::new(decoder, capacity, received, Arc::clone(&counters), seed, label)
            .map_err(TorchError::from)?;
        let threads = config.threads_per_instance;
        let thread = std::thread::Builder::new()
            .name(format!("serve-{number}"))
            .spawn(move || run(worker, threads))
            .map_err(|error| TorchServingError::Thread { instance: number, error })?;
        Ok((ServingInstance { commands: Mutex::new(Some(commands)), counters }, thread))
    }
}

/// The reason for which requests fail after the engine was dropped.
const SHUT_DOWN: &str = "it was shut down";

/// Runs an instance on `threads` threads until the engine is dropped, or the instance fails with an error or a panic. Then fails the
/// requests in flight, and all requests that still arrive until the engine is dropped.
fn run(mut worker: Worker, threads: usize) {
    let run = || {
        let _threads = KernelThreads::for_this_thread(threads)
            .map_err(|error| format!("cannot start its threads: {error}"))?;
        worker.run().map_err(|error| error.to_string())
    };
    let reason = match catch_unwind(AssertUnwindSafe(run)) {
        Ok(Ok(())) => SHUT_DOWN.to_owned(),
        Ok(Err(reason)) => reason,
        Err(panic) => format!("panicked: {}", panic_message(&*panic)),
    };
    worker.fail_all(&reason);
}

impl Shared {
    /// Sends a command to every instance, before the future is polled. The future is ready when all instances have replied, or one has
    /// stopped. It returns an error if an instance has stopped or has replied with an error.
    fn on_all(
        self: &Arc<Self>,
        command: impl Fn(Reply) -> Command,
    ) -> BoxFuture<'static, Result<(), ServingError>> {
        let send = |instance: &ServingInstance| {
            let (reply, replied) = oneshot::channel();
            instance.send(command(reply));
            replied
        };
        let in_order = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        let replies: Vec<_> = self.instances.iter().map(send).collect();
        drop(in_order);
        let shared = Arc::clone(self);
        try_join_all(replies)
            .map(move |replies| replies.map_err(|_ended| shared.stopped())?.into_iter().collect())
            .boxed()
    }

    fn failure(&self) -> Option<String> {
        self.instances.iter().find_map(|instance| instance.counters.failure())
    }

    fn stopped(&self) -> ServingError {
        ServingError::Stopped(self.failure().unwrap_or_else(|| SHUT_DOWN.to_owned()))
    }

    /// Reads the weights of a load, sends them to the instances, and waits until all instances use them. The next load is read afterwards,
    /// so that memory holds the weights of at most two loads. Does nothing if the engine was dropped.
    fn load(self: &Arc<Self>, load: PendingLoad) {
        let PendingLoad { folder, done } = load;
        if self.is_dropped.load(Ordering::Relaxed) {
            return;
        }
        let read = || {
            let decoder = Decoder::load_as(self.config.clone(), &folder, self.device)?;
            Ok::<_, TorchError>(InferenceDecoder::new(decoder, Precision::Float32)?)
        };
        let read = match catch_unwind(AssertUnwindSafe(read)) {
            Ok(read) => read.map_err(|error| error.to_string()),
            Err(panic) => Err(format!("panicked: {}", panic_message(&*panic))),
        };
        let result = match read {
            Ok(read) => block_on(self.on_all(|reply| Command::Load(read.share(), reply))),
            Err(reason) => Err(ServingError::Load { folder, reason }),
        };
        let _caller_is_gone = done.send(result);
    }
}

impl ServingInstance {
    /// Sends a command. The command is dropped if the engine was dropped.
    fn send(&self, command: Command) {
        if let Some(commands) = &*self.commands.lock().unwrap_or_else(PoisonError::into_inner) {
            let _ended = commands.send(command);
        }
    }
}

impl ServingEngine for TorchServing {
    fn limits(&self) -> &ServingLimits {
        &self.limits
    }

    fn generate(&self, generation: Generation) {
        let instances = self.shared.instances.iter();
        let least_loaded = instances.min_by_key(|instance| instance.counters.assigned());
        let least_loaded = least_loaded.expect("invariant: an engine has at least one instance");
        least_loaded.counters.assign(generation.samples);
        least_loaded.send(Command::Generate(generation));
    }

    fn abort(&self, id: GenerationId) {
        self.shared.instances.iter().for_each(|instance| instance.send(Command::Abort(id)));
    }

    fn abort_sample(&self, id: GenerationId, sample: u32) {
        let instances = self.shared.instances.iter();
        instances.for_each(|instance| instance.send(Command::AbortSample(id, sample)));
    }

    fn pause(&self, mode: Pause) -> BoxFuture<'static, Result<(), ServingError>> {
        self.shared.on_all(|reply| Command::Pause(mode, reply))
    }

    fn resume(&self) -> BoxFuture<'static, Result<(), ServingError>> {
        self.shared.on_all(Command::Resume)
    }

    fn is_paused(&self) -> bool {
        self.shared.instances.iter().all(|instance| instance.counters.is_paused())
    }

    fn load(&self, folder: Option<PathBuf>) -> BoxFuture<'static, Result<(), ServingError>> {
        let folder = folder.unwrap_or_else(|| self.folder.clone());
        let (done, result) = oneshot::channel();
        if let Some(loads) = &self.loads {
            let _ended = loads.send(PendingLoad { folder, done });
        }
        let shared = Arc::clone(&self.shared);
        async move { result.await.map_err(|_ended| shared.stopped())? }.boxed()
    }

    fn set_label(&self, label: Arc<str>) -> BoxFuture<'static, Result<(), ServingError>> {
        // Locked while the command is sent, so that `label` and all instances end with the same label if several callers set one.
        let mut last = self.shared.label.lock().unwrap_or_else(PoisonError::into_inner);
        let labelled = self.shared.on_all(|reply| Command::Label(Arc::clone(&label), reply));
        *last = label;
        labelled
    }

    fn label(&self) -> Arc<str> {
        Arc::clone(&self.shared.label.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn statistics(&self) -> ServingStatistics {
        let each = self.shared.instances.iter().map(|instance| instance.counters.read());
        each.fold(ServingStatistics::default(), ServingStatistics::and)
    }

    fn failure(&self) -> Option<String> {
        self.shared.failure()
    }
}

impl Drop for TorchServing {
    fn drop(&mut self) {
        self.shared.is_dropped.store(true, Ordering::Relaxed);
        self.loads = None;
        // A future of a command may still hold the channels, so they are closed and not only released.
        for instance in &self.shared.instances {
            *instance.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        for thread in self.threads.drain(..) {
            let _panic = thread.join();
        }
    }
}
