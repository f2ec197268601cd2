//! Tests of supervised fine-tuning: the order of examples, learning, and errors.

use rollpacker_model::{Family, ModelConfig, Rope};
use rollpacker_stages::train::learning_rate::{Decay, LearningRate};
use tch::Device;

use super::*;

const EOS: i32 = 11;

fn decoder() -> Decoder {
    let config = ModelConfig {
        family: Family::Llama,
        vocab_size: 12,
        hidden_size: 32,
        intermediate_size: 64,
        layers: 1,
        heads: 2,
        kv_heads: 2,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 1e4 },
        tie_word_embeddings: false,
        attention_bias: false,
        max_position_embeddings: 64,
        initializer_range: 0.1,
        eos_token_ids: vec![EOS],
        bos_token_id: None,
        pad_token_id: None,
    };
    Decoder::init(config, 3, Device::Cpu).unwrap()
}

/// Returns ten examples. The response to the prompt `d 10` is `d d+1 EOS` for even `d` and `d EOS` for odd `d`.
fn examples() -> Vec<Example> {
    let answer = |d: i32| if d % 2 == 0 { vec![d, (d + 1) % 10, EOS] } else { vec![d, EOS] };
    (0..10).map(|d| Example { prompt_ids: vec![d, 10], response_ids: answer(d) }).collect()
}

fn config(steps: u64, seed: u64, micro_batch_tokens: usize) -> SftConfig {
    let learning_rate = LearningRate { peak: 1e-2, warmup_steps: 5, decay: Decay::Constant };
    let optimizer = OptimizerConfig { learning_rate, ..OptimizerConfig::default() };
    SftConfig { optimizer, steps, batch_size: 4, seed, micro_batch_tokens, threads: 1 }
}

fn losses(config: &SftConfig) -> Vec<f64> {
    let mut losses = Vec::new();
    fine_tune(&mut decoder(), &examples(), config, &mut |step| losses.push(step.loss)).unwrap();
    losses
}

#[test]
fn learns_the_task() {
    let losses = losses(&config(120, 0, 4096));
    assert_eq!(losses.len(), 120);
    assert!((losses[0] - 12f64.ln()).abs() < 0.5, "{}", losses[0]);
    assert!(losses[119] < 0.05, "{}", losses[119]);
}

#[test]
fn the_seed_decides_the_order_and_micro_batches_decide_nothing() {
    let whole = losses(&config(8, 1, 4096));
    assert_eq!(whole, losses(&config(8, 1, 4096)));
    assert_ne!(whole, losses(&config(8, 2, 4096)));
    for (a, b) in whole.iter().zip(losses(&config(8, 1, 5))) {
        assert!((a - b).abs() < 1e-4, "{a}, in pieces {b}");
    }
}

#[test]
fn an_epoch_visits_every_example_once() {
    let mut order = ExampleOrder::new(7, 5);
    let epochs: Vec<Vec<usize>> = (0..3).map(|_| order.by_ref().take(7).collect()).collect();
    for epoch in &epochs {
        let mut sorted = epoch.clone();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..7).collect::<Vec<_>>());
    }
    assert!(epochs[0] != epochs[1] || epochs[1] != epochs[2]);
}

#[test]
fn refusals_name_what_is_wrong() {
    let refusal = |examples: &[Example]| {
        fine_tune(&mut decoder(), examples, &config(1, 0, 8), &mut |_| {}).unwrap_err().to_string()
    };
    assert_eq!(refusal(&[]), "no example has a response");
    let promptless = Example { prompt_ids: vec![], response_ids: vec![1] };
    assert_eq!(
        refusal(&[promptless]),
        "sequence 0: `prompt_ids` has 0 entries, expected at least 1"
    );
}
