//! The iterations of the torch engine, measured without its commands and events.
//!
//! The timed work is the work of an instance. When prefilling, it admits the batch and runs it through the model. When decoding, it plans,
//! runs the forward pass, samples, and appends the tokens. All sequences of a batch have the same length; the sequences of a live engine do
//! not, so a live engine may compute their attention in several groups.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::profile::{MAX_REPEATS, Measure, Phase, Point};
use tch::{Cuda, Device, TchError};

use super::counters::Counters;
use super::generator::{Generator, GeneratorError};
use super::instance::{Instance, InstanceError, ReportSender};
use super::instance_handle::{self, InstanceContext};
use super::options::{TorchEngineConfig, TorchEngineError};
use super::passes::Passes;
use super::sampling::{RandomStream, Sampling};
use super::sequence::Sequence;
use super::{Partial, Placement, RolloutError, TokenVersions};
use crate::model::Decoder;
use crate::model::inference::InferenceDecoder;
use crate::model::kernel_threads::KernelThreads;
use crate::model::network::Network;

/// Maximum number of tokens by which the sequences of a point grow while it is measured.
const GROWTH: usize = MAX_REPEATS as usize + 2;

/// The reason in the error for a thread that ended without reporting an error.
const ENDED: &str = "its thread ended unexpectedly";

/// Instances of a torch engine that execute measurement tasks, each on its own thread, as in the engine.
pub struct TorchMeasure {
    workers: Vec<ProfiledInstance>,
    /// Number of instances that work at the current point.
    working: usize,
    device_threads: usize,
}

/// The handle to an instance that executes measurement tasks on its own thread.
struct ProfiledInstance {
    number: u32,
    devices: u32,
    /// The channel of tasks; `None` once it is closed, which ends the thread.
    tasks: Option<Sender<ProfileTask>>,
    replies: Receiver<Result<f64, RolloutError>>,
    /// The thread. It returns the bench when it ends, unless its kernel threads cannot be started.
    thread: Option<JoinHandle<Option<Bench>>>,
}

#[derive(Clone, Copy, Debug)]
enum ProfileTask {
    Prepare(Point),
    Iterate,
}

/// An instance with a batch to measure.
struct Bench {
    instance: Instance,
    sampling: Sampling,
    point: Point,
}

impl TorchMeasure {
    /// Starts `config.instances` instances, which share the weights. They sample as in `config`, except that responses never end, and the
    /// limits on running responses and cached tokens are lifted so that every point fits. Iterations are timed with `clock`.
    ///
    /// # Errors
    /// Returns an error if an option is out of bounds, the machine cannot generate deterministically although the options require it,
    /// memory cannot be allocated, or the system cannot create a thread.
    pub fn start(
        config: TorchEngineConfig,
        decoder: Decoder,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, TorchEngineError> {
        config.check()?;
        let mut decoder = InferenceDecoder::new(decoder, config.dtype)?;
        let passes = instance_handle::select_passes(&config, &mut decoder)?;
        let (instances, device_threads) = (config.instances, config.threads_per_instance);
        let shared = context(config, clock, passes);
        let workers = (0..instances)
            .map(|number| {
                let bench = Bench::new(&shared, number, decoder.share())?;
                ProfiledInstance::start(bench, device_threads)
                    .map_err(|error| TorchEngineError::Thread { instance: number, error })
            })
            .collect::<Result<_, _>>()?;
        Ok(Self { workers, working: 0, device_threads })
    }

    /// Runs `task` on all instances of the current point at once and returns the mean of their times, in seconds.
    fn all(&mut self, task: ProfileTask) -> Result<f64, RolloutError> {
        let workers = &self.workers[..self.working];
        workers.iter().for_each(|worker| worker.send(task));
        // Receive all replies before returning an error, so that the next task receives only its own replies.
        let replies: Vec<_> = (0..).zip(workers).map(|(at, worker)| worker.receive(at)).collect();
        let seconds = replies.into_iter().sum::<Result<f64, _>>()?;
        Ok(seconds / self.working.max(1) as f64)
    }
}

impl Measure for TorchMeasure {
    fn prepare(&mut self, point: Point) -> Result<(), RolloutError> {
        let Point { instances, tensor_parallel, .. } = point;
        let devices = u64::from(instances) * u64::from(tensor_parallel);
        if !(1..=self.workers.len() as u64).contains(&devices) {
            let found = Placement { instances, tensor_parallel };
            let instances = u32::try_from(self.workers.len()).unwrap_or(u32::MAX);
            return Err(RolloutError::Placement { found, instances });
        }
        self.working = instances as usize;
        let reshaped = self.workers[..self.working].iter_mut();
        for worker in reshaped.filter(|worker| worker.devices != tensor_parallel) {
            worker.set_devices(tensor_parallel, self.device_threads)?;
        }
        self.all(ProfileTask::Prepare(point))?;
        // Warm up: memory and kernels are used for the first time.
        self.seconds()?;
        Ok(())
    }

