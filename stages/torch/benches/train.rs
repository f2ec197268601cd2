//! Tokens per second of the torch trainer, prompts included, on a step with long-tailed lengths: 128 responses in groups of 8 with
//! log-normal lengths (median 40, sigma 1, at most 256), prompts of 32 tokens, and a model of 3.3 million parameters.
//!
//! The trainer computes on the first CUDA device if there is one, otherwise on the CPU.
//!
//! `cargo bench -p rollpacker-torch --bench train`

use divan::Bencher;
use divan::counter::ItemsCount;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::train::config::{Precision, TrainerConfig};
use rollpacker_stages::train::{Sequence, Trainer};
use rollpacker_torch::model::{Decoder, WeightStore, resolve_device};
use rollpacker_torch::train::TorchTrainer;
use tch::Device;

const PROMPT: usize = 32;
const GROUP: usize = 8;

fn main() {
    divan::main();
}

fn model() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen2,
        vocab_size: 512,
        hidden_size: 256,
        intermediate_size: 768,
        layers: 4,
        heads: 4,
        kv_heads: 2,
        head_dim: 64,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 1e4 },
        tie_word_embeddings: true,
        attention_bias: true,
        max_position_embeddings: 512,
        initializer_range: 0.02,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: None,
    }
}

/// Returns the configuration of a model with 494 million parameters.
fn large_model() -> ModelConfig {
    ModelConfig {
        vocab_size: 151_936,
        hidden_size: 896,
        intermediate_size: 4864,
        layers: 24,
        heads: 14,
        max_position_embeddings: 4096,
        ..model()
    }
}

fn device() -> Device {
    resolve_device(DeviceChoice::Auto).expect("invariant: there is a CPU")
}

fn lengths() -> Vec<usize> {
    let tail = LogNormal::new(40f64.ln(), 1.0).expect("invariant: the deviation is finite");
    let mut random = ChaCha8Rng::seed_from_u64(0);
    tail.sample_iter(&mut random).take(128).map(|length| (length as usize).clamp(1, 256)).collect()
}

/// Measures a whole step for a number of threads and a number of groups per call. One group per call corresponds to groups that arrive one
/// by one, 16 to groups that have waited for the trainer.
#[divan::bench(args = [(1, 1), (1, 16), (2, 1), (2, 16)], sample_count = 5)]
fn step(bencher: Bencher<'_, '_>, (threads, groups): (usize, usize)) {
    measure(bencher, TrainerConfig { threads, ..TrainerConfig::default() }, groups);
}

/// Measures the same step with an update that does not depend on the order in which groups arrive. Runs only on a CPU.
#[divan::bench(args = [(1, 1), (1, 16), (2, 1), (2, 16)], sample_count = 5, ignore = device() != Device::Cpu)]
fn deterministic_step(bencher: Bencher<'_, '_>, (threads, groups): (usize, usize)) {
    let config = TrainerConfig { threads, deterministic: true, ..TrainerConfig::default() };
    measure(bencher, config, groups);
}

/// Measures a step of a model with 494 million parameters and responses that are eight times as long, with two groups per call. Runs only
/// on a CUDA device.
#[divan::bench(args = [Precision::Float32, Precision::Bfloat16], sample_count = 3, ignore = device() == Device::Cpu)]
fn large_step(bencher: Bencher<'_, '_>, dtype: Precision) {
    let config = TrainerConfig { dtype, micro_batch_tokens: 16_384, ..TrainerConfig::default() };
    let lengths: Vec<usize> = lengths().into_iter().map(|length| 8 * length).collect();
    measure_step(bencher, trainer_of(large_model(), config), &lengths, 2);
}

fn measure(bencher: Bencher<'_, '_>, config: TrainerConfig, groups: usize) {
    measure_step(bencher, trainer(config), &lengths(), groups);
}

/// Measures a step over responses of the given lengths, with `groups` groups per call.
fn measure_step(
    bencher: Bencher<'_, '_>,
    mut trainer: TorchTrainer,
    lengths: &[usize],
    groups: usize,
) {
    let longest = lengths.iter().copied().max().unwrap_or(0).max(PROMPT);
    let (ids, numbers) = (vec![7i32; longest], vec![-0.5f32; longest]);
    let sequence = |(at, &length): (usize, &usize)| Sequence {
        prompt: PromptId((at / GROUP) as u64),
        sample: (at % GROUP) as u32,
        prompt_ids: &ids[..PROMPT],
        response_length: u32::try_from(length).expect("short"),
        response_ids: &ids[..length],
        logprobs: &numbers[..length],
        advantages: &numbers[..length],
        weight: 1.0,
        ..Sequence::default()
    };
    let sequences: Vec<_> = lengths.iter().enumerate().map(sequence).collect();
    let tokens: usize = lengths.iter().map(|length| PROMPT + length).sum();
    bencher.counter(ItemsCount::new(tokens)).bench_local(|| {
        for call in sequences.chunks(groups * GROUP) {
            trainer.accumulate(Step(0), call).expect("finite losses");
        }
        trainer.update(Step(0)).expect("a finite gradient")
    });
}

/// Measures a step of one response in which the trainer also exports its gradient and imports the sum, as a replica does. Throughput is in
/// parameters per second. Runs only on a CPU.
#[divan::bench(args = [false, true], sample_count = 20, ignore = device() != Device::Cpu)]
fn partial(bencher: Bencher<'_, '_>, deterministic: bool) {
    let mut trainer = trainer(TrainerConfig { deterministic, ..TrainerConfig::default() });
    let parameters = trainer.decoder().parameters().iter().map(|(_, tensor)| tensor.numel()).sum();
    let prompt = [7];
    let one = Sequence {
        prompt_ids: &prompt,
        response_length: 1,
        response_ids: &prompt,
        logprobs: &[-0.5],
        advantages: &[0.5],
        ..Sequence::default()
    };
    bencher.counter(ItemsCount::new::<usize>(parameters)).bench_local(|| {
        trainer.accumulate(Step(0), &[one]).expect("a finite loss");
        let partial = trainer.take_partial(Step(0)).expect("memory for the gradient");
        trainer.put_sum(Step(0), partial).expect("the same model");
        trainer.update(Step(0)).expect("a finite gradient")
    });
}

fn trainer(config: TrainerConfig) -> TorchTrainer {
    trainer_of(model(), config)
}

fn trainer_of(model: ModelConfig, config: TrainerConfig) -> TorchTrainer {
    let decoder = Decoder::init(model, 0, device()).expect("memory for the model");
    TorchTrainer::new(decoder, config, WeightStore::new(1)).expect("memory for the model")
}
