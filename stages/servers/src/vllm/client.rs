//! A client of a vLLM server.

use std::time::Duration;

use reqwest::Method;
use serde_json::Value;

use super::protocol::{
    AbortRequest, AbortResponse, CollectiveRpcRequest, CollectiveRpcResponse, ErrorResponse,
    GENERATE_ID_PREFIX, GenerateChoice, GenerateRequest, GenerateResponse, IsPausedResponse,
    PauseMode, SamplingParams, StatusResponse, StreamOptions, UpdateWeightVersionRequest,
    UpdateWeightVersionResponse, WeightInfoResponse, WeightVersionSpan, path,
};
use crate::http::{Endpoint, RetryHint, ServerError};
use crate::server::{
    CacheUse, Call, Finish, Limits, Outcome, Sink, StallDetector, TokenChunk, logprob_defect,
};

#[derive(Clone, Debug)]
pub(crate) struct VllmClient {
    endpoint: Endpoint,
    limits: Limits,
}

impl VllmClient {
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

    /// Checks that the server has the calls for pauses, labels and token ids. Returns `true` if the server is paused.
    pub(crate) async fn check_calls(&self) -> Result<bool, ServerError> {
        let advised = |error: ServerError, flag| advise(error, flag);
        let limit = self.limits.call;
        let paused = self.endpoint.get::<IsPausedResponse>(path::IS_PAUSED, limit).await;
        let paused = paused.map_err(|error| advised(error, "VLLM_SERVER_DEV_MODE=1"))?;
        let label = self.endpoint.get::<WeightInfoResponse>(path::WEIGHT_INFO, limit).await;
        label.map_err(|error| advised(error, "version 0.32 or later"))?;
        // An empty request is refused with 400 by a server that has the call, and with 403 or 404 by others.
        let empty = serde_json::json!({});
        match self.endpoint.call(Method::POST, path::GENERATE, Some(&empty), limit).await {
            Err(error) if error.is_missing() => Err(advised(error, "--enable-scale-out")),
            Err(error) if error.retry_hint() != RetryHint::Never => Err(error),
            _ => Ok(paused.is_paused),
        }
    }

    pub(crate) async fn generate(
        &self,
        call: &Call,
        stall_detector: &StallDetector,
        sink: Sink<'_>,
    ) -> Result<Outcome, ServerError> {
        let request = generate_request(call);
        let events = self.endpoint.stream(path::GENERATE, &request);
        let mut events = stall_detector.next_part((&self.endpoint, path::GENERATE), events).await?;
        let (mut received, mut counted) = (0, None);
        let mut outcome: Option<Outcome> = None;
        while let Some(data) = stall_detector.next_event(path::GENERATE, &mut events).await? {
            if data == super::protocol::STREAM_END {
                break;
            }
            let event: GenerateResponse =
                events.json(&data).map_err(|error| self.stream_error(&data, error))?;
            counted = event.usage.map(|usage| usage.completion_tokens).or(counted);
            for choice in event.choices {
                if outcome.is_some() {
                    let expected = "nothing after the finish reason of a response";
                    return Err(self.endpoint.invalid_answer(path::GENERATE, expected, data));
                }
                let chunk = self.chunk(&choice)?;
                received += chunk.tokens.len();
                outcome = self.outcome(&choice)?;
                let finish = outcome.as_ref().map(|outcome| outcome.finish);
                self.endpoint.check_length(path::GENERATE, received, call.max_tokens(), finish)?;
                sink(chunk);
            }
        }
        let outcome = outcome.ok_or_else(|| self.unfinished())?;
        self.check_counts(received, counted, &outcome)?;
        Ok(outcome)
    }

    pub(crate) async fn abort(&self, id: &str) -> Result<(), ServerError> {
        let ids = vec![format!("{GENERATE_ID_PREFIX}{id}")];
        let request = AbortRequest { request_ids: Some(ids) };
        let limit = self.limits.call;
        self.endpoint.post::<AbortResponse>(path::ABORT_REQUESTS, &request, limit).await.map(drop)
    }

