use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::step::PromptId;
use rollpacker_model::ModelConfig;
use tch::{Device, Kind};

use super::super::sampling::{RandomStream, Sampling};
use super::*;
use crate::model::Decoder;
use crate::model::network::Attend;

#[test]
fn packs_hold_every_prefix_once_and_no_more_than_fits() {
    let prefix = |length: usize| Prefix { tokens: vec![1; length], row: 0 };
    let lengths = |lengths: &[usize]| {
        let prefixes: Vec<Prefix> = lengths.iter().map(|length| prefix(*length)).collect();
        packs(&prefixes, 100).iter().map(|pack| pack.len()).collect::<Vec<_>>()
    };
    assert_eq!(lengths(&[]), [] as [usize; 0]);
    assert_eq!(lengths(&[50, 40, 10, 1]), [3, 1]);
    assert_eq!(lengths(&[120, 1, 120]), [1, 1, 1]);
}

fn generator() -> Generator<Decoder> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/qwen2_tied");
    let config = ModelConfig::from_folder(folder.as_ref()).unwrap();
    let decoder = Decoder::init(config, 3, Device::Cpu).unwrap();
    let capacity = Capacity { max_running: 8, kv_cache_tokens: 1000, token_limit: 100 };
    Generator::new(decoder, capacity).unwrap()
}

fn sequence(prompt: u64, sampling: Sampling) -> Sequence {
    let id = SampleId { prompt: PromptId(prompt), ..SampleId::default() };
    let prompt_ids: Arc<[i32]> = (0..5 + prompt as i32).map(|at| 11 * at % 250).collect();
    Sequence::new(id, prompt_ids, sampling, RandomStream::new(1, id))
}

/// Returns the tokens of every sequence by its prompt, and its finish reason.
fn run(sequences: Vec<Sequence>) -> BTreeMap<u64, (Vec<i32>, FinishReason)> {
    let _no_grad = tch::no_grad_guard();
    let mut generator = generator();
    sequences.into_iter().for_each(|sequence| generator.push(sequence));
    let mut all = BTreeMap::new();
    while !generator.is_idle() {
        generator.admit_and_prefill(Nanos(0), usize::MAX).unwrap();
        let sampled = generator.decode().unwrap();
        all.extend(generator.append_tokens(sampled).unwrap().into_iter().map(|ended| {
            let tokens = ended.sequence.response_ids().to_vec();
            (ended.sequence.id.prompt.0, (tokens, ended.reason))
        }));
    }
    all
}

#[test]
fn each_row_of_a_mixed_batch_is_sampled_as_if_alone() {
    let cold = Sampling { temperature: 0.3, ..Sampling::unrestricted(20) };
    let of = |prompt: u64| match prompt % 5 {
        0 => Sampling::greedy(30),
        1 => Sampling::unrestricted(9),
        2 => Sampling { top_k: 5, ..Sampling::unrestricted(20) },
        3 => Sampling { top_p: 0.5, min_new_tokens: 12, ..Sampling::unrestricted(12) },
        _ => cold,
    };
    let mixed = run((0..10).map(|prompt| sequence(prompt, of(prompt))).collect());
    assert_eq!(mixed.len(), 10);
    assert!(mixed[&1].0.len() <= 9 && mixed[&3].0.len() == 12);
    for (prompt, found) in &mixed {
        assert_eq!(run(vec![sequence(*prompt, of(*prompt))])[prompt], *found, "{prompt}");
    }
    let other = run(vec![sequence(2, cold)]);
    assert_ne!(other[&2], mixed[&2], "the options matter");
}

#[test]
fn a_removed_sequence_frees_its_row() {
    let _no_grad = tch::no_grad_guard();
    let mut generator = generator();
    let endless = Sampling { min_new_tokens: 50, ..Sampling::unrestricted(50) };
    (0..9).for_each(|prompt| generator.push(sequence(prompt, endless)));
    generator.admit_and_prefill(Nanos(0), usize::MAX).unwrap();
    assert_eq!((generator.running().len(), generator.waiting_tokens()), (8, 13));
    assert!(!generator.has_room_for(1));
    let removed = generator.remove(sequence(3, endless).id).unwrap();
    assert_eq!(removed.map(|sequence| sequence.id.prompt), Some(PromptId(3)));
    generator.admit_and_prefill(Nanos(0), usize::MAX).unwrap();
    assert_eq!((generator.running().len(), generator.waiting_tokens()), (8, 0));
}

#[test]
fn taken_up_sequences_fit_the_token_limit() {
    let _no_grad = tch::no_grad_guard();
    let mut generator = generator();
    // The sequences have 5, 6 and 7 tokens. The last token of each is decoded, not prefilled.
    (0..3).for_each(|prompt| generator.push(sequence(prompt, Sampling::greedy(9))));
    assert_eq!(generator.admit_and_prefill(Nanos(0), 4).unwrap(), AdmissionWork::default());
    assert_eq!(generator.admit_and_prefill(Nanos(0), 11).unwrap().prefilled, 4 + 5);
    assert_eq!(generator.waiting_tokens(), 7);
}

/// A network that computes nothing. Its KV cache takes 16 KiB per token.
struct Idle(ModelConfig);

impl Network for Idle {
    fn config(&self) -> &ModelConfig {
        &self.0
    }

    fn device(&self) -> Device {
        Device::Cpu
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        _positions: &Tensor,
        _attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        Tensor::f_zeros([ids.size1()?, 1], (Kind::Float, Device::Cpu))
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        Tensor::f_zeros([hidden.size2()?.0, 4], (Kind::Float, Device::Cpu))
    }
}

fn idle() -> Idle {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models/qwen2_tied");
    let small = ModelConfig::from_folder(folder.as_ref()).unwrap();
    Idle(ModelConfig {
        layers: 8,
        heads: 8,
        kv_heads: 4,
        head_dim: 64,
        vocab_size: 4,
        eos_token_ids: vec![3],
        ..small
    })
}

#[test]
fn the_cache_of_a_long_tail_follows_its_tokens() {
    let capacity = Capacity { max_running: 64, kv_cache_tokens: 1 << 18, token_limit: 2048 };
    let mut generator = Generator::new(idle(), capacity).unwrap();
    for prompt in 0..64 {
        let length = if prompt == 17 { 1900 } else { 32 };
        let id = SampleId { prompt: PromptId(prompt), ..SampleId::default() };
        let (sampling, stream) = (Sampling::unrestricted(2000), RandomStream::new(1, id));
        let prompt_ids: Arc<[i32]> = vec![prompt as i32; 32].into();
        let sequence = Sequence::new(id, prompt_ids, sampling, stream);
        generator.push(sequence.with_forced_length(Some(length)));
    }
    let of_token = 8 * 2 * 4 * 64 * size_of::<f32>();
    let (mut peak, mut held) = (0, 0);
    while !generator.is_idle() {
        generator.admit_and_prefill(Nanos(0), usize::MAX).unwrap();
        peak = peak.max(generator.cache.bytes());
        held = held.max(generator.running().map(Sequence::tokens).sum());
        let sampled = generator.decode().unwrap();
        generator.append_tokens(sampled).unwrap();
    }
    let chunk = 4 << 20;
    assert_eq!(held, 64 * 63);
    assert!(peak <= held * of_token + 2 * chunk, "{} MiB", peak >> 20);
    assert!(generator.cache.bytes() <= chunk, "the memory is given back");
}
