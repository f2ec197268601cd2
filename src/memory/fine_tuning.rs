//! The memory of supervised fine-tuning.

use rollpacker_model::ModelConfig;
use rollpacker_torch::train::sft::{Example, SftConfig};

use super::model::{FLOAT_BYTES, activation_bytes_per_token, size, weight_bytes};
use super::part::{MemoryPart, setting};

/// Copies of the weights during the first update: the weights, their gradient, two moments, the flattened gradient, and the change.
const TRAINER_WEIGHT_COPIES: u64 = 6;

/// Bytes of an example of an update: two slices of tokens, and its entries in the order of the examples, in their numbers of tokens, and in
/// the plan of micro-batches.
const BYTES_PER_EXAMPLE: u64 = 56;

/// Returns the memory parts of fine-tuning a new model that do not depend on the data. `on_host` is `true` if the model is in main memory
/// and not on a GPU; only then are its weights, gradients and moments counted.
pub(crate) fn fine_tuning_parts(
    model: &ModelConfig,
    training: &SftConfig,
    on_host: bool,
) -> Vec<MemoryPart> {
    let batch = [setting("sft.batch_size", training.batch_size)];
    let factors = [training.batch_size as u64, BYTES_PER_EXAMPLE];
    let mut parts = vec![MemoryPart::new("the examples of an update", batch, factors)];
    if on_host {
        let settings = [
            setting("sft.num_hidden_layers", model.layers),
            setting("sft.hidden_size", model.hidden_size),
            setting("sft.intermediate_size", model.intermediate_size),
        ];
        let factors = [TRAINER_WEIGHT_COPIES, weight_bytes(model)];
        parts.push(MemoryPart::new("weights, gradients and moments", settings, factors));
    }
    parts
}

/// Returns a lower bound on the bytes of the activations of a micro-batch of `tokens` tokens.
pub(crate) fn min_activation_bytes(model: &ModelConfig, tokens: usize) -> u64 {
    (tokens as u64).saturating_mul(activation_bytes_per_token(model))
}

/// The inputs of the estimate of a micro-batch in a fine-tuning run.
pub(crate) struct MicroBatches<'a> {
    pub(crate) model: &'a ModelConfig,
    pub(crate) training: &'a SftConfig,
    pub(crate) examples: &'a [Example],
}

impl MicroBatches<'_> {
    /// Returns lower bounds on the activations and the logits of the largest micro-batch.
    pub(crate) fn parts(&self) -> [MemoryPart; 2] {
        let settings = || {
            [
                setting("sft.micro_batch_tokens", self.training.micro_batch_tokens),
                setting("sft.batch_size", self.training.batch_size),
            ]
        };
        let tokens = self.tokens();
        let activations = min_activation_bytes(self.model, tokens);
        let shortest = self.examples.iter().map(|example| example.response_ids.len()).min();
        let logits = [shortest.unwrap_or(0) as u64, size(self.model.vocab_size), FLOAT_BYTES];
        [
            MemoryPart::new("activations of a micro-batch", settings(), [activations]),
            MemoryPart::new("logits of a micro-batch", settings(), logits),
        ]
    }

    /// Returns a lower bound on the tokens of the largest micro-batch of an epoch. One micro-batch contains the longest example. A batch
    /// that fits into one micro-batch has at least the tokens of the `batch_size` shortest examples. A larger batch fills a micro-batch,
    /// which then has more tokens than the budget minus the longest example.
    fn tokens(&self) -> usize {
        let mut lengths: Vec<usize> = self.examples.iter().map(tokens).collect();
        lengths.sort_unstable();
        let longest = lengths.last().copied().unwrap_or(0);
        let batch_tokens: usize = lengths.iter().take(self.training.batch_size).sum();
        longest.max(batch_tokens.min(self.training.micro_batch_tokens.saturating_sub(longest)))
    }
}

/// Returns the number of tokens that the model processes: all but the last, which is only predicted.
fn tokens(example: &Example) -> usize {
    (example.prompt_ids.len() + example.response_ids.len()).saturating_sub(1)
}
