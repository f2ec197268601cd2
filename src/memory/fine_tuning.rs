//! The memory of supervised fine-tuning.

use rollpacker_model::ModelConfig;
use rollpacker_torch::train::sft::{Example, SftConfig};

use super::model::{FLOAT, activations_of_token, size, weights};
use super::part::{MemoryPart, setting};

/// Copies of the weights during the first update: the weights, their gradient, two moments, the flattened gradient, and the change.
const OF_TRAINER: u64 = 6;

/// Bytes of an example of an update: two slices of tokens, and its entries in the order and in the plan.
const OF_EXAMPLE: u64 = 48;

/// Returns the parts of fine-tuning a model from scratch that do not depend on the data.
pub(crate) fn fine_tuning(
    model: &ModelConfig,
    training: &SftConfig,
    on_host: bool,
) -> Vec<MemoryPart> {
    let batch = [setting("sft.batch_size", training.batch_size)];
    let factors = [training.batch_size as u64, OF_EXAMPLE];
    let mut parts = vec![MemoryPart::new("the examples of an update", batch, factors)];
    if on_host {
        let settings = [
            setting("sft.num_hidden_layers", model.layers),
            setting("sft.hidden_size", model.hidden_size),
            setting("sft.intermediate_size", model.intermediate_size),
        ];
        let factors = [OF_TRAINER, weights(model)];
        parts.push(MemoryPart::new("weights, gradients and moments", settings, factors));
    }
    parts
}

/// Returns a lower bound on the bytes of a micro-batch of `tokens` tokens.
pub(crate) fn least_bytes_of_tokens(model: &ModelConfig, tokens: usize) -> u64 {
    (tokens as u64).saturating_mul(activations_of_token(model))
}

/// The micro-batches of a fine-tuning run.
pub(crate) struct Batches<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) training: &'a SftConfig,
    pub(crate) examples: &'a [Example],
}

impl Batches<'_> {
    /// Returns the activations and logits of the largest micro-batch.
    pub(crate) fn parts(&self) -> [MemoryPart; 2] {
        let settings = || {
            [
                setting("sft.micro_batch_tokens", self.training.micro_batch_tokens),
                setting("sft.batch_size", self.training.batch_size),
            ]
        };
        let tokens = self.tokens();
        let activations = least_bytes_of_tokens(self.model, tokens);
        let shortest = self.examples.iter().map(|example| example.response_ids.len()).min();
        let logits = [shortest.unwrap_or(0) as u64, size(self.model.vocab_size), FLOAT];
        [
            MemoryPart::new("activations of a micro-batch", settings(), [activations]),
            MemoryPart::new("logits of a micro-batch", settings(), logits),
        ]
    }

    /// Returns a number of tokens that the largest micro-batch of every epoch reaches: the longest example, or the part of the budget
    /// that any batch fills.
    fn tokens(&self) -> usize {
        let mut lengths: Vec<usize> = self.examples.iter().map(tokens).collect();
        lengths.sort_unstable();
        let longest = lengths.last().copied().unwrap_or(0);
        let met: usize = lengths.iter().take(self.training.batch_size).sum();
        longest.max(met.min(self.training.micro_batch_tokens.saturating_sub(longest)))
    }
}

/// Returns the number of tokens that the model processes: all but the last, which is only predicted.
fn tokens(example: &Example) -> usize {
    (example.prompt_ids.len() + example.response_ids.len()).saturating_sub(1)
}
