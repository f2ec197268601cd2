//! `/v1/completions`.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use rollpacker_stages::serving::{ServedToken, TokenLogprob};
use serde_json::Value;

use super::Service;
use super::body::{Body, on_blocking_thread};
use super::deltas::{Delta, Deltas};
use super::error::ApiError;
use super::events::{self, Chunks};
use super::generate::check_salt;
use super::job::{Choice, Job, PromptResponses};
use super::logprobs::{self, TokenPlace};
use super::options::{Options, stream_usage, take};
use crate::vllm::protocol::{
    CompletionChoice, CompletionLogprobs, CompletionRequest, CompletionResponse, Prompt, Prompts,
    Usage,
};

/// The default of `max_tokens`, as in vLLM.
const MAX_TOKENS: u32 = 16;
/// Maximum total number of token ids, echoed tokens and log-probabilities of prompts in an answer. The answer repeats the entries of a
/// prompt for each of its choices.
const MAX_PROMPT_ENTRIES: usize = 1 << 22;

/// A call whose options have been checked.
struct Completion {
    job: Job,
    /// The text of each prompt; `None` without `echo`.
    echo: Option<Vec<Echo>>,
    return_token_ids: bool,
    tokens_as_ids: bool,
    wants_prompt_logprobs: bool,
    /// The time of the call in seconds since 1970.
    created: u64,
}

/// The text of a prompt, which comes before its responses.
struct Echo {
    text: String,
    /// `true` if the special tokens of the prompt are not part of the text.
    skips_special: bool,
}

pub(super) async fn completions(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Body(request): Body<CompletionRequest>,
) -> Result<Response, ApiError> {
    service.check_model(request.model.as_deref())?;
    let include_usage = stream_usage(request.stream, request.stream_options)?;
    let parse = Arc::clone(&service);
    let call = on_blocking_thread(move || parse.parse_completion(&headers, request)).await?;
    let Some(include_usage) = include_usage else {
        return service.respond_completion(&call).await.map(|answer| Json(answer).into_response());
    };
    if call.echo.is_some() {
        return Err(ApiError::parameter("echo", "false with stream", true));
    }
    let deltas = Deltas::start(&service, &call.job, true)?;
    let text = StreamedText {
        place: TokenPlace::new(0, call.job.options.text.skip_special),
        has_begun: false,
    };
    let choices = vec![text; call.job.choices()];
    Ok(events::respond(deltas, CompletionChunks { service, call, choices }, include_usage))
}

impl Service {
    fn parse_completion(
        &self,
        headers: &HeaderMap,
        mut request: CompletionRequest,
    ) -> Result<Completion, ApiError> {
        check_salt(request.cache_salt.as_deref())?;
        let flag = "true or false";
        let other = &mut request.other;
        let request_id: Option<String> = take(other, "request_id", "a text")?;
        let tokens_as_ids = take(other, "return_tokens_as_token_ids", flag)?.unwrap_or(false);
        if other.get("max_tokens").is_none_or(Value::is_null) {
            other.insert("max_tokens".to_owned(), MAX_TOKENS.into());
        }
        let echo = request.echo == Some(true);
        let mut options = Options::of_text(request.other)?;
        let wants_prompt_logprobs = options.prompt_logprobs.is_some();
        if echo && options.logprobs.is_some() && !options.text.stop.is_empty() {
            return Err(ApiError::parameter("echo", "false with logprobs and stop", true));
        }
        options.prompt_logprobs = options.prompt_logprobs.or(options.logprobs.filter(|_| echo));
        let prompts = self.encode_prompts(request.prompt, &options)?;
        if options.only_scores() && options.prompt_logprobs.is_none() {
            let expected = "at least 1, or echo with logprobs, or prompt_logprobs";
            return Err(ApiError::parameter("max_tokens", expected, 0));
        }
        let return_token_ids = request.return_token_ids == Some(true);
        check_entries(&prompts, &options, [return_token_ids, echo])?;
        let echo = echo.then(|| {
            let skip_special = options.text.skip_special;
            let echo = |prompt: &EncodedPrompt| match &prompt.text {
                Some(text) => Ok(Echo { text: text.clone(), skips_special: false }),
                None => {
                    let text = self.encoder.tokenizer.decode(&prompt.ids, skip_special);
                    text.map(|text| Echo { text, skips_special: skip_special })
                }
            };
            prompts.iter().map(echo).collect::<Result<Vec<_>, _>>()
        });
        let id = self.call_id("cmpl-", headers, request_id.as_deref())?;
        Ok(Completion {
            echo: echo.transpose().map_err(ApiError::internal)?,
            return_token_ids,
            tokens_as_ids,
            wants_prompt_logprobs,
            created: self.unix_time(),
            job: Job {
                id,
                prompts: prompts.into_iter().map(|prompt| prompt.ids).collect(),
                options,
            },
        })
    }