    pub(crate) async fn cache_use(&self) -> Result<Option<CacheUse>, ServerError> {
        match self.endpoint.text(path::METRICS, self.limits.call).await {
            Ok(text) => Ok(CacheUse::parse(&text)),
            Err(error) if error.is_missing() => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn pause(&self, mode: PauseMode) -> Result<(), ServerError> {
        let path = format!("{}?mode={mode}&clear_cache=true", path::PAUSE);
        self.status(&path, "paused").await
    }

    pub(crate) async fn resume(&self) -> Result<(), ServerError> {
        self.status(path::RESUME, "resumed").await
    }

    async fn status(&self, path: &str, expected: &str) -> Result<(), ServerError> {
        let nothing = serde_json::json!({});
        let status: StatusResponse = self.endpoint.post(path, &nothing, self.limits.call).await?;
        self.expect(path, "status", expected, &status.status)
    }

    pub(crate) async fn load(&self, folder: &str) -> Result<(), ServerError> {
        let request = CollectiveRpcRequest::reload_weights(folder);
        let limit = self.limits.load;
        let answer: CollectiveRpcResponse =
            self.endpoint.post(path::COLLECTIVE_RPC, &request, limit).await?;
        worker_error(answer.results).map_or(Ok(()), |message| {
            let expected = "null of each worker";
            Err(self.endpoint.invalid_answer(path::COLLECTIVE_RPC, expected, message))
        })
    }

    pub(crate) async fn label(&self, label: &str) -> Result<(), ServerError> {
        let request = UpdateWeightVersionRequest { new_version: label.to_owned() };
        let limit = self.limits.call;
        let _answer: UpdateWeightVersionResponse =
            self.endpoint.post(path::UPDATE_WEIGHT_VERSION, &request, limit).await?;
        let info: WeightInfoResponse = self.endpoint.get(path::WEIGHT_INFO, limit).await?;
        self.expect(path::WEIGHT_INFO, "weight_version", label, &info.weight_version)
    }

    pub(crate) async fn reported_label(&self) -> Result<String, ServerError> {
        let info: WeightInfoResponse =
            self.endpoint.get(path::WEIGHT_INFO, self.limits.call).await?;
        Ok(info.weight_version)
    }

    pub(crate) async fn score(&self, tokens: &[i32], salt: &str) -> Result<Vec<f32>, ServerError> {
        let request = score_request(tokens, salt);
        // A busy server may let the call wait as long as a load.
        let answer: GenerateResponse =
            self.endpoint.post(path::GENERATE, &request, self.limits.load).await?;
        self.scores(&answer, tokens)
    }

    /// Returns the log-probability of each token of a prompt after the first, in nats.
    pub(super) fn scores(
        &self,
        answer: &GenerateResponse,
        tokens: &[i32],
    ) -> Result<Vec<f32>, ServerError> {
        let scores = answer.prompt_logprobs.as_deref().unwrap_or_default();
        let wrong = |found: String| {
            let expected = format!("`prompt_logprobs` of {} tokens", tokens.len());
            self.endpoint.invalid_answer(path::GENERATE, &expected, found)
        };
        if scores.len() != tokens.len() {
            return Err(wrong(format!("{} entries", scores.len())));
        }
        let scored = tokens.iter().zip(scores).skip(1).map(|(token, by_id)| {
            let found = by_id.as_ref().and_then(|by_id| by_id.get(&token.to_string()));
            let logprob = found.ok_or_else(|| wrong(format!("none for token {token}")))?.logprob;
            logprob_defect(logprob).map_or(Ok(logprob), |defect| Err(wrong(defect)))
        });
        scored.collect()
    }

    /// Returns the new tokens of a choice. Fails if its index is not 0.
    fn chunk(&self, choice: &GenerateChoice) -> Result<TokenChunk, ServerError> {
        if choice.index != 0 {
            let found = choice.index;
            return Err(self.endpoint.invalid_answer(path::GENERATE, "the choice 0", found));
        }
        self.tokens(choice)
    }

    /// Returns the tokens of a choice with a log-probability each.
    pub(super) fn tokens(&self, choice: &GenerateChoice) -> Result<TokenChunk, ServerError> {
        let wrong = |expected: &str, found: String| {
            Err(self.endpoint.invalid_answer(path::GENERATE, expected, found))
        };
        let tokens = choice.token_ids.clone().unwrap_or_default();
        let content = choice.logprobs.as_ref().and_then(|logprobs| logprobs.content.as_deref());
        let content = content.unwrap_or_default();
        if !tokens.iter().eq(content.iter().map(|entry| &entry.token_id)) {
            let ids: Vec<_> = content.iter().map(|entry| entry.token_id).collect();
            return wrong("a log-probability for each token", format!("{tokens:?} and {ids:?}"));
        }
        let logprobs: Vec<f32> = content.iter().map(|entry| entry.logprob).collect();
        match logprobs.iter().find_map(|&logprob| logprob_defect(logprob)) {
            Some(defect) => wrong("log-probabilities that are numbers of at most 0", defect),
            None => Ok(TokenChunk { tokens, logprobs }),
        }
    }

    /// Returns the outcome of a choice; `None` if it has no finish reason, because the response continues.
    pub(super) fn outcome(&self, choice: &GenerateChoice) -> Result<Option<Outcome>, ServerError> {
        let Some(reason) = &choice.finish_reason else { return Ok(None) };
        let finish = Finish::parse(reason).ok_or_else(|| {
            let expected = "the finish reason stop, length or abort";
            self.endpoint.invalid_answer(path::GENERATE, expected, reason)
        })?;
        let labels =
            choice.weight_versions.as_deref().map(|spans| self.labels(spans)).transpose()?;
        Ok(Some(Outcome { finish, labels }))
    }

    /// Returns the label and the number of tokens of each span. Fails unless the spans follow each other without gaps.
    fn labels(&self, spans: &[WeightVersionSpan]) -> Result<Vec<(String, usize)>, ServerError> {
        let mut next = 0;
        let label = |span: &WeightVersionSpan| {
            let tokens = span.end.checked_sub(span.start).filter(|_| span.start == next)?;
            next = span.end;
            Some((span.version.clone(), tokens as usize))
        };
        spans.iter().map(label).collect::<Option<_>>().ok_or_else(|| {
            let expected = "`weight_versions` without gaps";
            self.endpoint.invalid_answer(path::GENERATE, expected, format_args!("{spans:?}"))
        })
    }

    /// Checks that the server's counts and labels cover exactly the tokens that were received.
    fn check_counts(
        &self,
        received: usize,
        counted: Option<u64>,
        outcome: &Outcome,
    ) -> Result<(), ServerError> {
        let labelled = outcome.labels.as_ref();
        let labelled =
            labelled.map(|labels| labels.iter().map(|(_, tokens)| *tokens as u64).sum::<u64>());
        match [counted, labelled].into_iter().flatten().find(|&count| count != received as u64) {
            Some(count) => {
                let expected = format!("the {count} tokens that the server counted");
                Err(self.endpoint.invalid_answer(path::GENERATE, &expected, received))
            }
            None => Ok(()),
        }
    }

    fn unfinished(&self) -> ServerError {
        let reason = "the stream ended before the response".to_owned();
        ServerError::Connection { server: self.endpoint.display_url(path::GENERATE), reason }
    }

    /// Returns the error that an event reports, or `otherwise` if it reports none.
    fn stream_error(&self, data: &str, otherwise: ServerError) -> ServerError {
        let Ok(ErrorResponse { error }) = serde_json::from_str(data) else { return otherwise };
        ServerError::Connection {
            server: self.endpoint.display_url(path::GENERATE),
            reason: self.endpoint.quote(&format!("the server ended the stream: {}", error.message)),
        }
    }

    fn expect(
        &self,
        path: &str,
        field: &str,
        expected: &str,
        found: &str,
    ) -> Result<(), ServerError> {
        if found == expected {
            return Ok(());
        }
        let expected = format!("`{field}` to be `{expected}`");
        Err(self.endpoint.invalid_answer(path, &expected, format_args!("`{found}`")))
    }
}

/// Adds to a client error (status 4xx) the setting or version `needed`, without which vLLM lacks the call.
fn advise(error: ServerError, needed: &str) -> ServerError {
    match error {
        ServerError::Status { server, status, message, retry_after }
            if status.is_client_error() =>
        {
            let message = format!("{message}; start vLLM with {needed}");
            ServerError::Status { server, status, message, retry_after }
        }
        error => error,
    }
}

/// Returns the streaming request for a call.
pub(crate) fn generate_request(call: &Call) -> GenerateRequest {
    GenerateRequest {
        request_id: Some(call.id.clone()),
        model: None,
        token_ids: call.prompt.clone(),
        sampling_params: sampling_params(call),
        stream: Some(true),
        stream_options: Some(StreamOptions { include_usage: true }),
        cache_salt: Some(call.cache_salt.clone()),
        ..GenerateRequest::default()
    }
}

/// Returns the sampling options of a call. A seed is never sent: it crashes the CPU engine of vLLM 0.32, and tokens depend on the server's
/// batches anyway.
fn sampling_params(Call { sampling, eos_token_ids, .. }: &Call) -> SamplingParams {
    SamplingParams {
        n: Some(1),
        temperature: Some(sampling.temperature),
        top_p: Some(sampling.top_p),
        top_k: Some(i64::from(sampling.top_k)),
        max_tokens: Some(sampling.max_new_tokens),
        min_tokens: Some(sampling.min_new_tokens),
        stop_token_ids: Some(eos_token_ids.to_vec()),
        logprobs: Some(0),
        detokenize: Some(false),
        ..SamplingParams::default()
    }
}

pub(super) fn score_request(tokens: &[i32], salt: &str) -> GenerateRequest {
    GenerateRequest {
        token_ids: tokens.to_vec(),
        sampling_params: SamplingParams {
            temperature: Some(1.0),
            max_tokens: Some(1),
            prompt_logprobs: Some(0),
            detokenize: Some(false),
            ..SamplingParams::default()
        },
        cache_salt: Some(salt.to_owned()),
        ..GenerateRequest::default()
    }
}

/// Returns the error message of the first worker that failed. A worker may fail although the call succeeds; its result is then a text.
fn worker_error(results: Vec<Value>) -> Option<String> {
    results.into_iter().find_map(|result| match result {
        Value::String(message) => Some(message),
        _ => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_error_of_any_worker_is_found() {
        let error = |results: &[Value]| worker_error(results.to_vec());
        let (done, failed) = (Value::Bool(true), Value::from("no such file"));
        assert_eq!(error(&[Value::Null, done.clone()]), None);
        assert_eq!(error(&[Value::Null, done, failed]).as_deref(), Some("no such file"));
    }

    #[test]
    fn the_error_of_a_stream_is_quoted_without_secrets() {
        let endpoint = Endpoint::new("http://user:password-of-stream@host", None);
        let client = VllmClient::new(endpoint.expect("a valid URL"), Limits::default());
        let message = format!("password-of-stream is wrong {}", "x".repeat(1000));
        let event = serde_json::json!({"error": {"message": message}}).to_string();
        let error = client.stream_error(&event, client.unfinished()).to_string();
        let expected = "http://host/inference/v1/generate: the server ended the stream: [redacted] is wrong xxx";
        assert!(error.starts_with(expected) && error.len() < 400, "{error}");
    }
}
