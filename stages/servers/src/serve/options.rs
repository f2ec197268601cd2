//! The sampling options of a request, checked.

use std::sync::Arc;

use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::serving::{EndTokens, ServingLimits};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::body;
use super::error::ApiError;
use super::neutral::refuse_unsupported;
use crate::vllm::protocol::{SamplingParams, StreamOptions};

/// Maximum number of choices of a prompt.
const MAX_CHOICES: u32 = 1024;
/// Maximum number of choices of all prompts of a call: the maximum of `rollpacker serve --max-num-seqs`.
const MAX_CALL_CHOICES: usize = 1 << 16;
/// Maximum number of most likely tokens for which log-probabilities are returned. (vLLM: `--max-logprobs`)
const MAX_TOP_LOGPROBS: i64 = 20;
/// Maximum number of stop texts, and of stop tokens. Each is compared with every token of a response.
const MAX_STOPS: usize = 1024;
/// The minimum temperature of random sampling. Lower temperatures are greedy, because the logits would overflow. (vLLM raises temperatures
/// between 0 and 0.01 to 0.01.)
const MIN_TEMPERATURE: f64 = 1e-5;

/// The sampling options of a request, which are within their bounds.
#[derive(Clone, Debug)]
pub(super) struct Options {
    /// The number of choices of each prompt.
    pub(super) n: u32,
    pub(super) seed: Option<u64>,
    pub(super) ends: EndTokens,
    /// The number of most likely tokens whose log-probabilities are returned with the log-probability of each sampled token; `None` if no
    /// log-probabilities are returned.
    pub(super) logprobs: Option<u32>,
    /// The number of most likely tokens whose log-probabilities are returned with the log-probability of each prompt token; `None` if no
    /// log-probabilities are returned.
    pub(super) prompt_logprobs: Option<u32>,
    pub(super) text: TextOptions,
    /// The maximum number of tokens of a response; `None` for the rest of the context.
    max_tokens: Option<u32>,
    /// The minimum number of tokens of a response, before which neither a token nor a text ends it.
    pub(super) min_tokens: u32,
    temperature: f64,
    top_p: f64,
    top_k: u32,
}

/// The options for decoding a response to text.
#[derive(Clone, Debug, Default)]
pub(super) struct TextOptions {
    /// Texts that end a response.
    pub(super) stop: Arc<[String]>,
    /// `true` if the stop text, or the text of the stop token, is part of the response.
    pub(super) include_stop: bool,
    /// `true` if special tokens are left out of the text.
    pub(super) skip_special: bool,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Stop {
    One(String),
    Any(Vec<String>),
}

impl Options {
    /// Checks the options of a request. With `max_tokens` 0, no token is sampled; the caller must check whether that is allowed.
    pub(super) fn new(mut params: SamplingParams) -> Result<Self, ApiError> {
        let text = TextOptions::take(&mut params.other)?;
        refuse_unsupported(&params.other)?;
        let stop_token_ids = params.stop_token_ids.unwrap_or_default();
        check_stops("stop_token_ids", stop_token_ids.len())?;
        let temperature = params.temperature.unwrap_or(1.0);
        let greedy = temperature < MIN_TEMPERATURE;
        let options = Self {
            n: check_bounds("n", params.n.unwrap_or(1), 1, MAX_CHOICES)?,
            seed: params.seed.map(i64::cast_unsigned),
            ends: EndTokens {
                ignore_eos: params.ignore_eos.unwrap_or(false),
                stop_token_ids: stop_token_ids.into(),
            },
            logprobs: check_top_logprobs("logprobs", params.logprobs)?,
            prompt_logprobs: check_top_logprobs("prompt_logprobs", params.prompt_logprobs)?,
            text,
            max_tokens: params.max_tokens,
            min_tokens: params.min_tokens.unwrap_or(0),
            temperature: if greedy && temperature >= 0.0 { 0.0 } else { temperature },
            top_p: params.top_p.unwrap_or(1.0),
            top_k: top_k(params.top_k.unwrap_or(0))?,
        };
        options.check()?;
        Ok(options)
    }

    /// Checks the sampling options of a completion or a chat. `fields` has all fields of the request that the request type does not have
    /// itself. Fails if an option is out of bounds, a field is unknown or not supported, or `detokenize` is `false`.
    pub(super) fn of_text(mut fields: Map<String, Value>) -> Result<Self, ApiError> {
        if take(&mut fields, "detokenize", "true or false")? == Some(false) {
            return Err(ApiError::parameter("detokenize", "true in a call for text", false));
        }
        Self::new(body::read(Value::Object(fields))?)
    }

    fn check(&self) -> Result<(), ApiError> {
        // The length is checked with the prompt.
        let sampling = self.sampling(self.max_tokens.unwrap_or(u32::MAX).max(1));
        match sampling.invalid_option() {
            None | Some(("min_new_tokens", ..)) => Ok(()),
            Some((name, expected, found)) => Err(ApiError::parameter(name, expected, found)),
        }
    }

