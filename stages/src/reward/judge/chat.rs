//! Whom a judge asks.

use std::future::Future;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::model::Message;
use crate::reward::RewardError;

/// A chat model that answers: a server, or a model in process.
///
/// # Contract
/// Called concurrently. The future is dropped when the answer is no longer wanted, and must then leave nothing running. An answer that
/// was cut off is an error: what it says last is not what the model would have said last.
pub trait Chat: Send + Sync + 'static {
    /// The model's answer to `messages`, as text, special tokens left out.
    fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> impl Future<Output = Result<String, RewardError>> + Send;
}

/// How a judge samples its answers.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct JudgeSampling {
    /// Temperature; 0 is greedy.
    pub temperature: f64,
    /// The longest answer, in tokens.
    pub max_tokens: u32,
    /// Which sample it is, from 0: answers to the same messages with the same seed may be equal, with another they are drawn anew.
    pub seed: u64,
}

/// [`Chat`] behind a pointer.
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

/// A chat model that is shared.
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
