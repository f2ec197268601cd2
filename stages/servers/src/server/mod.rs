//! One server, independent of its protocol.

mod cache;
mod call;
mod pulse;
mod retry;

use crate::http::{Endpoint, ServerError};
use crate::sglang::SglangClient;
use crate::vllm::VllmClient;
use crate::vllm::protocol::PauseMode;

pub(crate) use self::cache::CacheUse;
pub(crate) use self::call::{Call, CallSampling, Finish, Outcome, Piece, Sink, logprob_defect};
pub use self::call::{Identity, Limits, Protocol};
pub(crate) use self::pulse::Pulse;
pub(crate) use self::retry::retried;

/// A client of one server.
#[derive(Clone, Debug)]
pub(crate) enum Server {
    Vllm(VllmClient),
    Sglang(SglangClient),
}

/// Calls the same method of the client of either protocol.
macro_rules! either {
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
        either!(self, client => client.endpoint().name())
    }

    /// Returns the model of a server that is ready.
    pub(crate) async fn identity(&self) -> Result<Identity, ServerError> {
        either!(self, client => client.identity().await)
    }

    /// Checks that the server has all calls that training needs. Returns `true` if it is paused.
    pub(crate) async fn check_calls(&self) -> Result<bool, ServerError> {
        either!(self, client => client.check_calls().await)
    }

    /// Checks that the server takes token ids, and returns tokens and log-probabilities, with a prompt of at least 2 tokens.
    pub(crate) async fn check_tokens(&self, tokens: &[i32], salt: &str) -> Result<(), ServerError> {
        either!(self, client => client.check_tokens(tokens, salt).await)
    }

    /// Continues a prompt. Tokens go to `sink` as they arrive.
    ///
    /// After an error, the tokens in `sink` were sampled, unless the error is [`ServerError::Garbage`].
    pub(crate) async fn generate(
        &self,
        call: &Call,
        pulse: &Pulse,
        sink: Sink<'_>,
    ) -> Result<Outcome, ServerError> {
        either!(self, client => client.generate(call, pulse, sink).await)
    }

    /// Ends a call of [`generate`](Self::generate), which returns the tokens sampled so far. An unknown id has no effect.
    pub(crate) async fn abort(&self, id: &str) -> Result<(), ServerError> {
        either!(self, client => client.abort(id).await)
    }

    /// Stops sampling. `PauseMode::Wait` is for servers without running responses.
    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), ServerError> {
        either!(self, client => client.pause(mode).await)
    }

    pub(crate) async fn resume(&self) -> Result<(), ServerError> {
        either!(self, client => client.resume().await)
    }

    /// Loads the weights of a folder.
    pub(crate) async fn load(&self, folder: &str, label: &str) -> Result<(), ServerError> {
        either!(self, client => client.load(folder, label).await)
    }

    /// Labels the loaded weights and checks that the server reports the label.
    pub(crate) async fn label(&self, label: &str) -> Result<(), ServerError> {
        either!(self, client => client.label(label).await)
    }

    /// Returns the label of the loaded weights; `None` if the server has no call that reports it.
    pub(crate) async fn reported_label(&self) -> Result<Option<String>, ServerError> {
        either!(self, client => client.reported_label().await)
    }

    /// Returns the use of the KV cache; `None` if the server does not report it.
    pub(crate) async fn cache_use(&self) -> Result<Option<CacheUse>, ServerError> {
        match self {
            Self::Vllm(client) => client.cache_use().await,
            Self::Sglang(_) => Ok(None),
        }
    }

    /// Returns the log-probability of each token after the first, given those before it, at temperature 1.
    pub(crate) async fn score(&self, tokens: &[i32], salt: &str) -> Result<Vec<f32>, ServerError> {
        either!(self, client => client.score(tokens, salt).await)
    }
}
