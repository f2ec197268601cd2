//! An engine for servers: the model of a folder on threads of this process, with options for each request.
//!
//! Each instance is a thread with a [generator](crate::rollout), as an instance of the [rollout engine](crate::rollout::TorchEngine) is: the
//! same KV cache, scheduler and sampler. The instances share one copy of the weights. All samples of a request go to the instance with the
//! fewest responses in flight, so that the prompt is computed once.
//!
//! No KV cache outlives its response, so no later request reuses a prefix that old weights computed.

mod counters;
mod logprobs;
mod worker;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use futures::FutureExt;
use futures::future::{BoxFuture, try_join_all};
use rollpacker_model::ModelConfig;
use rollpacker_stages::serving::{
    Generation, GenerationId, Pause, ServingEngine, ServingError, ServingLimits, ServingStatistics,
};
use tch::Device;
use tokio::sync::oneshot;

use self::counters::Counters;
use self::worker::{Command, Reply, Worker};
use crate::model::device::set_threads_of_this_thread;
use crate::model::{Decoder, TorchError};
use crate::rollout::generator::Capacity;
use crate::rollout::owner::panic_message;

/// The options of a [`TorchServing`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchServingConfig {
    /// Number of instances, each on its own thread; at least 1.
    pub instances: usize,
    /// Number of threads that the torch operations of an instance use; at least 1.
    pub threads_per_instance: usize,
    /// Maximum number of responses that an instance runs at once; at least 1. (vLLM: `--max-num-seqs`)
    pub max_running: usize,
    /// Maximum number of tokens, prompts included, that the running responses of an instance hold in the KV cache together. Responses
    /// beyond it are preempted and computed again.
    pub kv_cache_tokens: usize,
    /// Maximum number of tokens of a prompt and its response; by default as many as the model and `kv_cache_tokens` allow. (vLLM:
    /// `--max-model-len`)
    pub context: Option<usize>,
    /// Seed of the responses to requests without one.
    pub seed: u64,
    /// The first label of the weights.
    pub label: Arc<str>,
}

/// The reason why an engine for servers cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TorchServingError {
    /// An option is out of bounds.
    #[error("option `{option}`: expected {expected}, found {found}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The allowed values.
        expected: String,
        /// The value that was found.
        found: usize,
    },
    /// The model cannot be loaded, or the device has no memory for its cache.
    #[error(transparent)]
    Model(#[from] TorchError),
    /// The system cannot create a thread.
    #[error("cannot start the thread of instance {instance}: {source}")]
    Thread {
        /// The instance.
        instance: usize,
        /// The error of the operating system.
        source: std::io::Error,
    },
}

/// A model that answers independent requests on threads of this process. Dropping it ends the threads after their current iteration.
pub struct TorchServing {
    folder: PathBuf,
    limits: ServingLimits,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// The state that the futures of commands use after the call.
struct Shared {
    config: ModelConfig,
    device: Device,
    instances: Vec<Instance>,
    paused: AtomicBool,
    label: Mutex<Arc<str>>,
    /// Loads run one at a time, so that they take effect in one order on all instances.
    loading: tokio::sync::Mutex<()>,
}

struct Instance {
    /// Taken when the engine is dropped, which ends the thread.
    commands: Mutex<Option<Sender<Command>>>,
    counters: Arc<Counters>,
}

impl TorchServing {
    /// Loads the model of `folder` and starts the instances.
    ///
    /// # Errors
    /// Returns an error if an option is out of bounds, the folder cannot be loaded, or the system has no memory or no thread.
    pub fn start(
        folder: &Path,
        device: Device,
        config: &TorchServingConfig,
    ) -> Result<Self, TorchServingError> {
        let decoder = Decoder::load(folder, device)?;
        let model = decoder.config().clone();
        let limits = config.limits(&model)?;
        let mut started = Self {
            folder: folder.to_owned(),
            shared: Arc::new(Shared {
                config: model,
                device,
                instances: Vec::new(),
                paused: AtomicBool::new(false),
                label: Mutex::new(Arc::clone(&config.label)),
                loading: tokio::sync::Mutex::default(),
            }),
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
        Ok(started)
    }

    fn start_instance(
        &self,
        number: usize,
        decoder: Decoder,
        config: &TorchServingConfig,
    ) -> Result<(Instance, JoinHandle<()>), TorchServingError> {
        let (commands, received) = channel();
        let counters = Arc::<Counters>::default();
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
            .spawn(move || {
                set_threads_of_this_thread(threads);
                run(worker);
            })
            .map_err(|source| TorchServingError::Thread { instance: number, source })?;
        Ok((Instance { commands: Mutex::new(Some(commands)), counters }, thread))
    }
}

/// Runs an instance to its end. After an error or a panic, it refuses all requests until the engine is dropped.
fn run(mut worker: Worker) {
    let outcome = catch_unwind(AssertUnwindSafe(|| worker.run()));
    let reason = match outcome {
        Ok(Ok(())) => return,
        Ok(Err(error)) => error.to_string(),
        Err(panic) => format!("panicked: {}", panic_message(&*panic)),
    };
    worker.refuse_all(&reason);
}

impl TorchServingConfig {
    fn limits(&self, model: &ModelConfig) -> Result<ServingLimits, TorchServingError> {
        let at_least_one = |option, found: usize| match found {
            0 => {
                Err(TorchServingError::Option { option, expected: "at least 1".to_owned(), found })
            }
            _ => Ok(()),
        };
        at_least_one("instances", self.instances)?;
        at_least_one("threads", self.threads_per_instance)?;
        at_least_one("max_num_seqs", self.max_running)?;
        let positions = usize::try_from(model.max_position_embeddings).unwrap_or(0);
        let most = positions.min(self.kv_cache_tokens);
        let context = self.context.unwrap_or(most);
        if !(2..=most).contains(&context) {
            let expected = format!(
                "2 to {most}, the smaller of kv_cache_tokens and the positions of the model"
            );
            return Err(TorchServingError::Option {
                option: "max_model_len",
                expected,
                found: context,
            });
        }
        Ok(ServingLimits {
            context,
            vocab_size: usize::try_from(model.vocab_size).unwrap_or(0),
            max_running: self.max_running * self.instances,
            eos_token_ids: model.eos_token_ids.clone(),
            kv_cache_tokens: self.kv_cache_tokens * self.instances,
        })
    }
}

impl Shared {
    /// Sends a command to every instance and waits for the replies. All commands are sent before the first reply is awaited.
    fn on_all<'s, F: Fn(Reply) -> Command>(
        &'s self,
        command: F,
    ) -> impl Future<Output = Result<(), ServingError>> + use<'s, F> {
        let tell = |instance: &Instance| {
            let (reply, replied) = oneshot::channel();
            instance.tell(command(reply));
            replied
        };
        let replies: Vec<_> = self.instances.iter().map(tell).collect();
        try_join_all(replies).map(|replies| replies.map(drop).map_err(|_ended| self.stopped()))
    }

