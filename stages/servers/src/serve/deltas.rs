//! The progress of a call's responses while they are sampled.

use std::sync::Arc;

use rollpacker_model::ModelError;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::serving::ServedToken;
use serde_json::Value;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::Service;
use super::choice::{ChoiceText, NewText};
use super::error::ApiError;
use super::job::{End, Job};
use super::options::Options;
use super::receive::{Forwarder, TokenEvent};
use super::requests::RequestGuard;

/// The progress of a choice.
#[derive(Debug, Default)]
pub(super) struct Delta {
    /// The index of the choice among the choices of all prompts of the call.
    pub(super) choice: u32,
    /// The new token; `None` if the choice ends without another token.
    pub(super) token: Option<ServedToken>,
    /// The new text, which may be empty.
    pub(super) text: String,
    /// The end of the choice; `None` if the choice continues.
    pub(super) end: Option<End>,
}

/// The stream of the new tokens and texts of a job's choices, in the order in which the engine reports them. Dropping it aborts the
/// requests that have not ended.
pub(super) struct Deltas {
    service: Arc<Service>,
    options: Options,
    /// The guards of the requests, one for each prompt. Dropping them with the stream aborts the requests that have not ended.
    running: Vec<RequestGuard>,
    received: UnboundedReceiver<TokenEvent>,
    /// Number of choices that have not ended.
    left: usize,
    choices: Vec<StreamedChoice>,
}

#[derive(Clone, Debug)]
struct StreamedChoice {
    /// The text of the choice; `None` if the caller requests neither text nor stop texts.
    text: Option<ChoiceText>,
    /// The last token; `None` before the first token.
    last: Option<i32>,
    ended: bool,
}

impl Deltas {
    /// Submits a job. Without `text`, tokens are not decoded, unless stop texts are searched.
    ///
    /// # Errors
    /// Returns an error if the job requests log-probabilities of prompts or samples no tokens, or the options are invalid for a prompt.
    pub(super) fn start(service: &Arc<Service>, job: &Job, text: bool) -> Result<Self, ApiError> {
        let options = job.options.clone();
        if options.prompt_logprobs.is_some() {
            let expected = "null with a stream or with stop texts";
            return Err(ApiError::parameter("prompt_logprobs", expected, "a number"));
        }
        if options.only_scores() {
            return Err(ApiError::parameter(
                "max_tokens",
                "at least 1 with a stream or stop texts",
                0,
            ));
        }
        let samplings = job.samplings(service)?;
        let (events, received) = unbounded_channel();
        let mut running = Vec::new();
        for (at, (prompt, sampling)) in (0..).zip(job.prompts.iter().zip(samplings)) {
            let (first, events) = (at * options.n, events.clone());
            running.push(service.submit(job, prompt, sampling, |timing| {
                Box::new(Forwarder { timing, first, events })
            }));
        }
        let left = job.choices();
        let has_text = text || !options.text.stop.is_empty();
        let text = has_text.then(|| ChoiceText::new(&options.text, options.min_tokens));
        let choices = vec![StreamedChoice { text, last: None, ended: false }; left];
        Ok(Self { service: Arc::clone(service), options, running, received, left, choices })
    }

    /// Returns the next progress; `None` after all choices have ended or after an error.
    pub(super) async fn next(&mut self) -> Option<Result<Delta, ApiError>> {
        while self.left > 0 {
            let delta = match self.received.recv().await {
                None => Err(self.service.stopped_error()),
                Some(TokenEvent::Failed(reason)) => Err(ApiError::internal(reason)),
                // Tokens that were sampled after a stop text, before the engine has ended the response.
                Some(TokenEvent::Token(choice, _) | TokenEvent::End(choice, _))
                    if self.choices[choice as usize].ended =>
                {
                    continue;
                }
                Some(TokenEvent::Token(choice, token)) => self.token(choice, token),
                Some(TokenEvent::End(choice, reason)) => self.end(choice, reason),
            };
            match &delta {
                // A failed stream has no more events.
                Err(_) => self.left = 0,
                Ok(delta) if delta.end.is_some() => self.left -= 1,
                Ok(_) => {}
            }
            return Some(delta);
        }
        None
    }

    fn token(&mut self, number: u32, token: ServedToken) -> Result<Delta, ApiError> {
        let has_text = self.service.is_text(&self.options, token.id);
        let choice = &mut self.choices[number as usize];
        choice.last = Some(token.id);
        let tokenizer = &self.service.encoder.tokenizer;
        let text = choice.text.as_mut().filter(|_| has_text);
        let new = text.map(|text| text.push(tokenizer, token.id));
        let NewText { text, stop } = decoded(new)?;
        let end = stop.map(|stop| self.stopped_at(number, stop));
        if end.is_some() {
            let n = self.options.n;
            let request = &self.running[(number / n) as usize];
            self.service.engine.abort_sample(request.id, number % n);
        }
        Ok(Delta { choice: number, token: Some(token), text, end })
    }

    fn end(&mut self, number: u32, reason: FinishReason) -> Result<Delta, ApiError> {
        let choice = &mut self.choices[number as usize];
        choice.ended = true;
        let tokenizer = &self.service.encoder.tokenizer;
        let NewText { text, stop } =
            decoded(choice.text.as_mut().map(|text| text.finish(tokenizer)))?;
        let end = match stop {
            Some(stop) => self.stopped_at(number, stop),
            None => self.service.response_end(&self.options, reason, choice.last),
        };
        Ok(Delta { choice: number, token: None, text, end: Some(end) })
    }

    fn stopped_at(&mut self, number: u32, stop: String) -> End {
        self.choices[number as usize].ended = true;
        End { reason: FinishReason::Stop, stop: Some(Value::from(stop)) }
    }
}

fn decoded(new: Option<Result<NewText, ModelError>>) -> Result<NewText, ApiError> {
    new.transpose().map_err(ApiError::internal).map(Option::unwrap_or_default)
}
