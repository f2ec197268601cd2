//! What a torch engine is told, and why it may refuse to start.

use std::sync::Arc;

use tch::TchError;

use super::invariance::Variance;
use super::lengths::Lengths;
use super::sampling::Sampling;
use crate::model::{Decoder, ModelError};

/// Token ids of a response as text, special tokens left out: a tokenizer's `decode`, or nothing for models without one.
pub type Detokenize = Arc<dyn Fn(&[i32]) -> String + Send + Sync>;

/// The options of a [`TorchEngine`](super::torch::TorchEngine).
#[derive(Clone, Debug, PartialEq)]
pub struct TorchEngineConfig {
    /// Instances, each on a thread of its own; at least 1.
    pub instances: u32,
    /// Threads that the torch operations of an instance use; at least 1.
    pub threads_per_instance: usize,
    /// Responses that an instance runs at once; at least 1.
    pub max_running: usize,
    /// Tokens, prompts included, that the running responses of an instance may hold in the KV cache together. Beyond, responses are
    /// given up and computed again.
    pub kv_cache_tokens: usize,
    /// How tokens are drawn.
    pub sampling: Sampling,
    /// Seed of the random streams of all responses.
    pub seed: u64,
    /// Lengths to force on the responses.
    pub replay: Option<Lengths>,
    /// Tokens and log-probabilities of a response are the same to the bit in whatever company, order and instance it is generated, however
    /// often it is stopped, given up and resumed, and the engine races in [lockstep](super::lockstep).
    ///
    /// A [`load`](super::RolloutEngine::load) then waits, on each instance, until what was requested before it has ended there;
    /// [replayed](Self::replay) lengths go by [id](Lengths::of). Of one machine only: another kind of processor rounds in another way.
    ///
    /// The engine tries the kernels of the machine before it starts, which takes as long as a prompt of about 700 tokens. Then a single
    /// row generates at 0.6 of the speed, since it is padded; from 32 rows on no difference was seen.
    pub deterministic: bool,
}

/// Why an engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TorchEngineError {
    /// An option is out of its bounds.
    #[error("rollout option `{option}`: expected {expected}, found {found}")]
    Option {
        /// Its name.
        option: &'static str,
        /// The bounds.
        expected: String,
        /// Its value.
        found: String,
    },
    /// The model cannot be loaded.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The device has no room for what an instance needs.
    #[error("cannot set up a rollout engine instance: {0}")]
    Torch(#[from] TchError),
    /// The machine cannot generate deterministically.
    #[error("rollout option `deterministic`: {0}")]
    Variance(#[from] Variance),
    /// The system gives no thread.
    #[error("cannot start the thread of rollout engine instance {instance}: {source}")]
    Thread {
        /// Which instance.
        instance: u32,
        /// What the system said.
        source: std::io::Error,
    },
}

impl TorchEngineConfig {
    pub(super) fn check(&self) -> Result<(), TorchEngineError> {
        if let Some((option, expected, found)) = self.sampling.defect() {
            return Err(TorchEngineError::Option { option, expected: expected.to_owned(), found });
        }
        at_least_one("instances", self.instances as usize)?;
        at_least_one("threads_per_instance", self.threads_per_instance)?;
        at_least_one("max_running", self.max_running)
    }

    /// Tokens that a sequence may have: those of the model, or of the KV budget if it is smaller.
    pub(super) fn token_limit(&self, decoders: &[Decoder]) -> Result<usize, TorchEngineError> {
        let models = decoders
            .iter()
            .map(|decoder| usize::try_from(decoder.config().max_position_embeddings).unwrap_or(0));
        let limit = models.min().unwrap_or(0).min(self.kv_cache_tokens);
        let response = self.sampling.max_new_tokens as usize;
        if response < limit {
            return Ok(limit);
        }
        Err(TorchEngineError::Option {
            option: "max_new_tokens",
            expected: format!(
                "less than {limit}, the smaller of kv_cache_tokens and the positions of the model"
            ),
            found: response.to_string(),
        })
    }
}

fn at_least_one(option: &'static str, value: usize) -> Result<(), TorchEngineError> {
    match value {
        0 => Err(TorchEngineError::Option {
            option,
            expected: "at least 1".to_owned(),
            found: "0".to_owned(),
        }),
        _ => Ok(()),
    }
}
