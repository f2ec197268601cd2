//! One server, independent of its protocol.

mod cache;
mod call;
mod retry;
mod stall_detector;

use std::time::Duration;

use reqwest::Method;

use crate::http::{Endpoint, ServerError};
use crate::sglang::SglangClient;
use crate::vllm::VllmClient;
use crate::vllm::protocol::{ModelList, PauseMode, path};

pub(crate) use self::cache::CacheUse;
pub(crate) use self::call::{Call, Finish, Outcome, Sink, TokenChunk, logprob_defect};
pub use self::call::{Identity, Limits, Protocol};
pub(crate) use self::retry::with_retries;
pub(crate) use self::stall_detector::StallDetector;

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Vllm(VllmClient),
    Sglang(SglangClient),
}

/// Evaluates an expression with the client of the server's protocol.
macro_rules! with_client {
    ($server:expr, $client:ident => $call:expr) => {
        match $server {
            Server::Vllm($client) => $call,
            Server::Sglang($client) => $call,
        }
    };
}

impl Server {
    pub(crate) fn new(protocol: Protocol, endpoint: Endpoint, limits: Limits) -> Self {
        match protocol {
            Protocol::Vllm => Self::Vllm(VllmClient::new(endpoint, limits)),
            Protocol::Sglang => Self::Sglang(SglangClient::new(endpoint, limits)),
        }
    }

    /// Returns the URL of the server without secrets.
    pub(crate) fn name(&self) -> String {
        with_client!(self, client => client.endpoint().name())
    }

    /// Checks that the server is ready, and returns the first model of its list.
    pub(crate) async fn identity(&self) -> Result<Identity, ServerError> {
        with_client!(self, client => client.endpoint().identity(client.call_limit()).await)
    }

    /// Checks that the server has the calls for pauses, labels and token ids. Returns `true` if the server reports that it is paused.
    /// SGLang is not checked and reports no pause.
    pub(crate) async fn check_calls(&self) -> Result<bool, ServerError> {
        match self {
            Self::Vllm(client) => client.check_calls().await,
            Self::Sglang(_) => Ok(false),
        }
    }

    /// Checks that the server accepts the prompt `tokens` and that it returns tokens with log-probabilities. `tokens` must have at least 2
    /// entries. `salt` is the salt of the prefix cache. SGLang is not checked.
    pub(crate) async fn check_tokens(&self, tokens: &[i32], salt: &str) -> Result<(), ServerError> {
        match self {
            Self::Vllm(client) => client.check_tokens(tokens, salt).await,
            // A call to a paused server would wait, and the canary of the first delivery checks the same.
            Self::Sglang(_) => Ok(()),
        }
    }

    /// Continues a prompt. Tokens go to `sink` as they arrive.
    ///
    /// After an error, the tokens that `sink` has received are valid, unless the error is [`ServerError::InvalidAnswer`].
    pub(crate) async fn generate(
        &self,
        call: &Call,
        stall_detector: &StallDetector,
        sink: Sink<'_>,
    ) -> Result<Outcome, ServerError> {
        with_client!(self, client => client.generate(call, stall_detector, sink).await)
    }

    /// Ends the call of [`generate`](Self::generate) with this id. The sink of the call receives the tokens sampled so far, and the outcome
    /// of the call has the finish reason `Abort`. An unknown id has no effect.
    pub(crate) async fn abort(&self, id: &str) -> Result<(), ServerError> {
        with_client!(self, client => client.abort(id).await)
    }

    /// Pauses sampling. Use `PauseMode::Wait` only when the server runs no response: the call has the time limit of a small call.
    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), ServerError> {
        with_client!(self, client => client.pause(mode).await)
    }

    pub(crate) async fn resume(&self) -> Result<(), ServerError> {
        with_client!(self, client => client.resume().await)
    }

    /// Loads the weights of a folder. SGLang also sets their `label` in this call.
    pub(crate) async fn load(&self, folder: &str, label: &str) -> Result<(), ServerError> {
        match self {
            Self::Vllm(client) => client.load(folder).await,
            Self::Sglang(client) => client.load(folder, label).await,
        }
    }

    /// Sets the label of the loaded weights and checks that the server reports it. Does nothing for SGLang, where the load sets the label.
    pub(crate) async fn label(&self, label: &str) -> Result<(), ServerError> {
        match self {
            Self::Vllm(client) => client.label(label).await,
            Self::Sglang(_) => Ok(()),
        }
    }

    /// Returns the label of the loaded weights; `None` for SGLang, which reports the label only in responses.
    pub(crate) async fn reported_label(&self) -> Result<Option<String>, ServerError> {
        match self {
            Self::Vllm(client) => client.reported_label().await.map(Some),
            Self::Sglang(_) => Ok(None),
        }
    }

    /// Returns the use of the KV cache; `None` if the server does not report it or reports invalid values, and always for SGLang.
    pub(crate) async fn cache_use(&self) -> Result<Option<CacheUse>, ServerError> {
        match self {
            Self::Vllm(client) => client.cache_use().await,
            Self::Sglang(_) => Ok(None),
        }
    }

    /// Returns the log-probability, in nats at temperature 1, of each token after the first, given the tokens before it. `salt` is the salt
    /// of the prefix cache; SGLang does not use it.
    pub(crate) async fn score(&self, tokens: &[i32], salt: &str) -> Result<Vec<f32>, ServerError> {
        match self {
            Self::Vllm(client) => client.score(tokens, salt).await,
            Self::Sglang(client) => client.score(tokens).await,
        }
    }
}

impl Endpoint {
    /// Checks that the server is ready, and returns the first model of its list. vLLM and SGLang both have OpenAI's list of models.
    pub(crate) async fn identity(&self, limit: Duration) -> Result<Identity, ServerError> {
        self.call(Method::GET, path::HEALTH, None::<&()>, limit).await?;
        let models: ModelList = self.get(path::MODELS, limit).await?;
        let first = models.data.into_iter().next();
        let card = first.ok_or_else(|| self.invalid_answer(path::MODELS, "a model", "none"))?;
        Ok(Identity { model: card.id, max_tokens: card.max_model_len })
    }
}