    /// Encodes the prompts. Fails if a text cannot be encoded, or the prompts of a list have too many choices in total. The choices are
    /// counted before any prompt of the list is encoded.
    fn encode_prompts(
        &self,
        prompts: Prompts,
        options: &Options,
    ) -> Result<Vec<EncodedPrompt>, ApiError> {
        let prompts = match prompts {
            Prompts::One(prompt) => vec![prompt],
            Prompts::Several(prompts) => prompts,
        };
        options.check_choices(prompts.len())?;
        let encode = |prompt| match prompt {
            Prompt::Text(text) => Ok(EncodedPrompt { ids: self.encode(&text)?, text: Some(text) }),
            Prompt::Tokens(ids) => Ok(EncodedPrompt { ids: ids.into(), text: None }),
        };
        prompts.into_iter().map(encode).collect()
    }

    async fn respond_completion(
        self: &Arc<Self>,
        call: &Completion,
    ) -> Result<CompletionResponse, ApiError> {
        let answers = self.generate_all(&call.job, true).await?;
        let sampled = answers.iter().flat_map(|answer| &answer.choices);
        let usage = call.job.usage(sampled.map(|choice| choice.tokens.len()).sum());
        let answers = answers.into_iter().enumerate();
        let choices = answers.flat_map(|(at, answer)| call.choices(self, at, answer));
        Ok(call.response(self, choices.collect(), Some(usage)))
    }
}

struct EncodedPrompt {
    /// The text; `None` if the request has token ids.
    text: Option<String>,
    ids: Arc<[i32]>,
}

/// Returns an error if the answer would have more than `MAX_PROMPT_ENTRIES` entries of prompts. `repeated` has a flag for the token ids of
/// prompts and a flag for their echoed text: `true` if each choice repeats them. The log-probabilities of prompts are counted according to
/// `options`.
fn check_entries(
    prompts: &[EncodedPrompt],
    options: &Options,
    repeated: [bool; 2],
) -> Result<(), ApiError> {
    let forms: usize = repeated.into_iter().map(usize::from).sum();
    let logprobs = options.prompt_logprobs.map_or(0, |top| top as usize + 1);
    let (tokens, n) = (prompts.iter().map(|prompt| prompt.ids.len()).sum::<usize>(), options.n);
    let entries = tokens.saturating_mul(n as usize).saturating_mul(forms + logprobs);
    if entries <= MAX_PROMPT_ENTRIES {
        return Ok(());
    }
    let expected = format!(
        "at most {MAX_PROMPT_ENTRIES} token ids, echoed tokens and log-probabilities of prompts in an answer, which repeats them for each choice"
    );
    Err(ApiError::parameter("n", expected, format_args!("{entries} with n {n}")))
}

impl Completion {
    fn response(
        &self,
        service: &Service,
        choices: Vec<CompletionChoice>,
        usage: Option<Usage>,
    ) -> CompletionResponse {
        CompletionResponse {
            id: self.job.id.to_string(),
            object: "text_completion".to_owned(),
            created: self.created,
            model: service.name().to_owned(),
            choices,
            usage,
        }
    }

    /// Returns the choices of the prompt with the index `at`.
    fn choices(
        &self,
        service: &Service,
        at: usize,
        answer: PromptResponses,
    ) -> Vec<CompletionChoice> {
        let PromptResponses { prompt, choices } = answer;
        let first = at as u32 * self.job.options.n;
        let choices = (first..).zip(choices);
        choices.map(|(index, choice)| self.choice(service, index, at, choice, &prompt)).collect()
    }

