//! Weights on their way to servers: a folder per policy version.

mod folder;

use std::path::Path;

use rollpacker_stages::rollout::Policy;

pub use self::folder::{WeightError, WeightFolder, WeightRoot};

/// Finds the weights that a trainer published.
pub trait WeightSource: Send {
    /// Returns a handle to the weights of `policy`, which stays valid after the trainer has published later ones.
    ///
    /// # Errors
    /// The cause, if the trainer no longer holds the weights.
    fn find(&self, policy: &Policy) -> Result<Box<dyn PublishedWeights>, String>;
}

/// Returns the salt of a policy's KV cache: a text that differs between any two policies.
pub(crate) fn salt(policy: &Policy) -> String {
    format!("{}-{:016x}", policy.version, policy.digest)
}

/// The weights of a policy. Both methods run on threads for blocking work.
pub trait PublishedWeights: Send {
    /// Writes the weights to `model.safetensors` in `folder`, which exists, with the tensor names of Hugging Face. The other files of the
    /// model are in it already.
    ///
    /// # Errors
    /// The cause, if the file cannot be written.
    fn write(&self, folder: &Path) -> Result<(), String>;

    /// Returns the log-probability, in nats at temperature 1, of each of `tokens` after the first, given those before it.
    ///
    /// # Errors
    /// The cause, if the forward pass fails.
    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;
}
