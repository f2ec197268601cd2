//! The delivery of weights to servers, in a folder for each policy version.

mod folder;

use std::path::Path;

use rollpacker_stages::rollout::Policy;

pub use self::folder::{WeightError, WeightFolder, WeightRoot};

/// Finds the weights that a trainer published.
pub trait WeightSource: Send {
    /// Returns a handle to the weights of `policy`. The handle stays valid after the trainer has published later weights.
    ///
    /// # Errors
    /// Returns the cause if the trainer no longer holds the weights.
    fn find(&self, policy: &Policy) -> Result<Box<dyn PublishedWeights>, String>;
}

/// Returns the salt of a policy's KV cache. Policies of different versions or digests have different salts.
pub(crate) fn salt(policy: &Policy) -> String {
    format!("{}-{:016x}", policy.version, policy.digest)
}

/// The weights of a policy. The methods may take long: a [`ServersEngine`](crate::engine::ServersEngine) calls them on threads for blocking
/// work. [`probe`](crate::probe::probe) calls them in its own future, whose thread they block.
pub trait PublishedWeights: Send {
    /// Writes the weights to `model.safetensors` in `folder`, with the tensor names of Hugging Face. The folder exists and already has the
    /// other files of the model.
    ///
    /// # Errors
    /// Returns the cause if the file cannot be written.
    fn write(&self, folder: &Path) -> Result<(), String>;

    /// Returns the log-probability, in nats at temperature 1, of each of `tokens` after the first, given the tokens before it.
    ///
    /// # Errors
    /// Returns the cause if the forward pass fails.
    fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;
}
