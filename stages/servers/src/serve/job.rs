//! The prompts of a call, which are submitted to the engine, and their responses.

use std::sync::Arc;

use axum::http::StatusCode;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::serving::{Generation, ServedToken, TokenLogprob, TokenReceiver};
use serde_json::Value;
use tokio::sync::oneshot;

use super::Service;
use super::deltas::{Delta, Deltas};
use super::error::ApiError;
use super::options::Options;
use super::receive::{Collected, Collector, Sampled, Timing};
use super::requests::RequestGuard;
use crate::vllm::protocol::Usage;

/// The prompts and options of a call.
pub(super) struct Job {
    /// The id that the client receives.
    pub(super) id: Arc<str>,
    pub(super) prompts: Vec<Arc<[i32]>>,
    pub(super) options: Options,
}

#[derive(Debug, Default)]
pub(super) struct PromptResponses {
    /// The log-probabilities of the prompt tokens from the second on; `None` if they were not requested.
    pub(super) prompt: Option<Vec<TokenLogprob>>,
    pub(super) choices: Vec<Choice>,
}

/// A response that has ended.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    pub(super) tokens: Vec<ServedToken>,
    pub(super) text: String,
    pub(super) end: End,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct End {
    pub(super) reason: FinishReason,
    /// The stop text or stop token that ended the response. `None` if neither did, or if the token is an end-of-sequence token of the model
    /// that the request does not ignore.
    pub(super) stop: Option<Value>,
}

impl Choice {
    /// Returns the choice of a request that only scores its prompt.
    fn unsampled() -> Self {
        let end = End { reason: FinishReason::Length, stop: None };
        Self { tokens: Vec::new(), text: String::new(), end }
    }
}

impl Job {
    /// Returns the sampling options of each prompt. Fails if the options are invalid for a prompt.
    pub(super) fn samplings(&self, service: &Service) -> Result<Vec<Sampling>, ApiError> {
        let limits = service.engine.limits();
        self.prompts.iter().map(|prompt| self.options.sampling_for_prompt(prompt, limits)).collect()
    }

    /// Returns the number of choices of all prompts.
    pub(super) fn choices(&self) -> usize {
        self.prompts.len() * self.options.n as usize
    }

    /// Returns the numbers of tokens of the prompts and of the responses, which have `completion_tokens` tokens in total.
    pub(super) fn usage(&self, completion_tokens: usize) -> Usage {
        let prompt_tokens = self.prompts.iter().map(|prompt| prompt.len() as u64).sum();
        let completion_tokens = completion_tokens as u64;
        let total_tokens = prompt_tokens + completion_tokens;
        Usage { prompt_tokens, completion_tokens, total_tokens }
    }
}

impl Service {
    /// Submits a prompt of a job. `receiver` creates the receiver of the tokens, which reports their times to the given [`Timing`].
    /// Dropping the returned guard aborts the request.
    pub(super) fn submit(
        &self,
        job: &Job,
        prompt: &Arc<[i32]>,
        sampling: Sampling,
        receiver: impl FnOnce(Timing) -> Box<dyn TokenReceiver>,
    ) -> RequestGuard {
        self.metrics.record_prompt(prompt.len());
        let running = self.requests.register(&job.id);
        let (clock, metrics) = (Arc::clone(&self.clock), Arc::clone(&self.metrics));
        let timing = Timing { begun: clock.now(), clock, metrics, has_token: false };
        let options = &job.options;
        self.engine.generate(Generation {
            id: running.id,
            prompt_ids: Arc::clone(prompt),
            samples: if options.only_scores() { 0 } else { options.n },
            sampling,
            ends: options.ends.clone(),
            seed: options.seed,
            logprobs: options.logprobs,
            prompt_logprobs: options.prompt_logprobs,
            receiver: receiver(timing),
        });
        running
    }

