//! A client of an SGLang server.

use std::time::Duration;

use reqwest::Method;
use rollpacker_stages::rollout::sampling::Sampling;
use serde::Serialize;
use serde_json::json;

use super::protocol::{
    AbortRequest, GenerateRequest, GenerateResponse, MetaInfo, OutcomeResponse, PauseRequest,
    SamplingParams, TokenLogprob, UpdateWeightsRequest, path,
};
use crate::http::{Endpoint, ServerError};
use crate::server::{
    Call, Finish, Limits, Outcome, Sink, StallDetector, TokenChunk, logprob_defect,
};
use crate::vllm::protocol::PauseMode;

/// A client of an SGLang server.
///
/// Responses are not streamed: all tokens arrive at the end of the call. If a server fails, the tokens of its running responses are lost.
#[derive(Clone, Debug)]
pub(crate) struct SglangClient {
    endpoint: Endpoint,
    limits: Limits,
}

impl SglangClient {
    pub(crate) fn new(endpoint: Endpoint, limits: Limits) -> Self {
        Self { endpoint, limits }
    }

    pub(crate) fn endpoint(&self) -> &Endpoint {
        &self.endpoint
    }

    /// Returns the time limit of a small call.
    pub(crate) fn call_limit(&self) -> Duration {
        self.limits.call
    }

    pub(crate) async fn generate(
        &self,
        call: &Call,
        stall_detector: &StallDetector,
        sink: Sink<'_>,
    ) -> Result<Outcome, ServerError> {
        let request = GenerateRequest {
            rid: Some(call.id.clone()),
            input_ids: call.prompt.clone(),
            sampling_params: sampling_params(&call.sampling, &call.eos_token_ids),
            return_logprob: true,
            logprob_start_len: None,
        };
        let answer = self.endpoint.post_unlimited(path::GENERATE, &request);
        let GenerateResponse { meta_info } =
            stall_detector.whole((&self.endpoint, path::GENERATE), answer).await?;
        let chunk = self.chunk(&meta_info)?;
        let received = chunk.tokens.len();
        let outcome = self.outcome(&meta_info, received)?;
        let (max, finish) = (call.max_tokens(), Some(outcome.finish));
        self.endpoint.check_length(path::GENERATE, received, max, finish)?;
        sink(chunk);
        Ok(outcome)
    }

    pub(crate) async fn abort(&self, id: &str) -> Result<(), ServerError> {
        let request = AbortRequest { rid: id.to_owned() };
        self.endpoint.call(Method::POST, path::ABORT, Some(&request), self.limits.call).await
    }

    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), ServerError> {
        let mode = match mode {
            PauseMode::Abort => "abort",
            // No request of this engine runs, so the load itself needs no pause. The pause holds up the requests of other clients.
            PauseMode::Wait => "retract",
            PauseMode::Keep => "in_place",
        };
        self.change(path::PAUSE, &PauseRequest { mode: mode.to_owned() }).await
    }

    pub(crate) async fn resume(&self) -> Result<(), ServerError> {
        self.change(path::CONTINUE, &json!({})).await
    }

    pub(crate) async fn load(&self, folder: &str, label: &str) -> Result<(), ServerError> {
        let request = UpdateWeightsRequest {
            model_path: folder.to_owned(),
            weight_version: label.to_owned(),
            flush_cache: true,
            abort_all_requests: false,
        };
        let limit = self.limits.load;
        let answer = self.endpoint.post(path::UPDATE_WEIGHTS, &request, limit).await?;
        self.expect_success(path::UPDATE_WEIGHTS, &answer)
    }

    pub(crate) async fn score(&self, tokens: &[i32]) -> Result<Vec<f32>, ServerError> {
        let request = GenerateRequest {
            // The call may be repeated while the server still works on it.
            rid: None,
            input_ids: tokens.to_vec(),
            sampling_params: sampling_params(&Sampling::unrestricted(1), &[]),
            return_logprob: true,
            logprob_start_len: Some(0),
        };
        let GenerateResponse { meta_info } =
            self.endpoint.post(path::GENERATE, &request, self.limits.load).await?;
        let scores = meta_info.input_token_logprobs.unwrap_or_default();
        if !scores.iter().map(|(_, token, _)| token).eq(tokens) {
            let expected = format!("`input_token_logprobs` of {} tokens", tokens.len());
            let found = format_args!("{} entries", scores.len());
            return Err(self.endpoint.invalid_answer(path::GENERATE, &expected, found));
        }
        scores.iter().skip(1).map(|entry| self.logprob(entry)).collect()
    }

    async fn change(&self, path: &str, request: &impl Serialize) -> Result<(), ServerError> {
        let answer = self.endpoint.post(path, request, self.limits.call).await?;
        self.expect_success(path, &answer)
    }

    fn expect_success(&self, path: &str, answer: &OutcomeResponse) -> Result<(), ServerError> {
        let is_ok = answer.success == Some(true) || answer.status.as_deref() == Some("ok");
        if is_ok {
            return Ok(());
        }
        Err(self.endpoint.invalid_answer(path, "success", &answer.message))
    }

    fn chunk(&self, meta: &MetaInfo) -> Result<TokenChunk, ServerError> {
        let sampled = &meta.output_token_logprobs;
        if sampled.len() as u64 != meta.completion_tokens {
            let expected = format!("the {} tokens that the server counted", meta.completion_tokens);
            return Err(self.endpoint.invalid_answer(path::GENERATE, &expected, sampled.len()));
        }
        let logprobs = sampled.iter().map(|entry| self.logprob(entry)).collect::<Result<_, _>>()?;
        Ok(TokenChunk { tokens: sampled.iter().map(|(_, token, _)| *token).collect(), logprobs })
    }

    fn logprob(&self, (logprob, token, _): &TokenLogprob) -> Result<f32, ServerError> {
        let logprob = logprob.unwrap_or(f32::NAN);
        logprob_defect(logprob).map_or(Ok(logprob), |defect| {
            let expected =
                format!("a log-probability of token {token} that is a number of at most 0");
            Err(self.endpoint.invalid_answer(path::GENERATE, &expected, defect))
        })
    }

    fn outcome(&self, meta: &MetaInfo, received: usize) -> Result<Outcome, ServerError> {
        let reason = &meta.finish_reason.kind;
        let finish = Finish::parse(reason).ok_or_else(|| {
            let expected = "the finish reason stop, length or abort";
            self.endpoint.invalid_answer(path::GENERATE, expected, reason)
        })?;
        let labels = meta.weight_version.clone().map(|label| vec![(label, received)]);
        Ok(Outcome { finish, labels })
    }
}

fn sampling_params(sampling: &Sampling, eos_token_ids: &[i32]) -> SamplingParams {
    SamplingParams {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: if sampling.top_k == 0 { -1 } else { i64::from(sampling.top_k) },
        max_new_tokens: sampling.max_new_tokens,
        min_new_tokens: sampling.min_new_tokens,
        stop_token_ids: eos_token_ids.to_vec(),
    }
}
