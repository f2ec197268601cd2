//! A running probe: its server, its forward pass and its findings.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;
use tokio::sync::watch;

use super::finding::{Checked, Finding};
use super::report::{Check, ProbeReport};
use super::{ProbeConfig, ReferenceModel, nonce};
use crate::canary::{CanaryFigures, Proven};
use crate::http::ServerError;
use crate::server::{Call, CallSampling, Identity, Outcome, Piece, Pulse, retried};
use crate::vllm::protocol::{PauseMode, SamplingParams};
use crate::vllm::{VllmClient, WholeResponse, generate_request};
use crate::weights::salt;

/// The most tokens of a response that is ended from outside.
const LONG: u64 = 2048;
/// The assumed context of a server that does not report it.
const CONTEXT: u64 = 1024;

/// A running probe.
pub(super) struct ProbeSession {
    pub(super) config: ProbeConfig,
    pub(super) client: VllmClient,
    pub(super) model: Box<dyn ReferenceModel>,
    pub(super) nonce: u64,
    pulse: Pulse,
    identity: Option<Identity>,
    calls: Cell<u64>,
    findings: Vec<(Check, Finding)>,
    /// The differences between the server's log-probabilities and the program's, once they were found to be within bounds.
    pub(super) noise: Option<CanaryFigures>,
    pub(super) traces: Traces,
}

/// The changes of the server that must be undone.
#[derive(Default)]
pub(super) struct Traces {
    /// `true` if the server may be paused.
    pub(super) paused: Cell<bool>,
    /// The first label, if the server may have another one.
    pub(super) label: RefCell<Option<String>>,
    /// The first weights, if the server may have others.
    pub(super) weights: RefCell<Option<FirstWeights>>,
}

/// The weights that the server was started with.
#[derive(Clone)]
pub(super) struct FirstWeights {
    /// Their label.
    pub(super) label: Option<String>,
    /// The program's scores of the canary.
    pub(super) reference: Arc<[f32]>,
    /// The weights that the server may have instead.
    pub(super) others: Option<Proven>,
}

/// A response that was streamed.
pub(super) struct Streamed {
    pub(super) sampled: Piece,
    pub(super) outcome: Outcome,
}

impl ProbeSession {
    pub(super) fn new(
        config: ProbeConfig,
        client: VllmClient,
        model: Box<dyn ReferenceModel>,
    ) -> Self {
        Self {
            pulse: Pulse::new(config.limits),
            nonce: nonce(),
            config,
            client,
            model,
            identity: None,
            calls: Cell::new(0),
            findings: Vec::new(),
            noise: None,
            traces: Traces::default(),
        }
    }

    /// Runs all checks.
    ///
    /// # Errors
    /// If the server does not answer, or is not ready.
    pub(super) async fn run(&mut self) -> Result<(), ServerError> {
        match self.client.identity().await {
            Err(error) if error.is_retryable() => return Err(error),
            Err(error) => {
                self.record(Check::Health, Err(error.into()));
                return Ok(());
            }
            Ok(identity) => self.identity = Some(identity),
        }
        let (model, context) = (self.check_model(), self.check_context());
        self.record(Check::Model, model);
        self.record(Check::Context, context);
        let is_paused = self.client.check_calls().await;
        if matches!(is_paused, Ok(true)) {
            self.record(Check::Health, Err(Finding::failed("the server is paused")));
            return Ok(());
        }
        self.record(Check::Health, Ok(Finding::passed("the server answers")));
        let calls = is_paused.map(|_| Finding::passed("all calls of training are there"));
        self.record(Check::Calls, calls.map_err(Finding::from));
        self.check_tokens().await;
        self.check_sampling().await;
        self.check_control().await;
        self.check_update().await;
        let errors = self.errors().await;
        self.record(Check::Errors, errors);
        Ok(())
    }

    fn check_model(&self) -> Checked {
        let found = self.identity.as_ref().map_or("", |identity| &identity.model);
        match self.config.model.as_deref() {
            Some(expected) if found != expected => {
                Err(Finding::failed(format!("expected the model `{expected}`, found `{found}`")))
            }
            _ => Ok(Finding::passed(format!("`{found}`"))),
        }
    }

    fn check_context(&self) -> Checked {
        let Some(most) = self.identity.as_ref().and_then(|identity| identity.max_tokens) else {
            return Ok(Finding::passed("the server does not tell its limit"));
        };
        let wanted = self.config.longest.unwrap_or(0);
        let lacking = self.identity.as_ref().and_then(|identity| identity.lacks_room(wanted));
        let details = match wanted {
            0 => "tokens of prompt and response".to_owned(),
            _ => format!("expected room for {wanted} tokens of prompt and response"),
        };
        Ok(Finding::of(lacking.is_none(), details).figure("most", most as f64))
    }

    pub(super) fn record(&mut self, check: Check, finding: Checked) {
        self.findings.retain(|(of, _)| *of != check);
        self.findings.push((check, finding.unwrap_or_else(|finding| finding)));
    }

    /// Returns `true` if a check that was run has passed.
    pub(super) fn passed(&self, check: Check) -> bool {
        self.findings.iter().any(|(of, finding)| *of == check && finding.has_passed())
    }

    pub(super) fn report(&self, interrupted: bool) -> ProbeReport {
        ProbeReport::new(self.client.endpoint().name(), interrupted, &self.findings)
    }

