//! Tokens per second of a decoder with streamed layers against a resident one. The model has 12 layers of 17 MB in float32, of which the
//! budget holds four. One thread computes, and with prefetch another one reads ahead.
//!
//! In the group `from_memory` the file is in the page cache, so a read is a copy. In `from_disk` it is evicted from the cache before each
//! pass, as for a model larger than the machine's memory. The time to compute grows with the number of tokens, and the time to read does
//! not. `resident` measures the time to compute; `without` takes longer by the time to read nine layers. Prefetching gains most where the
//! two times are equal, and only if a core is free to read.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_torch::model::device::set_threads_of_this_thread;
use rollpacker_torch::model::streamed::{Demand, MemoryBudget, MemoryNeed};
use rollpacker_torch::model::{Decoder, StreamedDecoder};
use tch::{Device, Kind, Tensor};

static FOLDER: OnceLock<PathBuf> = OnceLock::new();

fn main() {
    let folder = tempfile::tempdir().unwrap();
    Decoder::init(config(), 0, Device::Cpu).unwrap().save(folder.path()).unwrap();
    // Pages that are not on the disk yet cannot be evicted from the page cache.
    File::open(folder.path().join("model.safetensors")).unwrap().sync_all().unwrap();
    FOLDER.set(folder.path().to_owned()).unwrap();
    divan::main();
}

fn folder() -> &'static Path {
    FOLDER.get().unwrap()
}

/// Returns the configuration of a model with 50 million parameters.
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

/// The source from which a pass reads the weights.
#[derive(Clone, Copy)]
enum From {
    Memory,
    Disk,
}

impl From {
    /// Evicts the file from the page cache if it is to be read from disk.
    fn prepare(self) {
        if matches!(self, Self::Disk) {
            let file = format!("if={}", folder().join("model.safetensors").display());
            let dd = Command::new("dd")
                .args([&file, "iflag=nocache", "count=0", "status=none"])
                .status();
            assert!(dd.unwrap().success());
        }
    }
}

/// Measures a pass of `tokens` tokens in sequences of 16.
fn measure<D>(
    bencher: Bencher<'_, '_>,
    tokens: i64,
    from: From,
    mut decoder: D,
    mut forward: impl FnMut(&mut D, &Tensor, &[i64]) -> Tensor,
) {
    set_threads_of_this_thread(1);
    let ids = Tensor::arange(tokens, (Kind::Int64, Device::Cpu)).remainder(512);
    let lengths = vec![16; tokens as usize / 16];
    bencher
        .counter(ItemsCount::new(tokens as u64))
        .with_inputs(|| from.prepare())
        .bench_local_values(|()| tch::no_grad(|| forward(&mut decoder, &ids, &lengths)));
}

/// Measures a streamed decoder. With prefetch, two layers are resident and ten pass through two buffers; without, three are resident and
/// nine pass through one buffer.
fn streamed(bencher: Bencher<'_, '_>, tokens: i64, from: From, prefetch: bool) {
    let demand = Demand { cached: 0, pass: tokens as u64, rows: 0 };
    let unlimited = MemoryBudget { bytes: u64::MAX, prefetch };
    let bytes = MemoryNeed::of(&config(), unlimited, demand).with_layers(4);
    let budget = MemoryBudget { bytes, prefetch };
    let decoder = StreamedDecoder::open(folder(), Device::Cpu, budget, demand).unwrap();
    measure(bencher, tokens, from, decoder, |decoder, ids, lengths| {
        decoder.forward_packed(ids, lengths).unwrap()
    });
}

#[divan::bench(args = [16, 64, 256], sample_count = 20, sample_size = 1)]
fn resident(bencher: Bencher<'_, '_>, tokens: i64) {
    let decoder = Decoder::load(folder(), Device::Cpu).unwrap();
    measure(bencher, tokens, From::Memory, decoder, |decoder, ids, lengths| {
        decoder.forward_packed(ids, lengths).unwrap()
    });
}

#[divan::bench_group(sample_count = 20, sample_size = 1)]
mod from_memory {
    use super::{Bencher, From, streamed};

    #[divan::bench(args = [16, 64, 256])]
    fn with_prefetch(bencher: Bencher<'_, '_>, tokens: i64) {
        streamed(bencher, tokens, From::Memory, true);
    }

    #[divan::bench(args = [16, 64, 256])]
    fn without(bencher: Bencher<'_, '_>, tokens: i64) {
        streamed(bencher, tokens, From::Memory, false);
    }
}

#[divan::bench_group(sample_count = 20, sample_size = 1)]
mod from_disk {
    use super::{Bencher, From, streamed};

    #[divan::bench(args = [16, 64, 256])]
    fn with_prefetch(bencher: Bencher<'_, '_>, tokens: i64) {
        streamed(bencher, tokens, From::Disk, true);
    }

    #[divan::bench(args = [16, 64, 256])]
    fn without(bencher: Bencher<'_, '_>, tokens: i64) {
        streamed(bencher, tokens, From::Disk, false);
    }
}
