//! A running probe: the server, the program's model and the findings.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::rollout::sampling::Sampling;
use tokio::sync::watch;

use super::finding::{Checked, Finding};
use super::report::{Check, ProbeReport};
use super::{ProbeConfig, ReferenceModel, nonce};
use crate::canary::{CanaryFigures, VerifiedDelivery};
use crate::http::ServerError;
use crate::server::{Call, Identity, Outcome, StallDetector, TokenChunk, with_retries};
use crate::vllm::protocol::{PauseMode, SamplingParams};
use crate::vllm::{CompleteResponse, VllmClient, generate_request};
use crate::weights::salt;

/// The maximum length, in tokens, of a response that an abort or a pause is to end.
const MAX_LONG_RESPONSE: u64 = 2048;
/// The assumed context, in tokens, of a server that does not report it.
const DEFAULT_CONTEXT: u64 = 1024;

pub(super) struct ProbeSession {
    pub(super) config: ProbeConfig,
    pub(super) client: VllmClient,
    pub(super) model: Box<dyn ReferenceModel>,
    pub(super) nonce: u64,
    stall_detector: StallDetector,
    identity: Option<Identity>,
    calls: Cell<u64>,
    findings: Vec<(Check, Finding)>,
    /// The differences between the server's log-probabilities and the program's log-probabilities; `None` unless the check of the
    /// log-probabilities has passed.
    pub(super) noise: Option<CanaryFigures>,
    pub(super) undo: PendingUndo,
}

/// The changes to the server that must be undone.
#[derive(Default)]
pub(super) struct PendingUndo {
    /// `true` if the server may be paused.
    pub(super) paused: Cell<bool>,
    /// The label to restore, which the server had before the probe set another; `None` if no label needs to be restored.
    pub(super) label: RefCell<Option<String>>,
    /// The weights to restore, with which the server was started; `None` if no weights need to be restored.
    pub(super) weights: RefCell<Option<FirstWeights>>,
}

/// The weights that the server was started with.
#[derive(Clone)]
pub(super) struct FirstWeights {
    pub(super) label: String,
    /// The program's scores of the canary under these weights.
    pub(super) reference: Arc<[f32]>,
    /// The program's scores of the canary under the perturbed weights, and the server's usual difference from the program. They show
    /// whether the server still has these weights. `None` before these weights are written.
    pub(super) perturbed: Option<VerifiedDelivery>,
}

pub(super) struct StreamedResponse {
    pub(super) sampled: TokenChunk,
    pub(super) outcome: Outcome,
}

impl ProbeSession {
    pub(super) fn new(
        config: ProbeConfig,
        client: VllmClient,
        model: Box<dyn ReferenceModel>,
    ) -> Self {
        Self {
            stall_detector: StallDetector::new(config.limits),
            nonce: nonce(),
            config,
            client,
            model,
            identity: None,
            calls: Cell::new(0),
            findings: Vec::new(),
            noise: None,
            undo: PendingUndo::default(),
        }
    }

