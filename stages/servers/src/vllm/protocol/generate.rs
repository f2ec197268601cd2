//! Tokens in, tokens out: `/inference/v1/generate`.

use std::collections::BTreeMap;

use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::StreamOptions;

/// A request to continue a prompt of token ids.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerateRequest {
    /// The id of the request; the server generates one if it is missing. A header `X-Request-Id` replaces it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request_id: Option<String>,
    /// The name of the model; the server's model if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prompt; never empty.
    pub token_ids: Vec<i32>,
    /// The options for sampling and the bounds of the length.
    pub sampling_params: SamplingParams,
    /// `true` to receive the answer as server-sent events; `false` by default. Each event is a [`GenerateResponse`] with the new tokens of
    /// one choice. The last event of a choice has its `finish_reason` and the `weight_versions` of all its tokens. After the events of all
    /// choices, the server sends the usage, if requested, and then [`STREAM_END`](super::STREAM_END).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The options of a stream. Allowed only with `stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// In vLLM, prompts share the KV cache of a common prefix only if their salts are equal. `rollpacker serve` ignores the salts: running
    /// responses to an equal prompt share the cache. 1 to 1,024 characters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// Options that this struct does not have. A server that cannot honour one must refuse the request.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The options for sampling. Missing options have the defaults that the fields name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SamplingParams {
    /// The number of choices; 1 by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub n: Option<u32>,
    /// Divisor of the logits; 1 by default. With 0 the most likely token is chosen.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<f64>,
    /// The probability mass that nucleus sampling keeps, in (0, 1]; 1, which is the default, keeps all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_p: Option<f64>,
    /// The number of most likely tokens to sample from; 0, which is the default, or -1 for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub top_k: Option<i64>,
    /// The seed of the request; not fixed by default. A seed crashes the CPU engine of vLLM 0.32.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<i64>,
    /// The maximum number of tokens. If missing, the response may fill the context of the model.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u32>,
    /// The minimum number of tokens; 0 by default. Before this number is reached, neither an end-of-sequence token nor a stop token is
    /// sampled.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub min_tokens: Option<u32>,
    /// Tokens that end a response, in addition to the end-of-sequence tokens of the model. The token that ended a response is part of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop_token_ids: Option<Vec<i32>>,
    /// Continues after end-of-sequence tokens; `false` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ignore_eos: Option<bool>,
    /// Requests the log-probabilities of each sampled token and of the given number of most likely tokens; none by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<i64>,
    /// Requests the log-probabilities of each prompt token and of the given number of most likely tokens; none by default. Cannot be
    /// combined with `stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<i64>,
    /// Decodes tokens to text; `true` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub detokenize: Option<bool>,
    /// Options that this struct does not have. A server that cannot honour one must refuse the request.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The answer to a [`GenerateRequest`], or one event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerateResponse {
    /// The id of the request, with [`GENERATE_ID_PREFIX`](super::GENERATE_ID_PREFIX).
    #[serde(default)]
    pub request_id: String,
    /// The name of the model; not in a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The time of the answer, in seconds since 1970; not in a stream.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub created: Option<u64>,
    /// The choices; in a stream only the choices with new tokens or an end, and none in the event with the usage.
    pub choices: Vec<GenerateChoice>,
    /// The numbers of tokens; in a stream only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The log-probabilities of the prompt, if requested: for each token, the log-probability of the token itself and of the most likely
    /// tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// For each token of a prompt, a map of log-probabilities whose keys are token ids as text; `None` for the first token.
pub type PromptLogprobs = Vec<Option<BTreeMap<String, PromptLogprob>>>;

/// A response, or its new tokens in an event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct GenerateChoice {
    /// The index of the choice, from 0.
    pub index: u32,
    /// The tokens, including the one that ended the response.
    #[serde(default)]
    pub token_ids: Option<Vec<i32>>,
    /// The log-probabilities of the tokens, if requested.
    #[serde(default)]
    pub logprobs: Option<Logprobs>,
    /// `stop`, `length`, `abort` or `error`; `None` while the response is generated.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// The stop token or stop text that ended the response; `None` if neither did, or for an end-of-sequence token of the model.
    #[serde(default)]
    pub stop_reason: Option<Value>,
    /// The spans of tokens and the labels of the weights that sampled them, in order and without gaps. In a stream, only the last event of
    /// a choice has them, for all of its tokens.
    #[serde(default)]
    pub weight_versions: Option<Vec<WeightVersionSpan>>,
}

/// The log-probabilities of the tokens of a choice.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprobs {
    /// One entry per token.
    #[serde(default)]
    pub content: Option<Vec<Logprob>>,
}

/// The log-probability of a sampled token, or of a likely token at the same position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Logprob {
    /// The id of the token.
    pub token_id: i32,
    /// The log-probability in nats. vLLM sends [`LOWEST_LOGPROB`](super::LOWEST_LOGPROB) in place of lower values and of a missing
    /// log-probability, and `null` in place of NaN; `null` is read as NaN.
    #[serde(deserialize_with = "nan_if_null")]
    pub logprob: f32,
    /// The rank of the token, from 1; missing if the log-probability is missing.
    #[serde(default)]
    pub rank: Option<u32>,
    /// The most likely tokens with their log-probabilities; empty unless requested.
    #[serde(default)]
    pub top_logprobs: Vec<Logprob>,
}

/// The log-probability of a prompt token, or of a likely token at the same position.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptLogprob {
    /// The log-probability in nats, without temperature. `null` is read as NaN.
    #[serde(deserialize_with = "nan_if_null")]
    pub logprob: f32,
    /// The rank of the token, from 1.
    #[serde(default)]
    pub rank: Option<u32>,
    /// The text of the token.
    #[serde(default)]
    pub decoded_token: Option<String>,
}

/// Reads a number, and NaN if the value is `null`, which represents NaN in JSON.
fn nan_if_null<'de, D: Deserializer<'de>>(deserializer: D) -> Result<f32, D::Error> {
    Option::deserialize(deserializer).map(|number| number.unwrap_or(f32::NAN))
}

/// The tokens `start..end` of a response, sampled by weights with the label `version`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WeightVersionSpan {
    /// The label of the weights, as set by [`UpdateWeightVersionRequest`](super::UpdateWeightVersionRequest), or the label with which the
    /// server started.
    pub version: String,
    /// The index of the first token.
    pub start: u32,
    /// The index after the last token.
    pub end: u32,
}

/// The numbers of tokens of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Tokens of all prompts of the request.
    #[serde(default)]
    pub prompt_tokens: u64,
    /// Sampled tokens of all choices.
    #[serde(default)]
    pub completion_tokens: u64,
    /// The sum of `prompt_tokens` and `completion_tokens`.
    #[serde(default)]
    pub total_tokens: u64,
}
