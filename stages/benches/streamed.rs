//! Tokens per second of a decoder whose layers are streamed, beside one that is resident: 12 layers of 17 MB in float32, of which a budget
//! holds four; one thread computes, and one reads ahead where there is prefetch.
//!
//! From memory the file is in the page cache, so that a read is a copy; from disk it is put out of the cache before each pass, as is a
//! model larger than the machine's memory. Compute grows with the tokens and reads do not: `resident` is the compute, and what `without`
//! takes beyond it are the reads of nine layers. Prefetch gains most where the two are equal, and only if a core is free to read.

#![allow(clippy::unwrap_used, reason = "a bench may panic")]

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Command;
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
    // What has not reached the disk stays in the page cache.
    File::open(folder.path().join("model.safetensors")).unwrap().sync_all().unwrap();
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

/// Where a pass finds the weights.
#[derive(Clone, Copy)]
enum From {
    Memory,
    Disk,
}

impl From {
    /// Puts the file out of the page cache if it is not to be there.
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

/// A pass of `tokens` tokens in sequences of 16.
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

/// Two layers are resident and ten pass through two buffers with prefetch; three and nine, through one, without.
fn streamed(bencher: Bencher<'_, '_>, tokens: i64, from: From, prefetch: bool) {
    let demand = Demand { cached: 0, pass: tokens as u64, rows: 0 };
    let unlimited = MemoryBudget { bytes: u64::MAX, prefetch };
    let bytes = Need::of(&config(), unlimited, demand).with_layers(4);
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
