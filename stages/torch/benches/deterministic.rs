//! The cost of deterministic generation: tokens per second of one instance of the torch engine on one thread, with and without it, on a
//! model of 0.31 million parameters and one of 3.3 million.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_dataflow::clock::WallClock;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::rollout::{Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::train::config::Precision;
use rollpacker_torch::model::{Decoder, WeightStore};
use rollpacker_torch::rollout::{TorchEngine, TorchEngineConfig};
use tch::Device;

fn main() {
    divan::main();
}

const PROMPT: i32 = 64;
const NEW: u32 = 128;

#[divan::bench(args = [1, 8, 32, 64], sample_count = 9, sample_size = 1)]
fn small_free(bencher: Bencher<'_, '_>, rows: u32) {
    decode(bencher, small(), rows, false);
}

#[divan::bench(args = [1, 8, 32, 64], sample_count = 9, sample_size = 1)]
fn small_deterministic(bencher: Bencher<'_, '_>, rows: u32) {
    decode(bencher, small(), rows, true);
}

#[divan::bench(args = [1, 8, 32, 64], sample_count = 9, sample_size = 1)]
fn medium_free(bencher: Bencher<'_, '_>, rows: u32) {
    decode(bencher, medium(), rows, false);
}

#[divan::bench(args = [1, 8, 32, 64], sample_count = 9, sample_size = 1)]
fn medium_deterministic(bencher: Bencher<'_, '_>, rows: u32) {
    decode(bencher, medium(), rows, true);
}

/// Returns the configuration of a model as small as that of the built-in task.
fn small() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen3,
        vocab_size: 40,
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
        max_position_embeddings: 1024,
        initializer_range: 0.02,
        eos_token_ids: vec![39],
        bos_token_id: None,
        pad_token_id: None,
    }
}

fn medium() -> ModelConfig {
    ModelConfig {
        family: Family::Qwen2,
        vocab_size: 512,
        hidden_size: 256,
        intermediate_size: 768,
        layers: 4,
        kv_heads: 2,
        head_dim: 64,
        attention_bias: true,
        ..small()
    }
}

/// Generates samples of one prompt, as for a group; all responses have the same number of tokens.
fn decode(bencher: Bencher<'_, '_>, model: ModelConfig, rows: u32, deterministic: bool) {
    let (mut engine, woken) = engine(&model, deterministic);
    let mut step = 0;
    bencher.counter(ItemsCount::new(rows * NEW)).bench_local(|| {
        step += 1;
        engine.generate(Request {
            step: Step(step),
            prompt: PromptId(0),
            samples: 0..rows,
            prompt_ids: (0..PROMPT).map(|at| at % 39).collect(),
            resumed: Vec::new(),
        });
        let mut left = rows;
        while left > 0 {
            match engine.poll() {
                Some(RolloutEvent::Completed(_)) => left -= 1,
                Some(RolloutEvent::Failed(error)) => panic!("{error}"),
                None => woken.recv().unwrap(),
            }
        }
    });
}

fn engine(model: &ModelConfig, deterministic: bool) -> (TorchEngine, Receiver<()>) {
    let config = TorchEngineConfig {
        instances: 1,
        threads_per_instance: 1,
        max_running: 64,
        kv_cache_tokens: 1 << 20,
        dtype: Precision::Float32,
        sampling: Sampling { min_new_tokens: NEW, ..Sampling::unrestricted(NEW) },
        seed: 0,
        replay: None,
        deterministic,
    };
    let mut engine = TorchEngine::start(
        config,
        Decoder::init(model.clone(), 0, Device::Cpu).unwrap(),
        WeightStore::new(1),
        Arc::new(|_: &[i32]| String::new()),
        Arc::new(WallClock::start()),
    )
    .unwrap();
    let (wake, woken) = channel();
    engine.wake_by(Arc::new(move || {
        let _gone = wake.send(());
    }));
    (engine, woken)
}
