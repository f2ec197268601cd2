//! The torch trainer on a step of long-tailed lengths: 128 responses in groups of 8, log-normal lengths (median 40, sigma 1, at most
//! 256), prompts of 32 tokens, a model of 3.3 million parameters. Counted in tokens, prompts included.
//!
//! `cargo bench -p rollpacker-stages --bench train`

use divan::Bencher;
use divan::counter::ItemsCount;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal};
use rollpacker_dataflow::step::Step;
use rollpacker_stages::model::{Decoder, Family, ModelConfig, Rope, WeightStore};
use rollpacker_stages::train::config::TrainerConfig;
use rollpacker_stages::train::torch::TorchTrainer;
use rollpacker_stages::train::{Sequence, Trainer};

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

fn lengths() -> Vec<usize> {
    let tail = LogNormal::new(40f64.ln(), 1.0).expect("invariant: the deviation is finite");
    let mut random = ChaCha8Rng::seed_from_u64(0);
    tail.sample_iter(&mut random).take(128).map(|length| (length as usize).clamp(1, 256)).collect()
}

/// A whole step, its groups arriving one by one.
#[divan::bench(args = [(1, 1024), (1, 4096), (2, 4096)], sample_count = 5)]
fn step(bencher: Bencher<'_, '_>, (threads, micro_batch_tokens): (usize, usize)) {
    let decoder = Decoder::init(model(), 0, tch::Device::Cpu).expect("memory for a small model");
    let config = TrainerConfig { threads, micro_batch_tokens, ..TrainerConfig::default() };
    let mut trainer =
        TorchTrainer::new(decoder, config, WeightStore::new(1)).expect("memory for a small model");
    let (ids, numbers, lengths) = (vec![7i32; 512], vec![-0.5f32; 512], lengths());
    let sequence = |&length: &usize| Sequence {
        prompt_ids: &ids[..PROMPT],
        response_length: u32::try_from(length).expect("short"),
        response_ids: &ids[..length],
        logprobs: &numbers[..length],
        advantages: &numbers[..length],
        weight: 1.0,
        ..Sequence::default()
    };
    let groups: Vec<Vec<_>> =
        lengths.chunks(GROUP).map(|group| group.iter().map(sequence).collect()).collect();
    let tokens: usize = lengths.iter().map(|length| PROMPT + length).sum();
    bencher.counter(ItemsCount::new(tokens)).bench_local(|| {
        for group in &groups {
            trainer.accumulate(Step(0), group).expect("finite losses");
        }
        trainer.update(Step(0)).expect("a finite gradient")
    });
}
