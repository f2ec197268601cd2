//! The stages on a CUDA device, compared with the same stages on the CPU. Every test needs a device:
//!
//! ```sh
//! cargo test -p rollpacker-torch --features cuda --test cuda -- --ignored
//! ```
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use rollpacker_dataflow::clock::{Nanos, WallClock};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::catalog::Choice;
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::rollout::profile::{Grid, measure};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{Completion, Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::testkit::{EngineWorld, TrainerWorld, check_engine, check_trainer};
use rollpacker_stages::train::config::{CriticConfig, Precision, TrainerConfig};
use rollpacker_stages::train::{Numbers, Partial, Sequence, Trainer};
use rollpacker_torch::model::streamed::{Demand, MemoryBudget, MemoryNeed, StreamedDecoder};
use rollpacker_torch::model::{Decoder, WeightStore, resolve_device};
use rollpacker_torch::rollout::profile::TorchMeasure;
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};
use rollpacker_torch::train::TorchTrainer;
use tch::{Device, Kind, Tensor};

const MODELS: [&str; 4] = ["qwen2_tied", "qwen3_tied", "llama_untied", "llama3_rope"];

fn device() -> Device {
    resolve_device(DeviceChoice::FirstCuda).unwrap()
}

fn folder(model: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/models").join(model)
}

fn load(model: &str, device: Device) -> Decoder {
    Decoder::load(&folder(model), device).unwrap()
}

/// Returns the configuration of a model with several million parameters, whose layers are copied in several pieces.
fn wide(layers: i64) -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size: 5000,
        hidden_size: 256,
        intermediate_size: 1024,
        layers,
        heads: 8,
        kv_heads: 2,
        head_dim: 64,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 1e4 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 4096,
        initializer_range: 0.05,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: None,
    }
}

/// Returns logits `[tokens, vocab]` of concatenated sequences, on the CPU.
fn logits(decoder: &Decoder, ids: &[i64], lengths: &[i64]) -> Tensor {
    let ids = Tensor::from_slice(ids).to_device(decoder.device());
    let hidden = decoder.forward_packed(&ids, lengths).unwrap();
    decoder.logits(&hidden).unwrap().to_device(Device::Cpu)
}

fn largest_difference(a: &Tensor, b: &Tensor) -> f64 {
    (a - b).abs().max().double_value(&[])
}

#[test]
#[ignore = "needs a CUDA device"]
fn logits_are_those_of_the_cpu() {
    let _no_grad = tch::no_grad_guard();
    let ids: Vec<i64> = (0..61).map(|at| at * 37 % 250).collect();
    for model in MODELS {
        let of = |device| logits(&load(model, device), &ids, &[20, 20, 1, 20]);
        let difference = largest_difference(&of(device()), &of(Device::Cpu));
        assert!(difference < 1e-4, "{model}: {difference}");
    }
}

