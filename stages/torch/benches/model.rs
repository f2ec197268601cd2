//! Tokens per second of the decoder: packed forward and backward passes over sequences with long-tailed lengths, on one thread.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use divan::Bencher;
use divan::counter::ItemsCount;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, LogNormal, Uniform};
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_torch::model::Decoder;
use rollpacker_torch::model::device::set_threads_of_this_thread;
use tch::{Device, Kind, Tensor};

fn main() {
    divan::main();
}

/// Returns the configuration of a model with 3.3 million parameters.
fn small_qwen2() -> ModelConfig {
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
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: true,
        max_position_embeddings: 1024,
        initializer_range: 0.02,
        eos_token_ids: vec![1],
        bos_token_id: None,
        pad_token_id: Some(0),
    }
}

/// Returns the lengths of 128 sequences, each a prompt of 32 tokens and a response of log-normal length (median 40, sigma 1, at most 256).
fn lengths() -> Vec<i64> {
    let tail = LogNormal::new(40_f64.ln(), 1.0).unwrap();
    let responses = tail.sample_iter(ChaCha8Rng::seed_from_u64(1));
    responses.take(128).map(|length| 32 + length.ceil().min(256.0) as i64).collect()
}

fn ids(count: i64) -> Tensor {
    let ids = Uniform::new(0_i64, 512).unwrap().sample_iter(ChaCha8Rng::seed_from_u64(2));
    Tensor::from_slice(&ids.take(count as usize).collect::<Vec<_>>())
}

fn decoder(trainable: bool) -> Decoder {
    set_threads_of_this_thread(1);
    let mut decoder = Decoder::init(small_qwen2(), 0, Device::Cpu).unwrap();
    decoder.set_requires_grad(trainable);
    decoder
}

/// Runs micro-batches of `budget` tokens over all 128 sequences, as a trainer does.
#[divan::bench(args = [2048, 16384], sample_count = 3, sample_size = 1)]
fn forward_and_backward(bencher: Bencher<'_, '_>, budget: i64) {
    let decoder = decoder(true);
    let lengths = lengths();
    bencher.counter(ItemsCount::new(lengths.iter().sum::<i64>() as u64)).bench_local(|| {
        for pack in packs(&lengths, budget) {
            let ids = ids(pack.iter().sum());
            let hidden = decoder.forward_packed(&ids, &pack).unwrap();
            let loss = decoder.logits(&hidden).unwrap().cross_entropy_for_logits(&ids);
            loss.backward();
        }
    });
}

fn packs(lengths: &[i64], budget: i64) -> Vec<Vec<i64>> {
    let mut packs = vec![Vec::new()];
    for &length in lengths {
        let last = packs.last_mut().unwrap();
        if last.iter().sum::<i64>() + length > budget {
            packs.push(vec![length]);
        } else {
            last.push(length);
        }
    }
    packs
}

#[divan::bench(sample_count = 5, sample_size = 1)]
fn forward(bencher: Bencher<'_, '_>) {
    let decoder = decoder(false);
    let lengths = lengths();
    let ids = ids(lengths.iter().sum());
    bencher
        .counter(ItemsCount::new(ids.numel()))
        .bench_local(|| tch::no_grad(|| decoder.forward_packed(&ids, &lengths).unwrap()));
}

/// Runs a decode iteration without its attention: `rows` sequences with one token each.
#[divan::bench(args = [1, 16, 64], sample_count = 50)]
fn decode_without_attention(bencher: Bencher<'_, '_>, rows: i64) {
    let decoder = decoder(false);
    let (ids, positions) = (ids(rows), Tensor::full([rows], 100, (Kind::Int64, Device::Cpu)));
    bencher.counter(ItemsCount::new(rows as u64)).bench_local(|| {
        tch::no_grad(|| {
            let hidden =
                decoder.forward(&ids, &positions, &mut |_, q, _, _| q.f_flatten(1, -1)).unwrap();
            decoder.logits(&hidden).unwrap()
        })
    });
}
