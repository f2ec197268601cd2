//! What a judge's model runs on, as recipes say it.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::{ChatServer, ChatServerOptions, SharedChat};
use crate::catalog::{CatalogError, Options, read};
use crate::fields::fields;

/// The most threads of torch operations.
#[cfg(feature = "torch")]
const MOST_THREADS: usize = 1024;
/// The most answers at once.
#[cfg(feature = "torch")]
const MOST_RUNNING: usize = 1 << 31;
/// The most tokens of a cache or a turn.
#[cfg(feature = "torch")]
const MOST_TOKENS: usize = 1 << 40;

/// The option that names the engine.
const ENGINE: &str = "engine";

/// The options of a judge in process, `engine = "torch"`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TorchChatOptions {
    /// The model: a folder in Hugging Face format with tokenizer and chat template.
    pub model_path: PathBuf,
    /// Where it runs: `auto`, `cpu`, `cuda` or `cuda:INDEX`.
    pub device: String,
    /// Threads that its torch operations use on its own thread.
    pub threads: usize,
    /// Memory for weights and answers under way; layers that it has no room for are read from the files at every pass, while those before
    /// them compute. Without it the whole model is held in memory.
    pub memory_budget: Option<Bytes>,
    /// Answers that are generated at once.
    pub max_running: usize,
    /// Tokens, prompts included, that the answers under way may hold in the KV cache together. Beyond, answers are computed again.
    pub kv_cache_tokens: usize,
    /// Whether the actor's instances run it, where there are any.
    pub colocated: bool,
    /// Tokens that it may process on an instance beside an iteration of the actor, 256 by default; only if it is colocated.
    pub guest_tokens: Option<usize>,
}

impl Default for TorchChatOptions {
    fn default() -> Self {
        Self {
            model_path: PathBuf::new(),
            device: "auto".to_owned(),
            threads: 1,
            memory_budget: None,
            max_running: 8,
            kv_cache_tokens: 16_384,
            colocated: false,
            guest_tokens: None,
        }
    }
}

/// The chat models that the judges of a registry are made with.
#[derive(Clone, Default)]
pub(in crate::reward) struct Chats {
    #[cfg(feature = "torch")]
    models: super::torch::Models,
}

impl Chats {
    /// The model that the options of a judge name, those of its judgement taken out; `longest_answer` is in tokens.
    pub(super) fn make(
        &self,
        mut options: Options,
        longest_answer: u32,
    ) -> Result<SharedChat, CatalogError> {
        let engine = options.remove(ENGINE).unwrap_or_else(|| "server".into());
        match engine.as_str() {
            Some("server") => {
                refuse_those_of("torch", fields::<TorchChatOptions>(), &options)?;
                ChatServer::new(read(options)?).map(SharedChat::new)
            }
            Some("torch") => {
                refuse_those_of("server", fields::<ChatServerOptions>(), &options)?;
                self.torch(read(options)?, longest_answer)
            }
            _ => {
                let found = engine.as_str().map_or_else(|| engine.to_string(), str::to_owned);
                Err(CatalogError::bound(ENGINE, "`server` or `torch`", found))
            }
        }
    }

    #[cfg(feature = "torch")]
    fn torch(
        &self,
        options: TorchChatOptions,
        longest_answer: u32,
    ) -> Result<SharedChat, CatalogError> {
        let chat = self.models.open(options)?;
        let limit = chat.token_limit();
        if longest_answer == 0 || longest_answer as usize >= limit {
            let expected = format!(
                "1 to {}, of a context of {limit}, the lesser of the model's and `kv_cache_tokens`",
                limit.saturating_sub(1)
            );
            return Err(CatalogError::bound("max_tokens", &expected, longest_answer));
        }
        Ok(SharedChat::new(chat))
    }

    #[cfg(not(feature = "torch"))]
    fn torch(&self, _: TorchChatOptions, _: u32) -> Result<SharedChat, CatalogError> {
        let expected = "`server`, as this program was built without the feature `torch`";
        Err(CatalogError::bound(ENGINE, expected, "torch"))
    }

    #[cfg(feature = "torch")]
    pub(in crate::reward) fn guests(&self) -> crate::rollout::guests::Guests {
        self.models.guests()
    }
}

#[cfg(feature = "torch")]
impl TorchChatOptions {
    /// Refuses what is out of its bounds.
    pub(super) fn check(&self) -> Result<(), CatalogError> {
        if self.model_path.as_os_str().is_empty() {
            let expected = "a folder in Hugging Face format";
            return Err(CatalogError::bound("model_path", expected, "nothing"));
        }
        let bounds = [
            ("threads", Some(self.threads), MOST_THREADS),
            ("max_running", Some(self.max_running), MOST_RUNNING),
            ("kv_cache_tokens", Some(self.kv_cache_tokens), MOST_TOKENS),
            ("guest_tokens", self.guest_tokens, MOST_TOKENS),
        ];
        for (key, value, most) in bounds {
            if let Some(found) = value.filter(|value| !(1..=most).contains(value)) {
                let expected = if found == 0 { "at least 1" } else { &format!("at most {most}") };
                return Err(CatalogError::bound(key, expected, found));
            }
        }
        match self.guest_tokens {
            Some(found) if !self.colocated => {
                Err(CatalogError::bound("guest_tokens", "`colocated = true` beside it", found))
            }
            _ => Ok(()),
        }
    }

    /// Refuses options that differ from those with which the same folder is in use.
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
                let expected = format!("{theirs}, as another judge of the same model has it");
                Err(CatalogError::bound(key, &expected, found))
            }
        }
    }

    pub(super) fn capacity(
        &self,
        model: &crate::model::ModelConfig,
    ) -> crate::rollout::generator::Capacity {
        let positions = usize::try_from(model.max_position_embeddings).unwrap_or(0);
        crate::rollout::generator::Capacity {
            max_running: self.max_running,
            kv_cache_tokens: self.kv_cache_tokens,
            token_limit: positions.min(self.kv_cache_tokens),
        }
    }

    /// Tokens beside an iteration of the actor.
    pub(super) fn share(&self) -> usize {
        self.guest_tokens.unwrap_or(256)
    }
}

/// Refuses options of the other engine by name.
fn refuse_those_of(other: &str, keys: &[&str], options: &Options) -> Result<(), CatalogError> {
    match options.iter().find(|(key, _)| keys.contains(&key.as_str())) {
        Some((key, found)) => {
            let expected = format!("`engine = \"{other}\"` beside it");
            Err(CatalogError::bound(key, &expected, found))
        }
        None => Ok(()),
    }
}
