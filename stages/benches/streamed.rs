//! Tokens per second of a decoder whose layers are streamed, beside one that is resident: 12 layers of 17 MB in float32, of which a budget
//! holds four; one thread computes, and one reads ahead where there is prefetch.
//!
//! The files are in the page cache, so that a read is a copy. Compute of a layer is the longer at 256 tokens, its read at 16; at 64 they are
//! comparable.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_stages::model::device::set_threads_of_this_thread;
use rollpacker_stages::model::streamed::{Demand, MemoryBudget, Need};
use rollpacker_stages::model::{Decoder, Family, ModelConfig, Rope, StreamedDecoder};
use tch::{Device, Kind, Tensor};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fn main() {
    let folder = tempfile::tempdir().unwrap();
    Decoder::init(config(), 0, Device::Cpu).unwrap().save(folder.path()).unwrap();
    FOLDER.set(folder.path().to_owned()).unwrap();
    divan::main();
}

fn folder() -> &'static Path {
    FOLDER.get().unwrap()
}

/// 50 M parameters.
fn config() -> ModelConfig {
    ModelConfig {
        family: Family::Llama,
        vocab_size: 512,
        hidden_size: 512,
        intermediate_size: 2048,
        layers: 12,
        heads: 8,
        kv_heads: 8,
        head_dim: 64,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 1024,
        initializer_range: 0.02,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: None,
    }
}

/// A pass of `tokens` tokens in sequences of 16, and the logits of their last tokens.
fn measure<D>(
    bencher: Bencher<'_, '_>,
    tokens: i64,
    mut decoder: D,
    mut forward: impl FnMut(&mut D, &Tensor, &[i64]) -> Tensor,
) {
    set_threads_of_this_thread(1);
    let ids = Tensor::arange(tokens, (Kind::Int64, Device::Cpu)).remainder(512);
    let lengths = vec![16; tokens as usize / 16];
    bencher
        .counter(ItemsCount::new(tokens as u64))
        .bench_local(|| tch::no_grad(|| forward(&mut decoder, &ids, &lengths)));
}

fn streamed(bencher: Bencher<'_, '_>, tokens: i64, prefetch: bool) {
    let demand = Demand { cached: 0, pass: tokens as u64, rows: 0 };
    let unlimited = MemoryBudget { bytes: u64::MAX, prefetch };
    let bytes = Need::of(&config(), unlimited, demand).with_layers(4);
    let budget = MemoryBudget { bytes, prefetch };
    let decoder = StreamedDecoder::open(folder(), Device::Cpu, budget, demand).unwrap();
    measure(bencher, tokens, decoder, |decoder, ids, lengths| {
        decoder.forward_packed(ids, lengths).unwrap()
    });
}

#[divan::bench(args = [16, 64, 256], sample_count = 20, sample_size = 1)]
fn resident(bencher: Bencher<'_, '_>, tokens: i64) {
    let decoder = Decoder::load(folder(), Device::Cpu).unwrap();
    measure(bencher, tokens, decoder, |decoder, ids, lengths| {
        decoder.forward_packed(ids, lengths).unwrap()
    });
}

/// Two layers are resident, ten pass through two buffers.
#[divan::bench(args = [16, 64, 256], sample_count = 20, sample_size = 1)]
fn streamed_with_prefetch(bencher: Bencher<'_, '_>, tokens: i64) {
    streamed(bencher, tokens, true);
}

/// Three layers are resident, nine pass through one buffer.
#[divan::bench(args = [16, 64, 256], sample_count = 20, sample_size = 1)]
fn streamed_without_prefetch(bencher: Bencher<'_, '_>, tokens: i64) {
    streamed(bencher, tokens, false);
}
