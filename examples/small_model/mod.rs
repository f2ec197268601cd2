//! A model with random weights, small enough to train in seconds.

use std::path::Path;

use rollpacker::datasets::generate;
use rollpacker::stages::model::{Family, ModelConfig, Rope, Tokenizer};
use rollpacker::stages::torch::model::Decoder;

/// Writes a model of `layers` layers with random weights for the characters of the built-in task.
pub(crate) fn save(folder: &Path, layers: i64) -> anyhow::Result<()> {
    let tokenizer = Tokenizer::characters(generate::ALPHABET)?;
    let config = ModelConfig {
        family: Family::Qwen3,
        vocab_size: i64::try_from(tokenizer.vocab_size())?,
        hidden_size: 32,
        intermediate_size: 64,
        layers,
        heads: 2,
        kv_heads: 1,
        head_dim: 16,
        rms_norm_eps: 1e-6,
        rope: Rope::Default { theta: 10_000.0 },
        tie_word_embeddings: true,
        attention_bias: false,
        max_position_embeddings: 1024,
        initializer_range: 0.02,
        eos_token_ids: tokenizer.token_to_id("<|eos|>").into_iter().collect(),
        bos_token_id: None,
        pad_token_id: None,
    };
    Decoder::init(config, 1, tch::Device::Cpu)?.save(folder)?;
    Ok(tokenizer.save(folder)?)
}