    fn sampling(&self, max_new_tokens: u32) -> Sampling {
        Sampling {
            temperature: self.temperature,
            top_p: self.top_p,
            top_k: self.top_k,
            min_new_tokens: self.min_tokens,
            max_new_tokens,
        }
    }

    /// Returns an error if a call with this number of prompts has more than `MAX_CALL_CHOICES` choices.
    pub(super) fn check_choices(&self, prompts: usize) -> Result<(), ApiError> {
        if prompts.saturating_mul(self.n as usize) <= MAX_CALL_CHOICES {
            return Ok(());
        }
        let expected = format!("at most {MAX_CALL_CHOICES} choices, the number of prompts times n");
        let found = format!("{prompts} prompts and n {}", self.n);
        Err(ApiError::parameter("n", expected, found))
    }

    /// Returns `true` if the request samples no tokens and only scores its prompt.
    pub(super) fn only_scores(&self) -> bool {
        self.max_tokens == Some(0)
    }

    /// Returns the sampling options for a prompt.
    ///
    /// # Errors
    /// Returns an error if the prompt is empty, or a token of the prompt or a stop token is outside of the vocabulary. Also returns an
    /// error if the prompt and its response do not fit into the context, or `min_tokens` exceeds the maximum length of the response.
    pub(super) fn sampling_for_prompt(
        &self,
        prompt: &[i32],
        limits: &ServingLimits,
    ) -> Result<Sampling, ApiError> {
        let is_token = |id: &i32| usize::try_from(*id).is_ok_and(|id| id < limits.vocab_size);
        let ids = prompt.iter().chain(&*self.ends.stop_token_ids);
        if let Some(id) = ids.into_iter().find(|id| !is_token(id)) {
            let expected = format!("token ids from 0 to {}", limits.vocab_size - 1);
            return Err(ApiError::bad_request(format_args!("{expected} expected, found {id}")));
        }
        if prompt.is_empty() {
            return Err(ApiError::bad_request("the prompt is empty: expected at least one token"));
        }
        let room = limits.context.saturating_sub(prompt.len());
        let wanted = self.max_tokens.map_or(room, |wanted| wanted as usize);
        let min = usize::from(!self.only_scores());
        if room < wanted.max(min) {
            return Err(ApiError::bad_request(format_args!(
                "this model's maximum context length is {} tokens: found a prompt of {} tokens and max_tokens {}",
                limits.context,
                prompt.len(),
                wanted.max(min)
            )));
        }
        if self.min_tokens as usize > wanted {
            let expected = format!("at most max_tokens ({wanted})");
            return Err(ApiError::parameter("min_tokens", expected, self.min_tokens));
        }
        Ok(self.sampling(u32::try_from(wanted).unwrap_or(u32::MAX)))
    }

    /// Returns `true` if a token ends a response.
    pub(super) fn is_end(&self, token: i32, limits: &ServingLimits) -> bool {
        self.is_eos(token, limits) || self.ends.stop_token_ids.contains(&token)
    }

    /// Returns `true` if a token is an end-of-sequence token of the model, and the request does not ignore these tokens.
    pub(super) fn is_eos(&self, token: i32, limits: &ServingLimits) -> bool {
        !self.ends.ignore_eos && limits.eos_token_ids.contains(&token)
    }
}

impl TextOptions {
    /// Removes the text options from `other`, the parameters that have no field of their own, and reads them.
    fn take(other: &mut Map<String, Value>) -> Result<Self, ApiError> {
        let stop = match take::<Stop>(other, "stop", "a text or a list of texts")? {
            None => Vec::new(),
            Some(Stop::One(text)) => vec![text],
            Some(Stop::Any(texts)) => texts,
        };
        if stop.iter().any(String::is_empty) {
            return Err(ApiError::parameter("stop", "texts that are not empty", "an empty one"));
        }
        check_stops("stop", stop.len())?;
        let flag = "true or false";
        Ok(Self {
            stop: stop.into(),
            include_stop: take(other, "include_stop_str_in_output", flag)?.unwrap_or(false),
            skip_special: take(other, "skip_special_tokens", flag)?.unwrap_or(true),
        })
    }
}

/// Returns `None` if a request does not stream. Otherwise returns `Some(true)` if its stream ends with an event that has the numbers of
/// tokens, and `Some(false)` if not. Returns an error if the request has `stream_options` but does not stream.
pub(super) fn stream_usage(
    stream: Option<bool>,
    options: Option<StreamOptions>,
) -> Result<Option<bool>, ApiError> {
    match (stream, options) {
        (Some(true), options) => Ok(Some(options.is_some_and(|options| options.include_usage))),
        (_, None) => Ok(None),
        (_, Some(_)) => {
            Err(ApiError::parameter("stream_options", "null without stream", "an object"))
        }
    }
}

/// Removes a parameter and reads it. Returns `None` if it is missing or `null`, and an error that names the `expected` values if it has
/// another type.
pub(super) fn take<T: DeserializeOwned>(
    parameters: &mut Map<String, Value>,
    name: &str,
    expected: &str,
) -> Result<Option<T>, ApiError> {
    let Some(value) = parameters.remove(name) else { return Ok(None) };
    let found = value.to_string();
    serde_json::from_value(value).map_err(|_mismatch| ApiError::parameter(name, expected, found))
}

fn check_bounds(name: &str, found: u32, min: u32, max: u32) -> Result<u32, ApiError> {
    if (min..=max).contains(&found) {
        return Ok(found);
    }
    Err(ApiError::parameter(name, format_args!("{min} to {max}"), found))
}

/// Returns an error if a request has more than `MAX_STOPS` stop texts or stop tokens.
fn check_stops(name: &str, found: usize) -> Result<(), ApiError> {
    if found <= MAX_STOPS {
        return Ok(());
    }
    Err(ApiError::parameter(name, format_args!("at most {MAX_STOPS}"), found))
}

fn check_top_logprobs(name: &str, wanted: Option<i64>) -> Result<Option<u32>, ApiError> {
    let in_bounds = |wanted: i64| {
        let number = u32::try_from(wanted).ok().filter(|_| wanted <= MAX_TOP_LOGPROBS);
        number.ok_or_else(|| {
            ApiError::parameter(name, format_args!("0 to {MAX_TOP_LOGPROBS}"), wanted)
        })
    };
    wanted.map(in_bounds).transpose()
}

fn top_k(wanted: i64) -> Result<u32, ApiError> {
    if wanted == -1 {
        return Ok(0);
    }
    let expected = "-1 or 0, which turn it off, or a number of tokens";
    u32::try_from(wanted).map_err(|_negative| ApiError::parameter("top_k", expected, wanted))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_value, json};

