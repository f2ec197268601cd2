//! Chat models, which judges query.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;

use serde::{Deserialize, Serialize};

use super::RewardError;
use crate::catalog::{CatalogError, Options};

/// One message of a chat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Message {
    /// The role of the speaker: `system`, `user`, `assistant`, ...
    pub role: String,
    /// The text of the message.
    pub content: String,
}

/// A chat model: a server, or a model in process.
///
/// # Contract
/// Called concurrently. The future is dropped when the answer is no longer needed, and must then leave nothing running. A truncated answer
/// is an error, because its end is not the one that the model would have produced.
pub trait Chat: Send + Sync + 'static {
    /// Returns the model's answer to `messages` as text without special tokens.
    fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> impl Future<Output = Result<String, RewardError>> + Send;
}

/// The sampling parameters of a judge's answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgeSampling {
    /// The temperature; 0 is greedy.
    pub temperature: f64,
    /// The maximum length of an answer in tokens.
    pub max_tokens: u32,
    /// The seed of the answer. The same messages and seed may produce equal answers; another seed gives a new sample.
    pub seed: u64,
}

/// Object-safe form of [`Chat`].
trait DynChat: Send + Sync + 'static {
    fn complete<'a>(
        &'a self,
        messages: &'a [Message],
        sampling: &'a JudgeSampling,
    ) -> BoxFuture<'a, Result<String, RewardError>>;
}

impl<C: Chat> DynChat for C {
    fn complete<'a>(
        &'a self,
        messages: &'a [Message],
        sampling: &'a JudgeSampling,
    ) -> BoxFuture<'a, Result<String, RewardError>> {
        Box::pin(Chat::complete(self, messages, sampling))
    }
}

/// A chat model behind a shared pointer.
#[derive(Clone)]
pub struct SharedChat(Arc<dyn DynChat>);

impl SharedChat {
    /// Shares a chat model.
    #[must_use]
    pub fn new(chat: impl Chat) -> Self {
        Self(Arc::new(chat))
    }
}

impl Chat for SharedChat {
    async fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> Result<String, RewardError> {
        self.0.complete(messages, sampling).await
    }
}

/// A source of chat models that recipes select with `engine`, in addition to servers.
///
/// # Contract
/// The same options select the same model, so that several judges share it.
pub trait ChatEngine: Send + Sync + 'static {
    /// Returns the names of the source's options.
    fn options(&self) -> &'static [&'static str];

    /// Returns the model that the options select. An answer has at most `max_tokens` tokens.
    ///
    /// # Errors
    /// If an option is invalid, or the model cannot be loaded.
    fn open(&self, options: Options, max_tokens: u32) -> Result<SharedChat, CatalogError>;
}