    fn seconds(&mut self) -> Result<f64, RolloutError> {
        self.all(ProfileTask::Iterate)
    }
}

impl Drop for TorchMeasure {
    fn drop(&mut self) {
        self.workers.iter_mut().for_each(|worker| worker.tasks = None);
        for worker in &mut self.workers {
            if let Some(thread) = worker.thread.take() {
                let _panic = thread.join();
            }
        }
    }
}

impl ProfiledInstance {
    /// Starts a thread that executes the tasks of `bench`. `device_threads` is the number of threads of a device; see
    /// [`instance_handle::threads`].
    fn start(mut bench: Bench, device_threads: usize) -> std::io::Result<Self> {
        let (tasks, given) = channel();
        let (reply, replies) = channel();
        let Instance { number, devices, deterministic, .. } = bench.instance;
        let threads = instance_handle::threads(devices, device_threads, deterministic);
        let work = move || {
            let _threads = match KernelThreads::for_this_thread(threads) {
                Ok(threads) => threads,
                Err(error) => {
                    let reason = format!("cannot start its threads: {error}");
                    let _gone = reply.send(Err(RolloutError::Engine { instance: number, reason }));
                    return None;
                }
            };
            let _no_grad = tch::no_grad_guard();
            for task in given {
                let outcome = bench.work(task).map_err(|error| error.into_rollout_error(number));
                if reply.send(outcome).is_err() {
                    break;
                }
            }
            Some(bench)
        };
        let thread = std::thread::Builder::new().name(format!("profile-{number}")).spawn(work)?;
        Ok(Self { number, devices, tasks: Some(tasks), replies, thread: Some(thread) })
    }

    /// Changes the number of the instance's devices. A thread keeps its kernel threads until it ends, so another thread takes over the
    /// instance.
    fn set_devices(&mut self, devices: u32, device_threads: usize) -> Result<(), RolloutError> {
        let instance = self.number;
        let failed = |reason: String| RolloutError::Engine { instance, reason };
        self.tasks = None;
        let ended = self.thread.take().and_then(|thread| thread.join().ok().flatten());
        let mut bench = ended.ok_or_else(|| failed(ENDED.to_owned()))?;
        bench.instance.set_devices(devices);
        *self = Self::start(bench, device_threads)
            .map_err(|error| failed(format!("cannot start a thread: {error}")))?;
        Ok(())
    }

    /// Sends a task. A thread that has ended is detected when its reply is received.
    fn send(&self, task: ProfileTask) {
        if let Some(tasks) = &self.tasks {
            let _gone = tasks.send(task);
        }
    }

    fn receive(&self, instance: u32) -> Result<f64, RolloutError> {
        self.replies
            .recv()
            .unwrap_or_else(|_| Err(RolloutError::Engine { instance, reason: ENDED.to_owned() }))
    }
}

/// Returns the context of instances whose responses never end, and whose limits on running responses and cached tokens are lifted.
fn context(
    config: TorchEngineConfig,
    clock: Arc<dyn Clock>,
    passes: Option<Passes>,
) -> InstanceContext {
    let sampling = Sampling { min_new_tokens: 0, max_new_tokens: u32::MAX, ..config.sampling };
    // Responses never end, so nothing is reported.
    let (sender, _) = channel();
    InstanceContext {
        config: TorchEngineConfig {
            sampling,
            max_running: i32::MAX as usize,
            kv_cache_tokens: usize::MAX,
            ..config
        },
        detokenize: Arc::new(|_: &[i32]| String::new()),
        clock,
        reports: ReportSender::new(sender),
        busy: Arc::default(),
        passes,
    }
}

impl Bench {
    fn new(
        shared: &InstanceContext,
        number: u32,
        decoder: InferenceDecoder,
    ) -> Result<Self, TchError> {
        let positions = usize::try_from(decoder.config().max_position_embeddings).unwrap_or(0);
        let (_, commands) = channel();
        let counters = Arc::new(Counters::default());
        let limit = positions + GROWTH;
        let instance = shared.instance(number, decoder, limit, &counters, commands)?;
        let point = Point {
            phase: Phase::Decode,
            instances: 1,
            tensor_parallel: 1,
            batch_size: 0,
            tokens: 0,
        };
        Ok(Self { instance, sampling: shared.config.sampling, point })
    }

    /// Executes a task. Returns the seconds of the iteration; 0 for [`Prepare`](ProfileTask::Prepare).
    fn work(&mut self, task: ProfileTask) -> Result<f64, InstanceError> {
        match task {
            ProfileTask::Prepare(point) => self.prepare(point).map(|()| 0.0),
            ProfileTask::Iterate => match self.point.phase {
                Phase::Prefill => self.prefill(),
                Phase::Decode => self.decode(),
            },
        }
    }

