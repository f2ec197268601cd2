//! `/inference/v1/generate`: tokens in, tokens out.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use rollpacker_stages::serving::ServedToken;

use super::Service;
use super::body::Body;
use super::deltas::{Delta, Deltas};
use super::error::ApiError;
use super::events::{self, Chunks};
use super::job::{Choice, Job, PromptResponses};
use super::neutral::refuse_unsupported;
use super::options::{Options, stream_usage};
use super::{logprobs, spans::Spans};
use crate::vllm::protocol::{
    GENERATE_ID_PREFIX, GenerateChoice, GenerateRequest, GenerateResponse, Usage,
};

/// Maximum number of characters of a cache salt, as in vLLM.
const MAX_SALT: usize = 1024;

pub(super) async fn generate(
    State(service): State<Arc<Service>>,
    headers: HeaderMap,
    Body(request): Body<GenerateRequest>,
) -> Result<Response, ApiError> {
    service.check_model(request.model.as_deref())?;
    check_salt(request.cache_salt.as_deref())?;
    refuse_unsupported(&request.other)?;
    let include_usage = stream_usage(request.stream, request.stream_options)?;
    let options = Options::new(request.sampling_params.clone())?;
    if request.sampling_params.detokenize == Some(false) && !options.text.stop.is_empty() {
        return Err(ApiError::parameter("stop", "no texts with detokenize false", "texts"));
    }
    if options.only_scores() && options.prompt_logprobs.is_none() {
        return Err(ApiError::parameter("max_tokens", "at least 1 without prompt_logprobs", 0));
    }
    let id = service.call_id(GENERATE_ID_PREFIX, &headers, request.request_id.as_deref())?;
    let job = Job { id, prompts: vec![request.token_ids.into()], options };
    let Some(include_usage) = include_usage else {
        return service.respond_generate(&job).await.map(|answer| Json(answer).into_response());
    };
    let deltas = Deltas::start(&service, &job, false)?;
    let spans = vec![Spans::default(); job.options.n as usize];
    Ok(events::respond(deltas, GenerateChunks { spans, job }, include_usage))
}

/// Checks that a cache salt, if there is one, has 1 to `MAX_SALT` characters. The salt has no other effect: the engine shares KV cache
/// entries only among responses to an equal prompt that run at the same time, whatever their salts, and keeps no entry after these
/// responses have ended.
pub(super) fn check_salt(salt: Option<&str>) -> Result<(), ApiError> {
    let length = salt.map_or(1, |salt| salt.chars().count());
    if (1..=MAX_SALT).contains(&length) {
        return Ok(());
    }
    let expected = format!("1 to {MAX_SALT} characters");
    Err(ApiError::parameter("cache_salt", expected, length))
}

impl Service {
    async fn respond_generate(self: &Arc<Self>, job: &Job) -> Result<GenerateResponse, ApiError> {
        let mut answers = self.generate_all(job, false).await?;
        let PromptResponses { prompt, choices } = answers.pop().unwrap_or_default();
        let sampled = choices.iter().map(|choice| choice.tokens.len()).sum();
        let tokenizer = &self.encoder.tokenizer;
        let scored = prompt.map(|scored| logprobs::of_prompt(tokenizer, &job.prompts[0], &scored));
        let choices = (0..).zip(choices);
        Ok(GenerateResponse {
            request_id: job.id.to_string(),
            model: Some(self.name().to_owned()),
            created: Some(self.unix_time()),
            choices: choices.map(|(index, choice)| complete_choice(job, index, choice)).collect(),
            usage: Some(job.usage(sampled)),
            prompt_logprobs: scored,
        })
    }
}

fn complete_choice(job: &Job, index: u32, choice: Choice) -> GenerateChoice {
    let mut spans = Spans::default();
    choice.tokens.iter().for_each(|token| spans.add(token));
    GenerateChoice {
        finish_reason: Some(choice.end.reason.to_string()),
        stop_reason: choice.end.stop,
        weight_versions: Some(spans.take()),
        ..token_choice(job, index, &choice.tokens)
    }
}

fn token_choice(job: &Job, index: u32, tokens: &[ServedToken]) -> GenerateChoice {
    GenerateChoice {
        index,
        token_ids: Some(tokens.iter().map(|token| token.id).collect()),
        logprobs: job.options.logprobs.map(|_| logprobs::by_id(tokens)),
        ..GenerateChoice::default()
    }
}

struct GenerateChunks {
    job: Job,
    /// The labels of the tokens of each choice.
    spans: Vec<Spans>,
}

impl GenerateChunks {
    fn response(&self, choices: Vec<GenerateChoice>, usage: Option<Usage>) -> GenerateResponse {
        GenerateResponse {
            request_id: self.job.id.to_string(),
            choices,
            usage,
            ..GenerateResponse::default()
        }
    }
}

impl Chunks for GenerateChunks {
    type Chunk = GenerateResponse;

    fn chunk(&mut self, delta: Delta) -> Option<GenerateResponse> {
        let Delta { choice: index, token, end, .. } = delta;
        let token: Vec<ServedToken> = token.into_iter().collect();
        let spans = &mut self.spans[index as usize];
        token.iter().for_each(|token| spans.add(token));
        let mut choice = token_choice(&self.job, index, &token);
        if let Some(end) = end {
            choice.finish_reason = Some(end.reason.to_string());
            choice.stop_reason = end.stop;
            choice.weight_versions = Some(spans.take());
        }
        Some(self.response(vec![choice], None))
    }

    fn usage(&self, sampled: usize) -> GenerateResponse {
        self.response(Vec::new(), Some(self.job.usage(sampled)))
    }
}
