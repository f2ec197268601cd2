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
/// The method is called concurrently. The future is dropped when the answer is no longer needed, and must then leave nothing running. An
/// answer that ends at [`max_tokens`](JudgeSampling::max_tokens) is [`ChatError::CutOff`], because the model would have continued it.
///
/// # Example
/// ```
/// use rollpacker_stages::reward::chat::{Chat, ChatError, JudgeSampling, Message};
///
/// /// A judge that agrees with everything that is short.
/// struct Impatient;
///
/// impl Chat for Impatient {
///     async fn complete(
///         &self,
///         messages: &[Message],
///         _sampling: &JudgeSampling,
///     ) -> Result<String, ChatError> {
///         let length: usize = messages.iter().map(|message| message.content.len()).sum();
///         Ok(if length <= 100 { "yes" } else { "no" }.to_owned())
///     }
/// }
///
/// let question = Message { role: "user".to_owned(), content: "Is 42 right?".to_owned() };
/// let sampling = JudgeSampling { temperature: 0.0, max_tokens: 16, seed: 1 };
/// let answer = futures::executor::block_on(Impatient.complete(&[question], &sampling));
/// assert_eq!(answer.as_deref(), Ok("yes"));
/// ```
pub trait Chat: Send + Sync + 'static {
    /// Returns the model's answer to `messages` as text without special tokens.
    ///
    /// # Errors
    /// Returns [`ChatError::CutOff`] if the answer reaches its maximum length, and [`ChatError::Failed`] if the model gives no answer.
    fn complete(
        &self,
        messages: &[Message],
        sampling: &JudgeSampling,
    ) -> impl Future<Output = Result<String, ChatError>> + Send;
}

/// The reason why a [`Chat`] returned no answer. `?` converts a [`RewardError`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ChatError {
    /// The answer reached its maximum length. The same question with the same sampling would be cut off again, but another seed may give a
    /// shorter answer.
    #[error("the judge's answer was cut off after {tokens} tokens")]
    CutOff {
        /// The length of the answer in tokens.
        tokens: usize,
    },
    /// The model gave no answer.
    #[error(transparent)]
    Failed(#[from] RewardError),
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
    ) -> BoxFuture<'a, Result<String, ChatError>>;
}

impl<C: Chat> DynChat for C {
    fn complete<'a>(
        &'a self,
        messages: &'a [Message],
        sampling: &'a JudgeSampling,
    ) -> BoxFuture<'a, Result<String, ChatError>> {
        Box::pin(Chat::complete(self, messages, sampling))
    }
}

/// A chat model behind a shared pointer.
#[derive(Clone)]
pub struct SharedChat(Arc<dyn DynChat>);

impl SharedChat {
    /// Puts a chat model behind a shared pointer.
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
    ) -> Result<String, ChatError> {
        self.0.complete(messages, sampling).await
    }
}

/// A source of chat models that recipes select with `engine`, in addition to servers.
///
/// # Contract
/// The same options select the same model, so that several judges share it.
///
/// # Example
/// ```
/// use rollpacker_stages::catalog::{self, CatalogError, Options};
/// use rollpacker_stages::reward::chat::{
///     Chat, ChatEngine, ChatError, JudgeSampling, Message, SharedChat,
/// };
/// use serde::Deserialize;
///
/// /// A source of judges that always give the answer of their option `answer`.
/// struct Canned;
///
/// #[derive(Deserialize)]
/// #[serde(deny_unknown_fields)]
/// struct Answer {
///     answer: String,
/// }
///
/// impl Chat for Answer {
///     async fn complete(&self, _: &[Message], _: &JudgeSampling) -> Result<String, ChatError> {
///         Ok(self.answer.clone())
///     }
/// }
///
/// impl ChatEngine for Canned {
///     fn options(&self) -> &'static [&'static str] {
///         &["answer"]
///     }
///
///     fn open(&self, options: Options, _max_tokens: u32) -> Result<SharedChat, CatalogError> {
///         Ok(SharedChat::new(catalog::read::<Answer>(options)?))
///     }
/// }
///
/// let options = Options::from_iter([("answer".to_owned(), "yes".into())]);
/// let judge = Canned.open(options, 16).expect("the option is known");
/// let sampling = JudgeSampling { temperature: 0.0, max_tokens: 16, seed: 1 };
/// let answer = futures::executor::block_on(judge.complete(&[], &sampling));
/// assert_eq!(answer.as_deref(), Ok("yes"));
/// ```
pub trait ChatEngine: Send + Sync + 'static {
    /// Returns the names of the source's options.
    fn options(&self) -> &'static [&'static str];

    /// Returns the model that the options select. `max_tokens` is the maximum length, in tokens, of the answers that the caller will
    /// request.
    ///
    /// # Errors
    /// Returns an error if an option is invalid, or the model cannot be loaded.
    fn open(&self, options: Options, max_tokens: u32) -> Result<SharedChat, CatalogError>;
}