fn engine_config(sampling: Sampling) -> TorchEngineConfig {
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

fn prompts() -> Vec<Vec<i32>> {
    (0..6).map(|p| (0..1 + 8 * p).map(|at| (at * 7 + p * 13) % 250).collect()).collect()
}

/// Returns four responses of each prompt, generated on the device.
fn generate(model: &str, config: TorchEngineConfig) -> BTreeMap<SampleId, Completion> {
    let clock = Arc::new(WallClock::start());
    let decoder = load(model, device());
    let detokenize = Arc::new(|_: &[i32]| String::new());
    let mut engine =
        TorchEngine::start(config, decoder, WeightStore::new(2), detokenize, clock).unwrap();
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    for (prompt, ids) in prompts().iter().enumerate() {
        engine.generate(Request {
            step: Step(3),
            prompt: PromptId(prompt as u64),
            samples: 0..4,
            prompt_ids: Arc::from(ids.as_slice()),
            resumed: Vec::new(),
        });
    }
    let mut all = BTreeMap::new();
    while all.len() < 4 * prompts().len() {
        match engine.poll() {
            Some(RolloutEvent::Completed(completion)) => {
                assert!(all.insert(completion.id, completion).is_none(), "reported once");
            }
            Some(RolloutEvent::Failed(error)) => panic!("{error}"),
            None => woken.recv_timeout(Duration::from_secs(120)).unwrap(),
        }
    }
    all
}

/// Returns the largest difference of the engine's log-probabilities from those of a forward pass on the CPU.
fn difference_of_logprobs(model: &str, responses: &BTreeMap<SampleId, Completion>) -> f64 {
    let decoder = load(model, Device::Cpu);
    let mut largest: f64 = 0.0;
    for (id, response) in responses {
        let prompt = &prompts()[id.prompt.0 as usize];
        let ids = prompt.iter().chain(&response.response_ids).copied().map(i64::from);
        let ids: Vec<i64> = ids.collect();
        let logprobs = logits(&decoder, &ids, &[ids.len() as i64]).log_softmax(-1, Kind::Float);
        for (at, logprob) in (prompt.len()..).zip(&response.logprobs) {
            let expected = logprobs.double_value(&[at as i64 - 1, ids[at]]);
            largest = largest.max((f64::from(*logprob) - expected).abs());
        }
    }
    largest
}

#[test]
#[ignore = "needs a CUDA device"]
fn logprobs_of_the_engine_are_those_of_a_forward_pass_on_the_cpu() {
    let _no_grad = tch::no_grad_guard();
    for model in MODELS {
        let responses = generate(model, engine_config(Sampling::unrestricted(60)));
        let difference = difference_of_logprobs(model, &responses);
        assert!(difference < 1e-3, "{model}: {difference}");
        let config = TorchEngineConfig {
            dtype: Precision::Bfloat16,
            ..engine_config(Sampling::unrestricted(60))
        };
        let difference = difference_of_logprobs(model, &generate(model, config));
        assert!(difference > 1e-5 && difference < 0.2, "{model} in bfloat16: {difference}");
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn responses_do_not_depend_on_the_memory_of_the_cache() {
    let sampling = Sampling { top_p: 0.95, top_k: 50, ..Sampling::unrestricted(48) };
    let ids = |config| -> (BTreeMap<SampleId, Vec<i32>>, u32) {
        let responses = generate("qwen2_tied", config);
        let preemptions = responses.values().map(|response| response.preemptions).sum();
        (
            responses.into_iter().map(|(id, response)| (id, response.response_ids)).collect(),
            preemptions,
        )
    };
    let (roomy, preemptions) = ids(engine_config(sampling));
    assert_eq!(preemptions, 0);
    let (tight, preemptions) =
        ids(TorchEngineConfig { kv_cache_tokens: 200, ..engine_config(sampling) });
    assert!(preemptions > 0);
    assert_eq!(tight, roomy);
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_engine_passes_the_testkit() {
    let store = WeightStore::new(2);
    let policies = [0, 1].map(|version| {
        let weights = load("qwen2_tied", device()).snapshot().unwrap();
        store.publish(PolicyVersion(version), weights)
    });
    let world = EngineWorld {
        policies: policies.to_vec(),
        prompts: prompts().into_iter().take(3).map(Into::into).collect(),
        samples: 3,
        timeout: Duration::from_secs(120),
        is_reproducible: false,
        virtual_time: None,
    };
    let config = TorchEngineConfig { instances: 2, ..engine_config(Sampling::unrestricted(12)) };
    let start = || {
        let detokenize = Arc::new(|ids: &[i32]| format!("{ids:?}"));
        let decoder = load("qwen2_tied", device());
        let clock = Arc::new(WallClock::start());
        TorchEngine::start(config.clone(), decoder, store.clone(), detokenize, clock).unwrap()
    };
    check_engine(start, &world).unwrap();
}

/// A response with columns that its index determines.
struct Response {
    id: (u64, u32),
    prompt: Vec<i32>,
    response: Vec<i32>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    values: Vec<f32>,
}

impl Response {
    fn of(prompt: u64, sample: u32) -> Self {
        let seed = prompt as usize * 31 + sample as usize * 7;
        let length = 1 + seed % 90;
        let column = |scale: f32, offset: f32| -> Vec<f32> {
            (0..length).map(|at| scale * ((at * 13 + seed) as f32).sin() + offset).collect()
        };
        Self {
            id: (prompt, sample),
            prompt: (0..5 + prompt as i32).map(|at| (at * 11 + prompt as i32) % 250).collect(),
            response: (0..length).map(|at| ((at * 17 + seed) % 250) as i32).collect(),
            logprobs: column(0.5, -5.0),
            advantages: column(1.5, 0.1),
            values: column(0.2, 0.0),
        }
    }

    fn sequence(&self) -> Sequence<'_> {
        Sequence {
            prompt: PromptId(self.id.0),
            sample: self.id.1,
            prompt_ids: &self.prompt,
            response_length: self.response.len() as u32,
            response_ids: &self.response,
            logprobs: &self.logprobs,
            advantages: &self.advantages,
            ..Sequence::default()
        }
    }

    /// Returns the sequence with the columns of a critic.
    fn with_values(&self) -> Sequence<'_> {
        Sequence { values: &self.values, returns: &self.advantages, ..self.sequence() }
    }
}

fn responses() -> Vec<Response> {
    (0..6).flat_map(|prompt| (0..4).map(move |sample| Response::of(prompt, sample))).collect()
}

fn trainer_config() -> TrainerConfig {
    TrainerConfig {
        kl_loss_coef: 0.1,
        kl_loss_type: Choice::of("low_var_kl"),
        entropy_coeff: 0.01,
        ..TrainerConfig::default()
    }
}

/// Returns the gradient of a step whose responses arrive `call` at a time.
fn gradient(device: Device, config: TrainerConfig, call: usize) -> Tensor {
    let decoder = load("qwen3_tied", device);
    let mut trainer = TorchTrainer::new(decoder, config, WeightStore::new(2)).unwrap();
    for responses in responses().chunks(call) {
        let sequences: Vec<_> = responses.iter().map(Response::sequence).collect();
        trainer.accumulate(Step(0), &sequences).unwrap();
    }
    match trainer.take_partial(Step(0)).unwrap() {
        Partial { gradient: Numbers::Float(gradient), .. } => Tensor::from_slice(&gradient),
        Partial { gradient: Numbers::Fixed(_), .. } => panic!("the trainer is not deterministic"),
    }
}

fn relative_difference(a: &Tensor, b: &Tensor) -> f64 {
    ((a - b).norm() / b.norm()).double_value(&[])
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_streamed_gradient_is_that_of_the_batch_on_the_cpu() {
    let batch = gradient(Device::Cpu, trainer_config(), usize::MAX);
    for (call, micro_batch_tokens) in [(24, 4096), (4, 4096), (1, 100)] {
        let streamed =
            gradient(device(), TrainerConfig { micro_batch_tokens, ..trainer_config() }, call);
        let difference = relative_difference(&streamed, &batch);
        assert!(difference < 1e-4, "{call} a call, {micro_batch_tokens} tokens: {difference}");
    }
    let halved = TrainerConfig { dtype: Precision::Bfloat16, ..trainer_config() };
    let difference = relative_difference(&gradient(device(), halved, 4), &batch);
    assert!(difference > 1e-5 && difference < 0.3, "in bfloat16: {difference}");
}

#[test]
#[ignore = "needs a CUDA device"]
fn the_trainer_passes_the_testkit() {
    let responses = responses();
    for critic in [None, Some(CriticConfig::default())] {
        let sequence = if critic.is_some() { Response::with_values } else { Response::sequence };
        let groups: Vec<Vec<Sequence<'_>>> =
            responses.chunks(4).map(|group| group.iter().map(sequence).collect()).collect();
        let folder = tempfile::tempdir().unwrap();
        let world = TrainerWorld {
            groups: &groups,
            tolerance: 1e-3,
            has_digests: true,
            is_reproducible: false,
            folder: folder.path(),
        };
        let start = || {
            let config = TrainerConfig { critic, ..trainer_config() };
            TorchTrainer::new(load("qwen2_tied", device()), config, WeightStore::new(4)).unwrap()
        };
        check_trainer(start, &world).unwrap();
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn streamed_weights_give_the_bits_of_resident_ones() {
    let _no_grad = tch::no_grad_guard();
    const LAYERS: i64 = 9;
    let folder = tempfile::tempdir().unwrap();
    Decoder::init(wide(LAYERS), 3, Device::Cpu).unwrap().save(folder.path()).unwrap();
    let resident = Decoder::load(folder.path(), device()).unwrap();
    let demand = Demand { cached: 0, pass: 4096, rows: 4096 };
    for (layers, prefetch) in [(1, false), (2, false), (2, true), (5, true), (9, true)] {
        let need =
            MemoryNeed::of(&wide(LAYERS), MemoryBudget { bytes: u64::MAX, prefetch }, demand);
        let budget = MemoryBudget { bytes: need.with_layers(layers), prefetch };
        let mut streamed = StreamedDecoder::open(folder.path(), device(), budget, demand).unwrap();
        // With many tokens the layers compute longer than their weights are copied, with few tokens shorter.
        for tokens in [4000, 3, 4000, 4000, 40, 1, 4000].into_iter().cycle().take(21) {
            let ids = (Tensor::arange(tokens, (Kind::Int64, device())) * 7).remainder(5000);
            let hidden = streamed.forward_packed(&ids, &[tokens]).unwrap();
            let expected = resident.forward_packed(&ids, &[tokens]).unwrap();
            assert!(hidden.equal(&expected), "{tokens} tokens, {:?}", streamed.residency());
        }
    }
}

#[test]
#[ignore = "needs a CUDA device"]
fn iterations_are_measured_with_their_kernels() {
    let clock = Arc::new(WallClock::start());
    let grid = Grid {
        instances: vec![1],
        tensor_parallel: 1,
        batch_sizes: vec![1, 256],
        prompt_lengths: vec![1, 1000],
        context_lengths: vec![1, 3000],
        kv_cache_tokens: 256 * 3000,
    };
    let decoder = Decoder::init(wide(8), 3, device()).unwrap();
    let config = engine_config(Sampling::unrestricted(4));
    let mut engine = TorchMeasure::start(config, decoder, clock.clone()).unwrap();
    let rows = measure(&grid, &mut engine, &*clock, Nanos::from_secs_f64(600.0)).unwrap();
    assert_eq!(rows.len(), grid.points().len());
    // The keys and values of a decode iteration of 256 responses of 3,000 tokens are 6.3 GB, which no device reads in 0.6 ms.
    let longest = rows.iter().map(|row| row.seconds).fold(0.0, f64::max);
    assert!(longest > 6e-4, "{longest} s");
}
