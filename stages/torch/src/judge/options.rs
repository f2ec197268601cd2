//! The options of an in-process judge.

use std::path::PathBuf;

use rollpacker_model::ModelConfig;
use rollpacker_stages::catalog::{CatalogError, Options};
use rollpacker_stages::device::DeviceChoice;
use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use crate::rollout::generator::Capacity;

const MAX_THREADS: usize = 1024;
const MAX_RUNNING: usize = 1 << 31;
/// The largest allowed value of `kv_cache_tokens` and `guest_tokens`.
const MAX_TOKENS: usize = 1 << 40;

/// The options of an in-process judge (`engine = "torch"`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TorchChatOptions {
    /// A folder in Hugging Face format with the model, its tokenizer and chat template. Required. Rewards with the same folder share one
    /// model, so their other options must be equal.
    pub model_path: PathBuf,
    /// The device that holds the weights and computes the answers: `auto` (default; the first CUDA device if there is one, otherwise the
    /// CPU), `cpu`, `cuda` (the first CUDA device) or `cuda:INDEX`.
    pub device: DeviceChoice,
    /// Number of threads that a torch operation uses on the judge's own thread, 1 to 1024; 1 by default.
    pub threads: usize,
    /// Maximum memory on `device` for the weights, the reading buffers, and the KV cache and activations of the answers in flight (see
    /// `kv_cache_tokens`), in bytes or as a text such as `1.5GiB`. Layers that do not fit are read from the files in every forward pass,
    /// while the layers before them compute. A budget that is too small for any layout is refused; the error names the minimum. Without a
    /// budget, the whole model is held in memory.
    pub memory_budget: Option<Bytes>,
    /// Maximum number of answers that the judge's own thread generates concurrently, 1 to 2^31; 8 by default. A colocated model may
    /// generate as many on each instance.
    pub max_running: usize,
    /// Maximum number of tokens that these answers may hold in the KV cache together, including prompts; 1 to 2^40, 16384 by default. Must
    /// exceed the `max_tokens` of the reward. Answers beyond this limit are preempted and computed again. Each instance that runs a
    /// colocated model has a KV cache of its own.
    pub kv_cache_tokens: usize,
    /// `true` to run the model on the actor's engine instances while there are any; `false` by default. With `memory_budget`, it runs on
    /// one instance only.
    pub colocated: bool,
    /// Number of tokens that the model may process on an instance after each iteration of the actor, 1 to 2^40; 256 by default. A longer
    /// prompt waits until it fits into the tokens of several iterations. Requires `colocated`.
    pub guest_tokens: Option<usize>,
}

impl Default for TorchChatOptions {
    fn default() -> Self {
        Self {
            model_path: PathBuf::new(),
            device: DeviceChoice::Auto,
            threads: 1,
            memory_budget: None,
            max_running: 8,
            kv_cache_tokens: 16_384,
            colocated: false,
            guest_tokens: None,
        }
    }
}

impl TorchChatOptions {
    /// Checks that `model_path` is not empty, that the numbers are in range, and that `guest_tokens` is set only with `colocated`.
    pub(super) fn check(&self) -> Result<(), CatalogError> {
        if self.model_path.as_os_str().is_empty() {
            let expected = "a folder in Hugging Face format";
            return Err(CatalogError::out_of_range("model_path", expected, "nothing"));
        }
        let bounds = [
            ("threads", Some(self.threads), MAX_THREADS),
            ("max_running", Some(self.max_running), MAX_RUNNING),
            ("kv_cache_tokens", Some(self.kv_cache_tokens), MAX_TOKENS),
            ("guest_tokens", self.guest_tokens, MAX_TOKENS),
        ];
        for (key, value, max) in bounds {
            if let Some(found) = value.filter(|value| !(1..=max).contains(value)) {
                let expected = if found == 0 { "at least 1" } else { &format!("at most {max}") };
                return Err(CatalogError::out_of_range(key, expected, found));
            }
        }
        match self.guest_tokens {
            Some(found) if !self.colocated => {
                Err(CatalogError::out_of_range("guest_tokens", "`colocated = true` as well", found))
            }
            _ => Ok(()),
        }
    }

    /// Checks that the options other than `model_path` agree with `other`, with which the same folder is already in use.
    pub(super) fn agree_with(&self, other: &Self) -> Result<(), CatalogError> {
        let table = |options: &Self| match serde_json::to_value(options) {
            Ok(serde_json::Value::Object(table)) => table,
            _ => Options::new(),
        };
        let (own, theirs) = (table(self), table(other));
        let differs = |(key, value): &(&String, &serde_json::Value)| {
            *key != "model_path" && theirs.get(key.as_str()) != Some(*value)
        };
        match own.iter().find(differs) {
            None => Ok(()),
            Some((key, found)) => {
                let theirs = theirs.get(key).cloned().unwrap_or_default();
                let expected =
                    format!("{theirs}, the value that another judge of the same model uses");
                Err(CatalogError::out_of_range(key, &expected, found))
            }
        }
    }

    pub(super) fn capacity(&self, model: &ModelConfig) -> Capacity {
        let positions = usize::try_from(model.max_position_embeddings).unwrap_or(0);
        Capacity {
            max_running: self.max_running,
            kv_cache_tokens: self.kv_cache_tokens,
            token_limit: positions.min(self.kv_cache_tokens),
        }
    }

    /// Returns the number of tokens that the model may process on an instance after each iteration of the actor.
    pub(super) fn share(&self) -> usize {
        self.guest_tokens.unwrap_or(256)
    }
}
