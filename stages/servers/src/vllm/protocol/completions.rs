//! OpenAI's completions with vLLM's additions: `/v1/completions`.

use serde::de::Error;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::{Map, Value};

use super::{PromptLogprobs, Usage};

/// A request to continue one or several prompts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CompletionRequest {
    /// The name of the model; the server's model if missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub model: Option<String>,
    /// The prompts to continue.
    #[serde(deserialize_with = "read_prompts")]
    pub prompt: Prompts,
    /// Puts the prompt before each response. With `logprobs`, the answer then has the log-probabilities of the prompt; with `max_tokens` 0,
    /// it has no sampled tokens.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub echo: Option<bool>,
    /// `true` to receive the answer as server-sent events; `false` by default. Each event is a [`CompletionResponse`] with the new text of
    /// one choice. After the events of all choices, the server sends the usage, if requested, and then [`STREAM_END`](super::STREAM_END).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream: Option<bool>,
    /// The options of a stream. Allowed only with `stream`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stream_options: Option<StreamOptions>,
    /// Requests the token ids of prompts and responses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub return_token_ids: Option<bool>,
    /// See [`GenerateRequest::cache_salt`](super::GenerateRequest::cache_salt).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache_salt: Option<String>,
    /// All other options: those of [`SamplingParams`](super::SamplingParams), with 16 as the default of `max_tokens`, and options that
    /// neither struct has. A server that cannot honour one must refuse the request.
    #[serde(flatten)]
    pub other: Map<String, Value>,
}

/// The prompts of a [`CompletionRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Prompts {
    /// A single prompt.
    One(Prompt),
    /// A list of prompts; never empty in a request that was read.
    Several(Vec<Prompt>),
}

/// A prompt of a [`CompletionRequest`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Prompt {
    /// A text, which the server encodes.
    Text(String),
    /// Token ids; never empty in a request that was read.
    Tokens(Vec<i32>),
}

impl Prompt {
    /// Reads a prompt. Returns `None` if the value is neither a text nor a list of token ids, or is an empty list.
    fn read(value: &Value) -> Option<Self> {
        let id = |id: &Value| id.as_i64().and_then(|id| i32::try_from(id).ok());
        match value {
            Value::String(text) => Some(Self::Text(text.clone())),
            Value::Array(ids) if !ids.is_empty() => {
                ids.iter().map(id).collect::<Option<_>>().map(Self::Tokens)
            }
            _ => None,
        }
    }
}

fn read_prompts<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Prompts, D::Error> {
    let value = Value::deserialize(deserializer)?;
    let several = || {
        let prompts = value.as_array().filter(|prompts| !prompts.is_empty())?;
        prompts.iter().map(Prompt::read).collect::<Option<_>>().map(Prompts::Several)
    };
    Prompt::read(&value).map(Prompts::One).or_else(several).ok_or_else(|| {
        D::Error::custom(format_args!(
            "expected a text, a list of token ids, or a list of either, found {value}"
        ))
    })
}

/// The options of a stream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamOptions {
    /// Sends an event with the numbers of tokens and without choices before [`STREAM_END`](super::STREAM_END).
    #[serde(default)]
    pub include_usage: bool,
}

/// The answer to a [`CompletionRequest`], or one event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionResponse {
    /// The id of the request, such as `cmpl-1`.
    pub id: String,
    /// Always `text_completion`.
    pub object: String,
    /// The time of the call, in seconds since 1970.
    pub created: u64,
    /// The name of the model.
    pub model: String,
    /// The responses, prompt by prompt; in a stream, one choice with its new text and tokens or its end, and none in the event with the
    /// usage.
    pub choices: Vec<CompletionChoice>,
    /// The numbers of tokens; in a stream only if requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
}

/// A response, or its new text in an event of a stream.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionChoice {
    /// The index of the choice over all prompts, from 0.
    pub index: u32,
    /// The text of the response, after the prompt if `echo` is set; in a stream, the new text.
    pub text: String,
    /// The log-probabilities, if requested.
    #[serde(default)]
    pub logprobs: Option<CompletionLogprobs>,
    /// `stop`, `length` or `abort`; `None` while the response is generated.
    #[serde(default)]
    pub finish_reason: Option<String>,
    /// The stop text or stop token that ended the response; `None` if neither did, or for an end-of-sequence token of the model.
    #[serde(default)]
    pub stop_reason: Option<Value>,
    /// The token ids of the response, with `return_token_ids`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_ids: Option<Vec<i32>>,
    /// The token ids of the prompt, with `return_token_ids`; in a stream, only in the first event of a choice.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_token_ids: Option<Vec<i32>>,
    /// The log-probabilities of the tokens of the prompt, if requested with `prompt_logprobs`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompt_logprobs: Option<PromptLogprobs>,
}

/// The log-probabilities of the tokens of a [`CompletionChoice`]. The lists are of equal length, but `top_logprobs` and `text_offset` are
/// empty if the server omits them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CompletionLogprobs {
    /// The tokens as text.
    pub tokens: Vec<String>,
    /// The log-probability of each token in nats; `None` for the first token of an echoed prompt.
    pub token_logprobs: Vec<Option<f32>>,
    /// The log-probabilities of the most likely tokens and of the token itself at each position, by text; `None` for the first token of an
    /// echoed prompt.
    #[serde(default)]
    pub top_logprobs: Vec<Option<Map<String, Value>>>,
    /// The position of each token in the text, in characters. `rollpacker serve` gives all tokens of a character its position, while vLLM
    /// adds up the lengths of the texts in `tokens`.
    #[serde(default)]
    pub text_offset: Vec<u64>,
}
