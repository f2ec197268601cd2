//! A toy language model whose weights are a number: servers sample from it, and the trainer scores with it.

use std::path::Path;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_servers::weights::{PublishedWeights, WeightSource};
use rollpacker_stages::rollout::Policy;

/// The end-of-sequence token.
pub(crate) const END: i32 = 1;

/// Returns the number in the `model.safetensors` of a version.
pub(crate) fn weights_of(version: u64) -> u64 {
    1000 + version
}

fn mix(values: impl IntoIterator<Item = u64>) -> u64 {
    values.into_iter().fold(0x9e37_79b9, |hash: u64, value| {
        let mixed = (hash ^ value).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 32)
    })
}

pub(crate) fn next(weights: u64, context: &[i32], draw: u64) -> i32 {
    let hash = mix(context.iter().map(|&id| id as u64).chain([weights, draw, 77]));
    if hash.is_multiple_of(40) { END } else { 2 + (hash % 60) as i32 }
}

pub(crate) fn logprob(weights: u64, context: &[i32], token: i32) -> f32 {
    let hash = mix(context.iter().map(|&id| id as u64).chain([weights, token as u64]));
    -0.05 - (hash % 2000) as f32 / 1000.0
}

/// Returns the log-probability of each of `tokens` after the first.
pub(crate) fn score(weights: u64, tokens: &[i32]) -> Vec<f32> {
    (1..tokens.len()).map(|at| logprob(weights, &tokens[..at], tokens[at])).collect()
}

/// A trainer that has published the weights of every version.
pub(crate) struct Trainer;

struct Toy(u64);

impl WeightSource for Trainer {
    fn find(&self, policy: &Policy) -> Result<Box<dyn PublishedWeights>, String> {
        Ok(Box::new(Toy(weights_of(policy.version.0))))
    }
}

impl PublishedWeights for Toy {
    fn write(&self, folder: &Path) -> Result<(), String> {
        std::fs::write(folder.join("model.safetensors"), self.0.to_string())
            .map_err(|error| error.to_string())
    }

    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String> {
        Ok(score(self.0, tokens))
    }
}

pub(crate) fn policy(version: u64) -> Policy {
    let digest = weights_of(version);
    Policy { version: PolicyVersion(version), location: format!("memory:v{version}"), digest }
}
