//! Receivers of sampled tokens, which the engine calls on its own threads.

use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::serving::{ServedToken, TokenLogprob, TokenReceiver};
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::metrics::Metrics;

/// A response that has ended.
#[derive(Clone, Debug)]
pub(super) struct Sampled {
    pub(super) tokens: Vec<ServedToken>,
    pub(super) reason: FinishReason,
}

/// All responses to a prompt, and the log-probabilities of the prompt if requested.
#[derive(Debug, Default)]
pub(super) struct Collected {
    pub(super) prompt: Option<Vec<TokenLogprob>>,
    pub(super) responses: Vec<Sampled>,
}

/// An event of the responses of a call. The `u32` is the index of the response among the responses to all prompts of the call.
#[derive(Debug)]
pub(super) enum TokenEvent {
    Token(u32, ServedToken),
    End(u32, FinishReason),
    /// The engine has failed; the text is the reason.
    Failed(String),
}

pub(super) struct Timing {
    pub(super) clock: Arc<dyn Clock>,
    pub(super) metrics: Arc<Metrics>,
    /// The time of the request.
    pub(super) begun: Nanos,
    /// `true` once the request has a token.
    pub(super) has_token: bool,
}

impl Timing {
    fn token(&mut self) {
        if !std::mem::replace(&mut self.has_token, true) {
            self.metrics.record_first_token(self.clock.now().since(self.begun));
        }
    }

    fn end(&self, reason: FinishReason) {
        self.metrics.record_end(reason, self.clock.now().since(self.begun));
    }
}

/// Collects the responses to a prompt and sends them together, or sends the reason of the engine's failure.
pub(super) struct Collector {
    pub(super) timing: Timing,
    /// The log-probabilities of the prompt tokens from the second on; `None` unless the engine has reported them.
    pub(super) prompt: Option<Vec<TokenLogprob>>,
    /// The tokens of each sample.
    pub(super) tokens: Vec<Vec<ServedToken>>,
    /// The finish reason of each sample; `None` while the sample continues.
    pub(super) ended: Vec<Option<FinishReason>>,
    /// The channel of the responses; `None` after the responses or a failure were sent.
    pub(super) done: Option<oneshot::Sender<Result<Collected, String>>>,
}

impl Collector {
    pub(super) fn new(
        samples: u32,
        timing: Timing,
        done: oneshot::Sender<Result<Collected, String>>,
    ) -> Self {
        let samples = samples as usize;
        let (tokens, ended) = (vec![Vec::new(); samples], vec![None; samples]);
        Self { timing, prompt: None, tokens, ended, done: Some(done) }
    }

    /// Sends the responses if all samples have ended.
    fn send_if_done(&mut self) {
        let Some(ended) = self.ended.iter().copied().collect::<Option<Vec<_>>>() else { return };
        let responses = std::mem::take(&mut self.tokens).into_iter().zip(ended);
        let responses = responses.map(|(tokens, reason)| Sampled { tokens, reason }).collect();
        let prompt = self.prompt.take();
        self.send(Ok(Collected { prompt, responses }));
    }

    fn send(&mut self, outcome: Result<Collected, String>) {
        if let Some(done) = self.done.take() {
            let _client_is_gone = done.send(outcome);
        }
    }
}

impl TokenReceiver for Collector {
    fn prompt(&mut self, logprobs: Vec<TokenLogprob>) {
        self.prompt = Some(logprobs);
        // A request without samples only scores its prompt.
        self.send_if_done();
    }

    fn token(&mut self, sample: u32, token: ServedToken) {
        self.timing.token();
        self.tokens[sample as usize].push(token);
    }

    fn end(&mut self, sample: u32, reason: FinishReason) {
        self.timing.end(reason);
        self.ended[sample as usize] = Some(reason);
        self.send_if_done();
    }

    fn fail(&mut self, reason: &str) {
        self.send(Err(reason.to_owned()));
    }
}

/// Sends each token when it is sampled, each end of a response, and a failure of the engine. Log-probabilities of the prompt are dropped.
pub(super) struct Forwarder {
    pub(super) timing: Timing,
    /// The index of the response of sample 0 among the responses to all prompts of the call.
    pub(super) first: u32,
    pub(super) events: UnboundedSender<TokenEvent>,
}

impl Forwarder {
    fn send(&self, event: TokenEvent) {
        let _client_is_gone = self.events.send(event);
    }
}

impl TokenReceiver for Forwarder {
    fn prompt(&mut self, _logprobs: Vec<TokenLogprob>) {}

    fn token(&mut self, sample: u32, token: ServedToken) {
        self.timing.token();
        self.send(TokenEvent::Token(self.first + sample, token));
    }

    fn end(&mut self, sample: u32, reason: FinishReason) {
        self.timing.end(reason);
        self.send(TokenEvent::End(self.first + sample, reason));
    }

    fn fail(&mut self, reason: &str) {
        self.send(TokenEvent::Failed(reason.to_owned()));
    }
}