    fn failure(&self) -> Option<String> {
        self.instances.iter().find_map(|instance| instance.counters.failure())
    }

    fn stopped(&self) -> ServingError {
        ServingError::Stopped(self.failure().unwrap_or_else(|| "it was shut down".to_owned()))
    }

    /// Reads weights on a thread for blocking work, and hands them to the instances.
    async fn load(&self, folder: PathBuf) -> Result<(), ServingError> {
        let _alone = self.loading.lock().await;
        let (config, device, path) = (self.config.clone(), self.device, folder.clone());
        let read = move || Decoder::load_as(config, &path, device);
        let failed = |reason: String| ServingError::Load { folder, reason };
        let read = match tokio::task::spawn_blocking(read).await {
            Ok(read) => read.map_err(|error| failed(error.to_string()))?,
            Err(panicked) => return Err(failed(panicked.to_string())),
        };
        self.on_all(|reply| Command::Load(read.share(), reply)).await
    }
}

impl Instance {
    /// Sends a command. It is lost if the engine was dropped.
    fn tell(&self, command: Command) {
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
        let least = instances.min_by_key(|instance| instance.counters.assigned());
        let least = least.expect("invariant: an engine has at least one instance");
        least.counters.assign(generation.samples);
        least.tell(Command::Generate(generation));
    }

    fn abort(&self, id: GenerationId) {
        self.shared.instances.iter().for_each(|instance| instance.tell(Command::Abort(id)));
    }

    fn abort_sample(&self, id: GenerationId, sample: u32) {
        let instances = self.shared.instances.iter();
        instances.for_each(|instance| instance.tell(Command::AbortSample(id, sample)));
    }

    fn pause(&self, mode: Pause) -> BoxFuture<'static, Result<(), ServingError>> {
        let shared = Arc::clone(&self.shared);
        let paused = async move {
            shared.on_all(|reply| Command::Pause(mode, reply)).await?;
            shared.paused.store(true, Ordering::Release);
            Ok(())
        };
        paused.boxed()
    }

    fn resume(&self) -> BoxFuture<'static, Result<(), ServingError>> {
        let shared = Arc::clone(&self.shared);
        let resumed = async move {
            shared.on_all(Command::Resume).await?;
            shared.paused.store(false, Ordering::Release);
            Ok(())
        };
        resumed.boxed()
    }

    fn is_paused(&self) -> bool {
        self.shared.paused.load(Ordering::Acquire)
    }

    fn load(&self, folder: Option<PathBuf>) -> BoxFuture<'static, Result<(), ServingError>> {
        let shared = Arc::clone(&self.shared);
        let folder = folder.unwrap_or_else(|| self.folder.clone());
        async move { shared.load(folder).await }.boxed()
    }

    fn set_label(&self, label: Arc<str>) -> BoxFuture<'static, Result<(), ServingError>> {
        let shared = Arc::clone(&self.shared);
        let labelled = async move {
            shared.on_all(|reply| Command::Label(Arc::clone(&label), reply)).await?;
            *shared.label.lock().unwrap_or_else(PoisonError::into_inner) = label;
            Ok(())
        };
        labelled.boxed()
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
        // A future of a command may still hold the channels, so they are closed and not only released.
        for instance in &self.shared.instances {
            *instance.commands.lock().unwrap_or_else(PoisonError::into_inner) = None;
        }
        for thread in self.threads.drain(..) {
            let _panic = thread.join();
        }
    }
}
