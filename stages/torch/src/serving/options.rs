//! The options of an engine for servers, and the errors of starting one.

use std::sync::Arc;

use rollpacker_model::ModelConfig;
use rollpacker_stages::serving::ServingLimits;

use crate::model::TorchError;

/// The options of a [`TorchServing`](super::TorchServing).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TorchServingConfig {
    /// Number of instances, each on its own thread; at least 1.
    pub instances: usize,
    /// Number of threads that compute an instance; at least 1.
    pub threads_per_instance: usize,
    /// Maximum number of responses that an instance runs at once; at least 1. (vLLM: `--max-num-seqs`)
    pub max_running: usize,
    /// Maximum number of tokens, prompts included, that the running responses of an instance hold in the KV cache together, rounded up to a
    /// multiple of 16. At least 2. Responses beyond this limit are preempted and computed again.
    pub kv_cache_tokens: usize,
    /// Maximum number of tokens of a prompt and its response together. At least 2, and at most the smaller of the model's positions and
    /// `kv_cache_tokens`. `None` selects this upper bound. (vLLM: `--max-model-len`)
    pub context: Option<usize>,
    /// Seed of the responses to requests that have no seed.
    pub seed: u64,
    /// The label of the weights until the first call of `ServingEngine::set_label`.
    pub label: Arc<str>,
}

/// The reason why an engine for servers cannot start.
#[derive(Debug, thiserror::Error)]
pub enum TorchServingError {
    /// An option is out of bounds.
    #[error("option `{option}`: expected {expected}, found {found}")]
    Option {
        /// The name of the option on the command line, with underscores.
        option: &'static str,
        /// The allowed values.
        expected: String,
        /// The configured value.
        found: usize,
    },
    /// The model cannot be loaded, or a libtorch operation failed while an instance was set up.
    #[error(transparent)]
    Model(#[from] TorchError),
    /// The system cannot create a thread.
    #[error("cannot start the thread of instance {instance}: {error}")]
    Thread {
        /// The number of the instance, from 0.
        instance: usize,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The system cannot create the thread that reads weights.
    #[error("cannot start the thread that loads weights: {0}")]
    LoadThread(std::io::Error),
}

impl TorchServingConfig {
    /// Checks the options and returns the limits of the engine.
    pub(super) fn limits(&self, model: &ModelConfig) -> Result<ServingLimits, TorchServingError> {
        let minimums = [
            ("instances", self.instances, 1),
            ("threads", self.threads_per_instance, 1),
            ("max_num_seqs", self.max_running, 1),
            ("kv_cache_tokens", self.kv_cache_tokens, 2),
        ];
        if let Some((option, found, min)) = minimums.into_iter().find(|(_, found, min)| found < min)
        {
            let expected = format!("at least {min}");
            return Err(TorchServingError::Option { option, expected, found });
        }
        let positions = usize::try_from(model.max_position_embeddings).unwrap_or(0);
        let max = positions.min(self.kv_cache_tokens);
        let context = self.context.unwrap_or(max);
        if !(2..=max).contains(&context) {
            let expected = format!(
                "2 to {max}, the smaller of kv_cache_tokens and the positions of the model"
            );
            return Err(TorchServingError::Option {
                option: "max_model_len",
                expected,
                found: context,
            });
        }
        Ok(ServingLimits {
            context,
            vocab_size: usize::try_from(model.vocab_size).unwrap_or(0),
            max_running: self.max_running * self.instances,
            eos_token_ids: model.eos_token_ids.clone(),
            kv_cache_tokens: self.kv_cache_tokens * self.instances,
        })
    }
}