    /// Leaves the server as it was. What has been undone already is not done again.
    pub(super) async fn leave(&mut self) {
        if self.traces.weights.borrow().is_some() {
            let restored = self.restore().await;
            self.record(Check::WeightsRestored, restored);
        }
        let label = self.traces.label.borrow().clone();
        let undone = async {
            if self.traces.paused.get() {
                self.resume().await?;
            }
            if let Some(label) = label {
                self.set_first_label(&label).await?;
            }
            Ok::<_, ServerError>(())
        };
        if let Err(error) = undone.await {
            let details = format!("the server may still be paused or have another label: {error}");
            self.record(Check::WeightsRestored, Err(Finding::failed(details)));
        }
    }

    pub(super) async fn pause(&self, mode: PauseMode) -> Result<(), ServerError> {
        self.traces.paused.set(true);
        let paused = retried(|| self.client.pause(mode)).await;
        if paused.as_ref().is_err_and(ServerError::is_missing) {
            self.traces.paused.set(false);
        }
        paused
    }

    pub(super) async fn resume(&self) -> Result<(), ServerError> {
        retried(|| self.client.resume()).await?;
        self.traces.paused.set(false);
        Ok(())
    }

    pub(super) async fn set_first_label(&self, label: &str) -> Result<(), ServerError> {
        retried(|| self.client.label(label)).await?;
        self.traces.label.replace(None);
        Ok(())
    }

    /// The tokens of the canary.
    pub(super) fn canary(&self) -> &[i32] {
        &self.config.canary.tokens
    }

    /// Returns the first half of the canary, as a prompt.
    pub(super) fn prompt(&self) -> Vec<i32> {
        self.canary()[..self.canary().len() / 2].to_vec()
    }

    /// Returns the most tokens of prompt and response.
    pub(super) fn context(&self) -> u64 {
        self.identity.as_ref().and_then(|identity| identity.max_tokens).unwrap_or(CONTEXT)
    }

    /// Returns the number of tokens for a response that is ended from outside.
    pub(super) fn long(&self) -> u32 {
        let room = self.context().saturating_sub(self.canary().len() as u64);
        u32::try_from(room.clamp(1, LONG)).unwrap_or(1)
    }

    /// Returns the salt of the KV cache, by the rule of the engine: 0 for the first weights, other numbers for others.
    pub(super) fn salt(&self, version: u64) -> String {
        let (version, digest) = (PolicyVersion(version), self.nonce);
        salt(&Policy { version, location: String::new(), digest })
    }

    /// Creates a call for a response of exactly `tokens` tokens.
    pub(super) fn call(&self, prompt: Vec<i32>, temperature: f64, tokens: u32) -> Call {
        self.calls.set(self.calls.get() + 1);
        Call {
            id: format!("probe-{:016x}-{}", self.nonce, self.calls.get()),
            prompt,
            sampling: CallSampling {
                temperature,
                top_p: 1.0,
                top_k: 0,
                min_tokens: tokens,
                max_tokens: tokens,
                ends: [].into(),
            },
            cache_salt: self.salt(0),
        }
    }

    /// Makes a call without streaming, with changed options.
    pub(super) async fn whole(
        &self,
        call: &Call,
        change: impl FnOnce(&mut SamplingParams),
    ) -> Result<Vec<WholeResponse>, ServerError> {
        let mut request = generate_request(call);
        (request.stream, request.stream_options) = (None, None);
        change(&mut request.sampling_params);
        self.client.whole(&request).await
    }

    /// Returns the only response to a call without streaming.
    pub(super) async fn one(
        &self,
        call: &Call,
        change: impl FnOnce(&mut SamplingParams),
    ) -> Result<WholeResponse, Finding> {
        let mut responses = self.whole(call, change).await?;
        match (responses.pop(), responses.len()) {
            (Some(response), 0) => Ok(response),
            (_, more) => Err(Finding::failed(format!("expected 1 response, found {}", more + 1))),
        }
    }

    /// Makes a call as the engine does. `progress` has the number of tokens so far, and is closed with the end.
    pub(super) async fn streamed(
        &self,
        call: &Call,
        progress: watch::Sender<usize>,
    ) -> Result<Streamed, Finding> {
        let mut sampled = Piece::default();
        let mut sink = |piece: Piece| {
            progress.send_modify(|tokens| *tokens += piece.tokens.len());
            sampled.tokens.extend(piece.tokens);
            sampled.logprobs.extend(piece.logprobs);
        };
        let outcome = self.client.generate(call, &self.pulse, &mut sink).await?;
        Ok(Streamed { sampled, outcome })
    }

    /// Returns the program's score of each token of a response.
    pub(super) fn own_scores(&self, prompt: &[i32], response: &[i32]) -> Result<Vec<f32>, Finding> {
        let scores = self.model.score(&[prompt, response].concat()).map_err(own)?;
        Ok(scores[prompt.len() - 1..].to_vec())
    }

    /// Returns the difference of two log-probabilities, in nats, that both implementations may see in another order.
    pub(super) fn tolerance(&self) -> f64 {
        self.noise.map_or(0.1, |noise| 4.0 * noise.max) + 1e-3
    }
}

/// Returns the finding if the program's own forward pass fails.
pub(super) fn own(reason: String) -> Finding {
    Finding::unchecked(format!("the program's own forward pass failed: {reason}"))
}
