//! A driver that runs an engine with a small model until all requests are complete.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{Completion, Partial, Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::{Decoder, WeightStore, Weights};
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};
use tch::{Device, Kind, Tensor};

pub(super) const EOS: i32 = 258;

pub(super) fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(model)
}

/// The name of a randomly initialized model with the shape of the built-in task's model.
pub(super) const BUILT_IN: &str = "built-in";

/// The name of a randomly initialized model that is so wide that even a single row is divided among threads.
pub(super) const WIDE: &str = "wide";

pub(super) fn decoder(model: &str) -> Decoder {
    let config = match model {
        BUILT_IN => Some(built_in()),
        WIDE => Some(ModelConfig { hidden_size: 256, intermediate_size: 1024, ..built_in() }),
        _ => None,
    };
    if let Some(config) = config {
        return Decoder::init(config, 5, Device::Cpu).unwrap();
    }
    Decoder::load(&folder(model), Device::Cpu).unwrap()
}

fn built_in() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size: 39,
        hidden_size: 96,
        intermediate_size: 256,
        layers: 3,
        heads: 4,
        kv_heads: 2,
        head_dim: 24,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 2048,
        initializer_range: 0.1,
        eos_token_ids: vec![38],
        bos_token_id: None,
        pad_token_id: None,
    }
}

/// Returns the weights of a model, those of the layers' matrices rounded to bfloat16.
pub(super) fn rounded(decoder: &Decoder) -> Weights {
    let rounded = |(name, tensor): &(String, Tensor)| {
        let tensor = if name.contains("_proj.weight") {
            tensor.to_kind(Kind::BFloat16).to_kind(Kind::Float)
        } else {
            tensor.copy()
        };
        (name.clone(), tensor)
    };
    Weights::new(decoder.parameters().iter().map(rounded).collect()).unwrap()
}

/// Returns `true` if the processor has the instructions for which the kernels of the engine are compiled. If the engine is also compiled
/// with an `opt-level` of at least 2, its kernels compute products and attention of float32; otherwise libtorch computes them.
pub(super) fn has_kernels() -> bool {
    #[cfg(target_arch = "x86_64")]
    let found = is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma");
    #[cfg(not(target_arch = "x86_64"))]
    let found = false;
    found
}

/// Returns the weights of a model times `factor`.
pub(super) fn scaled(decoder: &Decoder, factor: f64) -> Weights {
    let scaled = |(name, tensor): &(String, Tensor)| (name.clone(), tensor * factor);
    Weights::new(decoder.parameters().iter().map(scaled).collect()).unwrap()
}

/// Returns the first `tokens` tokens of a response, in the form that a caller keeps.
pub(super) fn first(completion: &Completion, tokens: usize) -> Partial {
    Partial {
        sample: completion.id.sample,
        launched: Step(3),
        response_length: tokens as u32,
        response_ids: completion.response_ids[..tokens].to_vec(),
        logprobs: completion.logprobs[..tokens].to_vec(),
        token_versions: completion.token_versions.prefix(tokens),
    }
}

pub(super) fn deterministic(base: TorchEngineConfig) -> TorchEngineConfig {
    TorchEngineConfig { deterministic: true, ..base }
}

pub(super) fn config(sampling: Sampling) -> TorchEngineConfig {
    TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: 64,
        kv_cache_tokens: 10_000,
        dtype: Precision::Float32,
        sampling,
        seed: 7,
        replay: None,
        deterministic: false,
    }
}

/// An engine with the receiver that its waker signals.
pub(super) struct Driver {
    pub(super) engine: TorchEngine,
    woken: Receiver<()>,
}

impl Driver {
    pub(super) fn start(model: &str, config: TorchEngineConfig, weights: WeightStore) -> Self {
        Self::start_by(Arc::new(WallClock::start()), model, config, weights)
    }