    /// Submits a job and returns all its responses, by prompt. Without `text`, tokens are not decoded, unless stop texts are searched.
    /// Fails if the options are invalid for a prompt, the engine fails or stops, or tokens cannot be decoded. Also fails if the job has
    /// stop texts and requests log-probabilities of prompts or samples no tokens. Dropping the future aborts the requests.
    pub(super) async fn generate_all(
        self: &Arc<Self>,
        job: &Job,
        text: bool,
    ) -> Result<Vec<PromptResponses>, ApiError> {
        if job.options.text.stop.is_empty() {
            return self.collect(job, text).await;
        }
        // Stop texts are searched while tokens are sampled.
        let mut deltas = Deltas::start(self, job, text)?;
        let n = job.options.n as usize;
        let mut parts: Vec<(Vec<ServedToken>, String)> = vec![Default::default(); job.choices()];
        let mut ends = vec![None; job.choices()];
        while let Some(delta) = deltas.next().await {
            let Delta { choice, token, text, end } = delta?;
            let (tokens, all) = &mut parts[choice as usize];
            tokens.extend(token);
            *all += &text;
            ends[choice as usize] = end.or(ends[choice as usize].take());
        }
        let choices = parts.into_iter().zip(ends);
        let choices: Option<Vec<Choice>> =
            choices.map(|((tokens, text), end)| Some(Choice { tokens, text, end: end? })).collect();
        let choices = choices.ok_or_else(|| ApiError::internal("a response did not end"))?;
        let answer =
            |choices: &[Choice]| PromptResponses { prompt: None, choices: choices.to_vec() };
        Ok(choices.chunks(n).map(answer).collect())
    }

    async fn collect(&self, job: &Job, text: bool) -> Result<Vec<PromptResponses>, ApiError> {
        let samplings = job.samplings(self)?;
        let submitted = job.prompts.iter().zip(samplings).map(|(prompt, sampling)| {
            let (done, collected) = oneshot::channel();
            let samples = if job.options.only_scores() { 0 } else { job.options.n };
            let running = self.submit(job, prompt, sampling, |timing| {
                Box::new(Collector::new(samples, timing, done))
            });
            (running, collected)
        });
        let submitted: Vec<_> = submitted.collect();
        let mut answers = Vec::with_capacity(submitted.len());
        for (_running, collected) in submitted {
            let collected = collected.await.map_err(|_dropped| self.stopped_error())?;
            let Collected { prompt, responses } = collected.map_err(ApiError::internal)?;
            let choices = if job.options.only_scores() {
                vec![Choice::unsampled(); job.options.n as usize]
            } else {
                let choices = responses.into_iter();
                let choices = choices.map(|sampled| self.decode_choice(job, sampled, text));
                choices.collect::<Result<_, _>>()?
            };
            answers.push(PromptResponses { prompt, choices });
        }
        Ok(answers)
    }

    fn decode_choice(&self, job: &Job, sampled: Sampled, text: bool) -> Result<Choice, ApiError> {
        let Sampled { tokens, reason } = sampled;
        let end = self.response_end(&job.options, reason, tokens.last().map(|token| token.id));
        let ids = tokens.iter().map(|token| token.id);
        let ids: Vec<i32> = ids.filter(|id| self.is_text(&job.options, *id)).collect();
        let text = if text {
            let skip_special = job.options.text.skip_special;
            self.encoder.tokenizer.decode(&ids, skip_special).map_err(ApiError::internal)?
        } else {
            String::new()
        };
        Ok(Choice { tokens, text, end })
    }

    /// Returns `true` if a token is part of the text. A token that ends a response is not part of the text, unless the client requests stop
    /// texts in the output.
    pub(super) fn is_text(&self, options: &Options, token: i32) -> bool {
        options.text.include_stop || !options.is_end(token, self.engine.limits())
    }

    /// Returns the end of a response whose last token is `last`. Its `stop` is this token if a stop token of the request ended the
    /// response. `None` if the response has another finish reason, or if the token is an end-of-sequence token of the model that the
    /// request does not ignore.
    pub(super) fn response_end(
        &self,
        options: &Options,
        reason: FinishReason,
        last: Option<i32>,
    ) -> End {
        let limits = self.engine.limits();
        let is_stop = |id: &i32| reason == FinishReason::Stop && !options.is_eos(*id, limits);
        End { reason, stop: last.filter(is_stop).map(Value::from) }
    }

    pub(super) fn stopped_error(&self) -> ApiError {
        let reason = self.engine.failure().unwrap_or_else(|| "the server is stopping".to_owned());
        ApiError::new(StatusCode::SERVICE_UNAVAILABLE, reason)
    }
}
