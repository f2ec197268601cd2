//! Wire types of the calls that RL training makes to an SGLang server, as version 0.5 defines them.

use serde::{Deserialize, Serialize};

/// Paths of the calls.
pub mod path {
    /// POST [`GenerateRequest`](super::GenerateRequest).
    pub const GENERATE: &str = "/generate";
    /// POST [`PauseRequest`](super::PauseRequest).
    pub const PAUSE: &str = "/pause_generation";
    /// POST `{}`.
    pub const CONTINUE: &str = "/continue_generation";
    /// POST [`AbortRequest`](super::AbortRequest).
    pub const ABORT: &str = "/abort_request";
    /// POST [`UpdateWeightsRequest`](super::UpdateWeightsRequest).
    pub const UPDATE_WEIGHTS: &str = "/update_weights_from_disk";
}

/// A request to continue a prompt of token ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The id of the request, by which it can be aborted. SGLang refuses an id that is in use, and chooses one if it is missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rid: Option<String>,
    /// The prompt; never empty.
    pub input_ids: Vec<i32>,
    /// The options for sampling and the bounds of the length.
    pub sampling_params: SamplingParams,
    /// Requests the log-probability of each token.
    pub return_logprob: bool,
    /// The index of the first prompt token whose log-probability is returned; `None` for no prompt log-probabilities.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprob_start_len: Option<i64>,
}

/// The options for sampling.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// Divisor of the logits. With 0 the most likely token is chosen.
    pub temperature: f64,
    /// The probability mass that nucleus sampling keeps, in (0, 1]; 1 keeps all.
    pub top_p: f64,
    /// The number of most likely tokens to sample from; -1 for all.
    pub top_k: i64,
    /// The maximum number of tokens of the response.
    pub max_new_tokens: u32,
    /// The minimum number of tokens. Before this number is reached, no end-of-sequence token is sampled.
    pub min_new_tokens: u32,
    /// Tokens that end a response, in addition to the end-of-sequence tokens of the model.
    pub stop_token_ids: Vec<i32>,
}

/// The answer to a [`GenerateRequest`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct GenerateResponse {
    /// All data of the response except its text.
    pub meta_info: MetaInfo,
}

/// The tokens of a response and the reason of its end.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct MetaInfo {
    /// The reason of the end.
    pub finish_reason: FinishReason,
    /// The number of sampled tokens.
    pub completion_tokens: u64,
    /// The label of the weights at the end of the response; `None` if the server reports none.
    #[serde(default)]
    pub weight_version: Option<String>,
    /// The sampled tokens with their log-probabilities.
    #[serde(default)]
    pub output_token_logprobs: Vec<TokenLogprob>,
    /// The tokens of the prompt with their log-probabilities; `None` unless requested. The first token has no log-probability.
    #[serde(default)]
    pub input_token_logprobs: Option<Vec<TokenLogprob>>,
}

/// A log-probability in nats, a token and the text of the token.
pub type TokenLogprob = (Option<f32>, i32, Option<String>);

/// The reason of the end of a response.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FinishReason {
    /// `stop`, `length` or `abort`.
    #[serde(rename = "type")]
    pub kind: String,
    /// The cause of an abort; `None` if the answer has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
}

/// A request to pause sampling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PauseRequest {
    /// `abort`: running requests end with the tokens that they have. `retract`: running requests wait, and their KV cache can be flushed.
    /// `in_place`: running requests wait and keep their KV cache.
    pub mode: String,
}

/// A request to abort another request, whose call returns with the tokens sampled so far.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AbortRequest {
    /// The id of the request to abort.
    pub rid: String,
}

/// A request to load weights from a folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UpdateWeightsRequest {
    /// A Hugging Face folder on the file system of the server.
    pub model_path: String,
    /// The label under which the server reports the weights; any text.
    pub weight_version: String,
    /// Clears the prefix cache.
    pub flush_cache: bool,
    /// Aborts running requests. Otherwise the call waits for them, unless the server is paused.
    pub abort_all_requests: bool,
}

/// The answer to calls that change the state of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutcomeResponse {
    /// `true` if the call succeeded; `None` if the answer has a `status` instead.
    #[serde(default)]
    pub success: Option<bool>,
    /// `ok` in answers to [`PAUSE`](path::PAUSE) and [`CONTINUE`](path::CONTINUE); `None` if the answer has no status.
    #[serde(default)]
    pub status: Option<String>,
    /// The cause of a failure; empty if the answer has no message.
    #[serde(default)]
    pub message: String,
}
