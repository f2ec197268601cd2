//! The calls of a server and their results, independent of its protocol.

use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};

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

/// Returns an error text if a log-probability is not a number that a model can return.
pub(crate) fn logprob_defect(logprob: f32) -> Option<String> {
    /// Half-precision arithmetic of a server may return slightly more than 0 for a token that is certain.
    const ROUNDING: f32 = 1e-2;
    let is_valid = logprob > crate::vllm::protocol::LOWEST_LOGPROB && logprob <= ROUNDING;
    (!is_valid).then(|| format!("the log-probability {logprob}"))
}