    fn prepare(&mut self, point: Point) -> Result<(), InstanceError> {
        self.point = point;
        let generator = &mut self.instance.generator;
        let _earlier = generator.drain();
        generator.free();
        if point.phase == Phase::Decode {
            // One prompt is computed once, and the others share it.
            (0..point.batch_size).for_each(|sample| self.push(sample, false));
            self.instance.generator.admit_and_prefill(Nanos(0), usize::MAX)?;
        }
        Ok(())
    }

    fn prefill(&mut self) -> Result<f64, InstanceError> {
        self.refill();
        self.timed(|generator| generator.admit_and_prefill(Nanos(0), usize::MAX).map(|_| ()))
    }

    /// Replaces all sequences by the sequences of the point, each of which prefills its own prompt.
    fn refill(&mut self) {
        let _earlier = self.instance.generator.drain();
        (0..self.point.batch_size).for_each(|sample| self.push(sample, true));
    }

    /// Runs a decode iteration. Sampled end-of-sequence tokens are replaced by another token, so that no response ends.
    fn decode(&mut self) -> Result<f64, InstanceError> {
        self.timed(|generator| {
            generator.admit_and_prefill(Nanos(0), usize::MAX)?;
            let mut sampled = generator.decode()?;
            let ends = &generator.network().config().eos_token_ids;
            let is_end = |token: &i64| ends.iter().any(|end| i64::from(*end) == *token);
            let other = (0..).find(|token| !is_end(token)).unwrap_or(0);
            for token in sampled.tokens.iter_mut().filter(|token| is_end(token)) {
                *token = other;
            }
            // No response ends, so none is returned.
            generator.append_tokens(sampled).map(|_| ())
        })
    }

    fn timed(
        &mut self,
        work: impl FnOnce(&mut Generator<InferenceDecoder>) -> Result<(), GeneratorError>,
    ) -> Result<f64, InstanceError> {
        let begun = self.instance.clock.now();
        work(&mut self.instance.generator)?;
        // CUDA kernels run asynchronously: wait for them before reading the clock.
        if let Device::Cuda(index) = self.instance.generator.network().device() {
            Cuda::synchronize(index as i64);
        }
        Ok(self.instance.clock.now().since(begun).as_secs_f64())
    }

    /// Adds a sequence to the queue. If `alone` is `true`, it already has a response token, so that it does not share the computation of
    /// its prompt.
    fn push(&mut self, sample: u32, alone: bool) {
        let id = SampleId { sample, ..SampleId::default() };
        let vocabulary = self.instance.generator.network().config().vocab_size;
        let token = |at: u32| (i64::from(at) % vocabulary) as i32;
        let prompt = (0..self.point.tokens).map(token).collect();
        let fresh = Sequence::new(id, prompt, self.sampling, RandomStream::new(0, id));
        let partial = Partial {
            response_length: 1,
            response_ids: vec![0],
            logprobs: vec![0.0],
            token_versions: TokenVersions::of(PolicyVersion(0), 1),
            ..Partial::default()
        };
        let sequence = if alone { fresh.resume(&partial) } else { fresh };
        self.instance.generator.push(sequence);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use rollpacker_dataflow::clock::WallClock;
    use rollpacker_stages::train::config::Precision;

    use super::*;

    #[test]
    fn every_sequence_of_a_batch_prefills_its_own_prompt() {
        let _no_grad = tch::no_grad_guard();
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models/qwen2_tied");
        let decoder = Decoder::load(&folder, Device::Cpu).unwrap();
        let decoder = InferenceDecoder::new(decoder, Precision::Float32).unwrap();
        let config = TorchEngineConfig {
            instances: 1,
            threads_per_instance: 1,
            max_running: 1,
            kv_cache_tokens: 1,
            dtype: Precision::Float32,
            sampling: Sampling::unrestricted(4),
            seed: 7,
            replay: None,
            deterministic: false,
        };
        let shared = context(config, Arc::new(WallClock::start()), None);
        let mut bench = Bench::new(&shared, 0, decoder).unwrap();
        let (batch_size, tokens) = (64, 200);
        let point =
            Point { phase: Phase::Prefill, instances: 1, tensor_parallel: 1, batch_size, tokens };
        bench.prepare(point).unwrap();
        for _ in 0..2 {
            bench.refill();
            let work = bench.instance.generator.admit_and_prefill(Nanos(0), usize::MAX).unwrap();
            assert_eq!((work.prefilled, work.preempted), ((batch_size * tokens) as usize, 0));
        }
    }
}
