//! One server, independent of its protocol.

mod cache;
mod pulse;
mod retry;

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::http::{Endpoint, ServerError};
use crate::sglang::SglangClient;
use crate::vllm::VllmClient;
use crate::vllm::protocol::PauseMode;

pub(crate) use self::cache::CacheUse;
pub(crate) use self::pulse::Pulse;
pub(crate) use self::retry::retried;

/// The protocol of a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Protocol {
    /// vLLM, and `rollpacker serve`.
    Vllm,
    /// SGLang.
    Sglang,
}

/// The time limits of calls to a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The limit of a small call, such as a health check, an abort or a pause.
    pub call: Duration,
    /// The limit of loading weights.
    pub load: Duration,
    /// The longest time without a token from a server that samples. A response alone may be silent ten times as long, for example because
    /// the server preempted it, as long as other responses of the server gain tokens.
    pub stall: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            call: Duration::from_secs(30),
            load: Duration::from_secs(600),
            stall: Duration::from_secs(120),
        }
    }
}

/// The model that a server has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the model in requests.
    pub model: String,
    /// The maximum number of tokens of prompt and response, if the server reports it.
    pub max_tokens: Option<u64>,
}

impl Identity {
    /// Returns the server's limit if it has no room for `tokens` of prompt and response.
    #[must_use]
    pub fn lacks_room(&self, tokens: u64) -> Option<u64> {
        self.max_tokens.filter(|&most| most < tokens)
    }
}

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The id of the request, unique over the lives of trainer and server.
    pub(crate) id: String,
    pub(crate) prompt: Vec<i32>,
    pub(crate) sampling: CallSampling,
    /// Separates the KV cache of this policy from that of others.
    pub(crate) cache_salt: String,
}

/// The sampling options of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CallSampling {
    pub(crate) temperature: f64,
    pub(crate) top_p: f64,
    /// 0 turns it off.
    pub(crate) top_k: u32,
    pub(crate) min_tokens: u32,
    pub(crate) max_tokens: u32,
    /// The end-of-sequence tokens.
    pub(crate) ends: Arc<[i32]>,
}

/// New tokens of a response, with a log-probability each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub(crate) tokens: Vec<i32>,
    pub(crate) logprobs: Vec<f32>,
}

/// The end of a call.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) finish: Finish,
    /// The labels of the weights that sampled the tokens, and the numbers of tokens, in order. `None` if the server does not report them.
    pub(crate) labels: Option<Vec<(String, usize)>>,
}

/// The reason of a server for the end of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    Abort,
}

impl Finish {
    /// Reads the reason in the words that vLLM and SGLang share.
    pub(crate) fn named(name: &str) -> Option<Self> {
        match name {
            "stop" => Some(Self::Stop),
            "length" => Some(Self::Length),
            "abort" => Some(Self::Abort),
            _ => None,
        }
    }
}

/// Receives the tokens of a response as they arrive.
pub(crate) type Sink<'a> = &'a mut (dyn FnMut(Piece) + Send);

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

/// Returns an error text if a log-probability is not a number that a model can return.
pub(crate) fn logprob_defect(logprob: f32) -> Option<String> {
    /// Half-precision arithmetic of a server may return slightly more than 0 for a token that is certain.
    const ROUNDING: f32 = 1e-2;
    let is_valid = logprob > crate::vllm::protocol::LOWEST_LOGPROB && logprob <= ROUNDING;
    (!is_valid).then(|| format!("the log-probability {logprob}"))
}