    /// Runs all checks. If the call for the health or the list of models fails with a permanent error, or the server is paused, the
    /// remaining checks are not run.
    ///
    /// # Errors
    /// Returns an error if the server does not answer, or is not ready.
    pub(super) async fn run(&mut self) -> Result<(), ServerError> {
        match self.client.endpoint().identity(self.client.call_limit()).await {
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
        let errors = self.check_errors().await;
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
        let Some(max) = self.identity.as_ref().and_then(|identity| identity.max_tokens) else {
            return Ok(Finding::passed("the server does not report its limit"));
        };
        let wanted = self.config.max_length.unwrap_or(0);
        let lacking = self.identity.as_ref().and_then(|identity| identity.exceeded_limit(wanted));
        let details = match wanted {
            0 => "tokens of prompt and response".to_owned(),
            _ => format!("expected room for {wanted} tokens of prompt and response"),
        };
        Ok(Finding::passed_if(lacking.is_none(), details).figure("max", max as f64))
    }

    pub(super) fn record(&mut self, check: Check, finding: Checked) {
        self.findings.retain(|(of, _)| *of != check);
        self.findings.push((check, finding.unwrap_or_else(|finding| finding)));
    }

    /// Returns `true` if `check` was run and passed.
    pub(super) fn passed(&self, check: Check) -> bool {
        self.findings.iter().any(|(of, finding)| *of == check && finding.has_passed())
    }

    pub(super) fn report(&self, interrupted: bool) -> ProbeReport {
        ProbeReport::new(self.client.endpoint().name(), interrupted, &self.findings)
    }

    /// Restores the weights, the label and the unpaused state of the server, as far as they have not been restored yet. Records a failure
    /// as the finding of [`Check::WeightsRestored`].
    pub(super) async fn restore_server(&mut self) {
        if self.undo.weights.borrow().is_some() {
            let restored = self.restore().await;
            self.record(Check::WeightsRestored, restored);
        }
        let label = self.undo.label.borrow().clone();
        let undone = async {
            if self.undo.paused.get() {
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
        self.undo.paused.set(true);
        let paused = with_retries(|| self.client.pause(mode)).await;
        if paused.as_ref().is_err_and(ServerError::is_missing) {
            self.undo.paused.set(false);
        }
        paused
    }

    pub(super) async fn resume(&self) -> Result<(), ServerError> {
        with_retries(|| self.client.resume()).await?;
        self.undo.paused.set(false);
        Ok(())
    }

    pub(super) async fn set_first_label(&self, label: &str) -> Result<(), ServerError> {
        with_retries(|| self.client.label(label)).await?;
        self.undo.label.replace(None);
        Ok(())
    }

    pub(super) fn canary(&self) -> &[i32] {
        &self.config.canary.tokens
    }

    /// Returns the first half of the canary, as a prompt.
    pub(super) fn prompt(&self) -> Vec<i32> {
        self.canary()[..self.canary().len() / 2].to_vec()
    }

    /// Returns the maximum number of tokens of prompt and response, or `DEFAULT_CONTEXT` if the server does not report it.
    pub(super) fn context(&self) -> u64 {
        self.identity.as_ref().and_then(|identity| identity.max_tokens).unwrap_or(DEFAULT_CONTEXT)
    }

    /// Returns the length, in tokens, for a response that an abort or a pause is to end: `MAX_LONG_RESPONSE`, or less if the context has
    /// less room.
    pub(super) fn long_response_tokens(&self) -> u32 {
        let room = self.context().saturating_sub(self.canary().len() as u64);
        u32::try_from(room.clamp(1, MAX_LONG_RESPONSE)).unwrap_or(1)
    }

    /// Returns the salt of the KV cache, in the engine's format. Different weights must not have the same salt: the probe uses the
    /// `version` 0 for the first weights, 1 for the perturbed weights, and 2 for the first weights after a load.
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
            sampling: Sampling {
                temperature,
                min_new_tokens: tokens,
                ..Sampling::unrestricted(tokens)
            },
            eos_token_ids: [].into(),
            cache_salt: self.salt(0),
        }
    }

    /// Makes a call without streaming, after `change` has changed the sampling options of the request. Returns the responses in the order
    /// of their indices.
    pub(super) async fn generate_unstreamed(
        &self,
        call: &Call,
        change: impl FnOnce(&mut SamplingParams),
    ) -> Result<Vec<CompleteResponse>, ServerError> {
        let mut request = generate_request(call);
        (request.stream, request.stream_options) = (None, None);
        change(&mut request.sampling_params);
        self.client.generate_unstreamed(&request).await
    }

    /// Returns the response to a call without streaming. Fails if the server does not return exactly one.
    pub(super) async fn generate_one(
        &self,
        call: &Call,
        change: impl FnOnce(&mut SamplingParams),
    ) -> Result<CompleteResponse, Finding> {
        let mut responses = self.generate_unstreamed(call, change).await?;
        match (responses.pop(), responses.len()) {
            (Some(response), 0) => Ok(response),
            (_, more) => Err(Finding::failed(format!("expected 1 response, found {}", more + 1))),
        }
    }

    /// Makes a call as the engine does. `progress` has the number of tokens so far, and is closed when the call ends.
    pub(super) async fn generate_streamed(
        &self,
        call: &Call,
        progress: watch::Sender<usize>,
    ) -> Result<StreamedResponse, Finding> {
        let mut sampled = TokenChunk::default();
        let mut sink = |chunk: TokenChunk| {
            progress.send_modify(|tokens| *tokens += chunk.tokens.len());
            sampled.tokens.extend(chunk.tokens);
            sampled.logprobs.extend(chunk.logprobs);
        };
        let outcome = self.client.generate(call, &self.stall_detector, &mut sink).await?;
        Ok(StreamedResponse { sampled, outcome })
    }

    /// Returns the program's log-probability of each token of a response, in nats. `prompt` must not be empty.
    pub(super) fn model_scores(
        &self,
        prompt: &[i32],
        response: &[i32],
    ) -> Result<Vec<f32>, Finding> {
        let scores = self.model.score(&[prompt, response].concat()).map_err(model_failure)?;
        Ok(scores[prompt.len() - 1..].to_vec())
    }

    /// Returns the difference of two log-probabilities, in nats, up to which the server and the program may rank the two tokens
    /// differently.
    pub(super) fn tolerance(&self) -> f64 {
        self.noise.map_or(0.1, |noise| 4.0 * noise.max) + 1e-3
    }
}

/// Returns the finding for a failure of the program's own forward pass.
pub(super) fn model_failure(reason: String) -> Finding {
    Finding::unchecked(format!("the program's own forward pass failed: {reason}"))
}