    fn choice(
        &self,
        service: &Service,
        index: u32,
        at: usize,
        choice: Choice,
        scored: &Option<Vec<TokenLogprob>>,
    ) -> CompletionChoice {
        let (prompt, tokenizer) = (&self.job.prompts[at], &service.encoder.tokenizer);
        let echo = self.echo.as_ref().map(|echoes| &echoes[at]);
        let echoed = echo.zip(scored.as_ref()).map(|(echo, scored)| (echo, &**prompt, &**scored));
        let wanted = scored.as_ref().filter(|_| self.wants_prompt_logprobs);
        CompletionChoice {
            index,
            text: echo.map(|echo| echo.text.clone()).unwrap_or_default() + &choice.text,
            logprobs: self.logprobs(service, echoed, &choice),
            finish_reason: Some(choice.end.reason.to_string()),
            stop_reason: choice.end.stop,
            token_ids: self
                .return_token_ids
                .then(|| choice.tokens.iter().map(|token| token.id).collect()),
            prompt_token_ids: self.return_token_ids.then(|| prompt.to_vec()),
            prompt_logprobs: wanted.map(|scored| logprobs::of_prompt(tokenizer, prompt, scored)),
        }
    }

    /// Returns the log-probabilities of the echoed prompt, if any, and of the response, in this order. `None` if the request does not ask
    /// for log-probabilities.
    fn logprobs(
        &self,
        service: &Service,
        echoed: Option<(&Echo, &[i32], &[TokenLogprob])>,
        choice: &Choice,
    ) -> Option<CompletionLogprobs> {
        self.job.options.logprobs?;
        let (texts, mut all) =
            (service.token_texts(self.tokens_as_ids), CompletionLogprobs::default());
        let skip_special = self.job.options.text.skip_special;
        let mut response = TokenPlace::new(0, skip_special);
        if let Some((echo, prompt, scored)) = echoed {
            let scored = std::iter::once(None).chain(scored.iter().map(Some));
            let mut place = TokenPlace::new(0, echo.skips_special);
            texts.add_to_completion(&mut all, prompt.iter().copied().zip(scored), &mut place);
            response = TokenPlace::new(echo.text.chars().count() as u64, skip_special);
        }
        let tokens = choice.tokens.iter().map(id_and_logprob);
        texts.add_to_completion(&mut all, tokens, &mut response);
        Some(all)
    }
}

fn id_and_logprob(token: &ServedToken) -> (i32, Option<&TokenLogprob>) {
    (token.id, token.logprob.as_ref())
}

struct CompletionChunks {
    service: Arc<Service>,
    call: Completion,
    choices: Vec<StreamedText>,
}

#[derive(Clone, Debug)]
struct StreamedText {
    /// The place of the next token.
    place: TokenPlace,
    /// `true` once an event of the choice was sent.
    has_begun: bool,
}

impl CompletionChunks {
    fn logprobs(&mut self, choice: u32, token: &ServedToken) -> Option<CompletionLogprobs> {
        self.call.job.options.logprobs?;
        let place = &mut self.choices[choice as usize].place;
        let mut logprobs = CompletionLogprobs::default();
        let tokens = [id_and_logprob(token)].into_iter();
        let texts = self.service.token_texts(self.call.tokens_as_ids);
        texts.add_to_completion(&mut logprobs, tokens, place);
        Some(logprobs)
    }
}

impl Chunks for CompletionChunks {
    type Chunk = CompletionResponse;

    fn chunk(&mut self, delta: Delta) -> Option<CompletionResponse> {
        let Delta { choice: index, token, text, end } = delta;
        let returned = self.call.return_token_ids.then(|| token.iter().map(|t| t.id).collect());
        let is_empty_delta = text.is_empty() && end.is_none();
        if is_empty_delta && returned.is_none() && self.call.job.options.logprobs.is_none() {
            return None;
        }
        let is_first = !std::mem::replace(&mut self.choices[index as usize].has_begun, true);
        let prompt = &self.call.job.prompts[(index / self.call.job.options.n) as usize];
        let prompt_token_ids = (is_first && self.call.return_token_ids).then(|| prompt.to_vec());
        let logprobs = token.as_ref().and_then(|token| self.logprobs(index, token));
        let choice = CompletionChoice {
            index,
            text,
            logprobs,
            finish_reason: end.as_ref().map(|end| end.reason.to_string()),
            stop_reason: end.and_then(|end| end.stop),
            token_ids: returned,
            prompt_token_ids,
            ..CompletionChoice::default()
        };
        Some(self.call.response(&self.service, vec![choice], None))
    }

    fn usage(&self, sampled: usize) -> CompletionResponse {
        self.call.response(&self.service, Vec::new(), Some(self.call.job.usage(sampled)))
    }
}
