//! A streamed decoder stays within its memory budget. The memory is that of the whole process, which therefore does nothing else.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_torch::model::device::set_threads_of_this_thread;
use rollpacker_torch::model::streamed::{Demand, MemoryBudget};
use rollpacker_torch::model::{Decoder, StreamedDecoder};
use tch::{Device, Kind, Tensor};

const MEGABYTE: u64 = 1 << 20;
const BUDGET: u64 = 60 * MEGABYTE;
/// Allowance for memory other than weights, tokens and file buffers: the thread's stack, working memory of the matrix kernels, memory that
/// malloc does not return, names and offsets of the tensors.
const SLACK: u64 = 4 * MEGABYTE;
const TOKENS: i64 = 128;

/// Returns the configuration of a model with 17 MB per layer in float32: with 12 layers, about 200 MB.
fn config(layers: i64) -> ModelConfig {
    ModelConfig {
        family: Family::Llama,
        vocab_size: 1000,
        hidden_size: 512,
        intermediate_size: 2048,
        layers,
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

fn tensors(layers: i64) -> Vec<(String, Vec<usize>)> {
    let layer = |layer: i64| {
        let square =
            ["q", "k", "v", "o"].map(|name| (format!("self_attn.{name}_proj"), vec![512, 512]));
        let feed_forward = [("up", [2048, 512]), ("gate", [2048, 512]), ("down", [512, 2048])]
            .map(|(name, shape)| (format!("mlp.{name}_proj"), shape.to_vec()));
        let norms =
            ["input", "post_attention"].map(|name| (format!("{name}_layernorm"), vec![512]));
        let all = square.into_iter().chain(feed_forward).chain(norms);
        all.map(move |(name, shape)| (format!("model.layers.{layer}.{name}.weight"), shape))
    };
    let ends = [("model.embed_tokens.weight", vec![1000, 512]), ("model.norm.weight", vec![512])];
    let ends = ends.map(|(name, shape)| (name.to_owned(), shape));
    (0..layers).flat_map(layer).chain(ends).collect()
}

/// Writes the model piece by piece. Memory that is allocated and freed here would be reused by the decoder and hide its consumption.
fn write(folder: &Path, layers: i64) {
    config(layers).write(folder).unwrap();
    let tensors = tensors(layers);
    let (mut header, mut end) = (serde_json::Map::new(), 0);
    for (name, shape) in &tensors {
        let begin = end;
        end += 4 * shape.iter().product::<usize>();
        let info =
            serde_json::json!({ "dtype": "F32", "shape": shape, "data_offsets": [begin, end] });
        header.insert(name.clone(), info);
    }
    let header = serde_json::Value::Object(header).to_string();
    let mut file = BufWriter::new(File::create(folder.join("model.safetensors")).unwrap());
    file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
    file.write_all(header.as_bytes()).unwrap();
    let mut state = 1_u32;
    for _ in 0..end / 4 {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        let uniform = (state >> 8) as f32 / (1 << 24) as f32;
        file.write_all(&((uniform - 0.5) * 0.1).to_le_bytes()).unwrap();
    }
    file.flush().unwrap();
}

/// Returns a value of `/proc/self/status`, in bytes.
fn status(key: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with(key)).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() * 1024
}

/// Returns the peak of resident memory during `work`, relative to the memory before.
fn growth<T>(work: impl FnOnce() -> T) -> (u64, T) {
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    let before = status("VmRSS");
    let result = work();
    (status("VmHWM") - before, result)
}

fn run(forward: &mut dyn FnMut(&Tensor, &[i64]) -> Tensor) -> Tensor {
    let ids = Tensor::arange(TOKENS, (Kind::Int64, Device::Cpu)) * 7;
    let _first = forward(&ids, &[TOKENS]);
    forward(&ids, &[TOKENS])
}

fn streamed(folder: &Path) -> (Tensor, u64, usize) {
    let demand = Demand { cached: 0, pass: TOKENS as u64, rows: TOKENS as u64 };
    let budget = MemoryBudget::of_bytes(BUDGET);
    let mut decoder = StreamedDecoder::open(folder, Device::Cpu, budget, demand).unwrap();
    let logits = run(&mut |ids, lengths| {
        let hidden = decoder.forward_packed(ids, lengths).unwrap();
        decoder.logits(&hidden).unwrap()
    });
    (logits, decoder.held_bytes(), decoder.residency().resident())
}

fn resident(folder: &Path) -> Tensor {
    let decoder = Decoder::load(folder, Device::Cpu).unwrap();
    run(&mut |ids, lengths| decoder.logits(&decoder.forward_packed(ids, lengths).unwrap()).unwrap())
}

#[test]
fn a_model_of_200_mb_runs_in_60_mb() {
    let _no_grad = tch::no_grad_guard();
    set_threads_of_this_thread(1);
    let (small, large) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    write(small.path(), 1);
    write(large.path(), 12);
    // A model of one layer loads kernels and libraries first, so that their memory is part of the starting value.
    let _warm = resident(small.path());
    let (taken, (logits, held, layers)) = growth(|| streamed(large.path()));
    assert_eq!(layers, 1);
    assert!(taken <= BUDGET + SLACK, "{taken} bytes, {held} of them weights");
    let (taken, expected) = growth(|| resident(large.path()));
    assert!(taken > 120 * MEGABYTE, "{taken} bytes are less than the weights: not measured");
    assert!(logits.equal(&expected));
}