    pub(super) fn start_by(
        clock: Arc<dyn Clock>,
        model: &str,
        config: TorchEngineConfig,
        weights: WeightStore,
    ) -> Self {
        let detokenize = Arc::new(|ids: &[i32]| format!("{ids:?}"));
        let mut engine =
            TorchEngine::start(config, decoder(model), weights, detokenize, clock).unwrap();
        let (wake, woken) = channel();
        engine.wake_by(Arc::new(move || {
            let _gone = wake.send(());
        }));
        Self { engine, woken }
    }

    pub(super) fn new(config: TorchEngineConfig) -> Self {
        Self::start("qwen2_tied", config, WeightStore::new(2))
    }

    /// Returns the next event; blocks until there is one.
    pub(super) fn next(&mut self) -> RolloutEvent {
        loop {
            if let Some(event) = self.engine.poll() {
                return event;
            }
            self.wait();
        }
    }

    /// Blocks until the engine signals its waker.
    pub(super) fn wait(&self) {
        self.woken.recv_timeout(Duration::from_secs(120)).expect("the engine wakes its caller");
    }

    /// Waits until every instance has run `iterations` decode iterations. The instances read a [`GatedClock`], of which `gate` is the
    /// sender; further readings are permitted while the instances need them.
    pub(super) fn pass(&self, gate: &Sender<()>, iterations: u64) {
        self.pass_on(gate, self.engine.statistics().len(), iterations);
    }

    /// Waits as [`pass`](Self::pass) does, but only for the first `instances` instances.
    pub(super) fn pass_on(&self, gate: &Sender<()>, instances: usize, iterations: u64) {
        // On a busy machine one instance may take all permitted readings, so more are permitted, a few at a time.
        for turn in 1.. {
            let mut statistics = self.engine.statistics().into_iter().take(instances);
            if statistics.all(|instance| instance.decode_iterations >= iterations) {
                break;
            }
            if turn % 20_000 == 0 {
                gate.send(()).expect("the clock is there");
            }
            std::thread::yield_now();
        }
    }

    pub(super) fn collect(&mut self, responses: usize) -> BTreeMap<SampleId, Completion> {
        let mut all = BTreeMap::new();
        while all.len() < responses {
            match self.next() {
                RolloutEvent::Completed(completion) => {
                    assert!(
                        all.insert(completion.id, completion).is_none(),
                        "a response is reported once"
                    );
                }
                RolloutEvent::Failed(error) => panic!("{error}"),
            }
        }
        assert_eq!(self.engine.poll(), None);
        all
    }
}

pub(super) fn request(prompt: u64, samples: std::ops::Range<u32>, prompt_ids: &[i32]) -> Request {
    Request {
        step: Step(3),
        prompt: PromptId(prompt),
        samples,
        prompt_ids: Arc::from(prompt_ids),
        resumed: Vec::new(),
    }
}

pub(super) fn id(prompt: u64, sample: u32) -> SampleId {
    SampleId { step: Step(3), prompt: PromptId(prompt), sample }
}

/// Returns different prompts of 1 to about 40 tokens.
pub(super) fn prompts() -> Vec<Vec<i32>> {
    (0..6).map(|p| (0..1 + 8 * p).map(|i| (i * 7 + p * 13) % 256).collect()).collect()
}

/// A clock that blocks its readers after a number of readings. A message to its sender permits one more reading; dropping the sender
/// permits all.
pub(super) struct GatedClock(Mutex<Receiver<()>>);

impl GatedClock {
    pub(super) fn for_readings(readings: usize) -> (Arc<Self>, Sender<()>) {
        let (permit, permits) = channel();
        (0..readings).for_each(|_| permit.send(()).unwrap());
        (Arc::new(Self(Mutex::new(permits))), permit)
    }
}

impl Clock for GatedClock {
    fn now(&self) -> Nanos {
        let _open = self.0.lock().unwrap().recv();
        Nanos(1)
    }
}