    use super::*;

    fn limits() -> ServingLimits {
        ServingLimits {
            context: 8,
            vocab_size: 10,
            max_running: 4,
            kv_cache_tokens: 64,
            eos_token_ids: vec![1],
        }
    }

    fn options(params: Value) -> Result<Options, String> {
        let params = from_value(params).unwrap();
        Options::new(params).map_err(|error| error.body().error.message)
    }

    #[test]
    fn options_have_the_defaults_of_vllm() {
        let options = options(json!({})).unwrap();
        assert_eq!(options.n, 1);
        let sampling = options.sampling_for_prompt(&[2, 3], &limits()).unwrap();
        assert_eq!(sampling, Sampling::unrestricted(6), "the rest of the context");
    }

    #[test]
    fn options_out_of_bounds_are_named() {
        for (params, name) in [
            (json!({"n": 0}), "`n`"),
            (json!({"temperature": -1.0}), "`temperature`"),
            (json!({"top_p": 0.0}), "`top_p`"),
            (json!({"top_k": -2}), "`top_k`"),
            (json!({"logprobs": 21}), "`logprobs`"),
            (json!({"prompt_logprobs": -1}), "`prompt_logprobs`"),
            (json!({"stop": [""]}), "`stop`"),
            (json!({"stop": 5}), "`stop`"),
            (json!({"stop": vec!["a"; 1025]}), "`stop`"),
            (json!({"stop_token_ids": vec![1; 1025]}), "`stop_token_ids`"),
            (json!({"min_p": 0.5}), "`min_p`"),
        ] {
            let message = options(params).unwrap_err();
            assert!(message.contains(name), "{message}");
        }
    }

    #[test]
    fn prompts_that_do_not_fit_are_refused() {
        let refusal = |params, prompt: &[i32]| {
            let refused =
                options(params).unwrap().sampling_for_prompt(prompt, &limits()).unwrap_err();
            refused.body().error.message
        };
        assert!(refusal(json!({"max_tokens": 7}), &[2, 3]).contains("context length is 8"));
        assert!(refusal(json!({}), &[2; 8]).contains("context length is 8"));
        assert!(refusal(json!({}), &[10]).contains("found 10"));
        assert!(refusal(json!({"stop_token_ids": [-1]}), &[2]).contains("found -1"));
        assert!(refusal(json!({}), &[]).contains("empty"));
        assert!(refusal(json!({"max_tokens": 2, "min_tokens": 3}), &[2]).contains("`min_tokens`"));
    }

    #[test]
    fn the_choices_of_all_prompts_are_bounded() {
        let options = options(json!({"n": 1024})).unwrap();
        assert!(options.check_choices(64).is_ok());
        let refused = options.check_choices(65).unwrap_err().body().error;
        assert_eq!(
            refused.message,
            "parameter `n`: expected at most 65536 choices, the number of prompts times n, found 65 prompts and n 1024"
        );
        assert!(options.check_choices(usize::MAX).is_err());
    }

    #[test]
    fn a_tiny_temperature_is_greedy() {
        let options = options(json!({"temperature": 1e-9, "top_k": -1, "max_tokens": 3})).unwrap();
        assert_eq!(options.sampling_for_prompt(&[2], &limits()).unwrap(), Sampling::greedy(3));
    }
}
