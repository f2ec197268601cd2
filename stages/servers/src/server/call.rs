//! The calls of a server and their results, independent of its protocol.

use std::sync::Arc;
use std::time::Duration;

use rollpacker_stages::rollout::sampling::Sampling;
use serde::{Deserialize, Serialize};

use crate::http::{Endpoint, ServerError};

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
    /// The limit of a small call, such as a health check, an abort or a pause; 30 s by default.
    pub call: Duration,
    /// The limit of loading weights and of scoring the canary; 600 s by default.
    pub load: Duration,
    /// The maximum time without a token from a server that is not paused; 120 s by default. While other responses of the server receive
    /// tokens, a single response may receive none for ten times this limit, for example because the server preempted it. SGLang's responses
    /// are not streamed: each must arrive within ten times this limit.
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

/// The model of a server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// The name of the model in requests.
    pub model: String,
    /// The maximum number of tokens of prompt and response; `None` if the server does not report it.
    pub max_tokens: Option<u64>,
}

impl Identity {
    /// Returns the server's limit if the limit is below `tokens`, a number of tokens of prompt and response. `None` if the limit suffices
    /// or is unknown.
    #[must_use]
    pub fn exceeded_limit(&self, tokens: u64) -> Option<u64> {
        self.max_tokens.filter(|&max| max < tokens)
    }
}

/// A prompt to continue.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call {
    /// The id of the request, unique among all trainers and calls.
    pub(crate) id: String,
    /// The prompt and the tokens of the response so far.
    pub(crate) prompt: Vec<i32>,
    /// The sampling options. Their bounds of the length apply to the rest of the response.
    pub(crate) sampling: Sampling,
    /// The tokens that end the response, in addition to the server's own end-of-sequence tokens.
    pub(crate) eos_token_ids: Arc<[i32]>,
    /// The salt of the prefix cache. It differs for each policy, so that KV cache of other weights is not reused.
    pub(crate) cache_salt: String,
}

impl Call {
    /// Returns the maximum number of tokens that the call may return.
    pub(crate) fn max_tokens(&self) -> u32 {
        self.sampling.max_new_tokens
    }
}

/// New tokens of a response, with a log-probability each.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct TokenChunk {
    pub(crate) tokens: Vec<i32>,
    pub(crate) logprobs: Vec<f32>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Outcome {
    pub(crate) finish: Finish,
    /// For each run of tokens, in order: the label of the weights that sampled them, and the number of tokens. `None` if the server does
    /// not report labels.
    pub(crate) labels: Option<Vec<(String, usize)>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Finish {
    Stop,
    Length,
    Abort,
}

impl Finish {
    /// Parses a finish reason; vLLM and SGLang use the same names. `None` if the name is unknown.
    pub(crate) fn parse(name: &str) -> Option<Self> {
        match name {
            "stop" => Some(Self::Stop),
            "length" => Some(Self::Length),
            "abort" => Some(Self::Abort),
            _ => None,
        }
    }
}

impl Endpoint {
    /// Checks the number of tokens that a call has returned so far: at most `max`, and at least one if the response has ended without an
    /// abort. `finish` is `None` while the response continues.
    pub(crate) fn check_length(
        &self,
        path: &str,
        received: usize,
        max: u32,
        finish: Option<Finish>,
    ) -> Result<(), ServerError> {
        let min = usize::from(matches!(finish, Some(Finish::Stop | Finish::Length)));
        if (min..=max as usize).contains(&received) {
            return Ok(());
        }
        let expected = format!("{min} to {max} tokens");
        Err(self.invalid_answer(path, &expected, received))
    }
}

/// Receives the tokens of a response as they arrive.
pub(crate) type Sink<'a> = &'a mut (dyn FnMut(TokenChunk) + Send);

/// Describes an invalid log-probability: NaN, a value above 0 by more than rounding, or a value of at most `LOWEST_LOGPROB`, which servers
/// send in place of a missing log-probability. `None` if the value is valid.
pub(crate) fn logprob_defect(logprob: f32) -> Option<String> {
    /// Half-precision arithmetic of a server may return slightly more than 0 for a token that is certain.
    const ROUNDING: f32 = 1e-2;
    let is_valid = logprob > crate::vllm::protocol::LOWEST_LOGPROB && logprob <= ROUNDING;
    (!is_valid).then(|| format!("the log-probability {logprob}"))
}
