//! The task that brings a server into rotation: it checks the model, delivers the weights, and verifies that they arrived.

use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_stages::rollout::Policy;

use super::config::ServersConfig;
use super::measurements::Phases;
use crate::canary::{CanaryFigures, VerifiedDelivery};
use crate::http::ServerError;
use crate::server::{Identity, Server, StallDetector, with_retries};
use crate::vllm::protocol::PauseMode;
use crate::weights::{WeightError, WeightFolder, salt};

/// Weights that are ready to be loaded.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) policy: Policy,
    pub(super) folder: WeightFolder,
    /// The trainer's scores of the canary under these weights.
    pub(super) reference: Arc<[f32]>,
    /// The time to write the folder and to score the canary with the trainer's weights.
    pub(super) write: Nanos,
}

impl Delivery {
    /// Returns the label of the weights on servers: the number of the version.
    pub(super) fn label(&self) -> String {
        self.policy.version.0.to_string()
    }

    /// Returns the salt of the KV cache. The salt contains the digest of the weights, because a resumed run may produce other weights of
    /// the same version.
    pub(super) fn salt(&self) -> String {
        salt(&self.policy)
    }
}

/// The reason why a delivery to a server failed.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    #[error(transparent)]
    Call(#[from] ServerError),
    /// The server has another model than the engine expects.
    #[error("{server}: expected the model `{expected}`, found `{found}`")]
    Model { server: String, expected: String, found: String },
    /// The canary failed again after the weights were loaded a second time.
    #[error("{server} does not use the weights of {policy} after loading them twice: {figures}")]
    Canary { server: String, policy: String, figures: CanaryFigures },
    /// The file of the weights is damaged or cannot be read.
    #[error(transparent)]
    Folder(#[from] WeightError),
}

pub(super) struct WeightDeliveryTask {
    pub(super) server: Server,
    pub(super) stall_detector: Arc<StallDetector>,
    pub(super) delivery: Arc<Delivery>,
    pub(super) config: Arc<ServersConfig>,
    pub(super) clock: Arc<dyn Clock>,
    /// The expected name of the model.
    pub(super) model: String,
    pub(super) mode: PauseMode,
    /// The last delivery to this server for which the canary passed.
    pub(super) verified: Option<VerifiedDelivery>,
    /// `true` if the server had these weights before it failed. If it still has them, it need not load them.
    pub(super) had_weights: bool,
}

/// The result of a delivery that brought a server into rotation.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) policy: Policy,
    pub(super) verified: VerifiedDelivery,
    pub(super) figures: CanaryFigures,
    pub(super) phases: Phases,
}

/// A report of a [`WeightDeliveryTask`] in progress.
pub(super) enum Progress {
    /// The server has answered. It now loads the weights, or resumes if it still has them.
    LoadStarted,
    /// The canary failed. The weights that sampled the tokens since the load are unknown.
    CanaryFailed(CanaryFigures),
}

impl WeightDeliveryTask {
    /// Checks the model of the server, delivers the weights, unless the server still has them, and verifies them with the canary. If the
    /// canary fails, verifies the folder and delivers the weights a second time. `report` is called with each report before the next call
    /// to the server. After an error, the server may be paused or have the new weights.
    pub(super) async fn run(&self, report: impl Fn(Progress)) -> Result<Delivered, Fault> {
        self.check_model(&with_retries(|| self.server.identity()).await?)?;
        report(Progress::LoadStarted);
        let mut phases = Phases { write: self.delivery.write, ..Phases::default() };
        let has_weights = self.had_weights && self.is_labelled().await?;
        if has_weights {
            with_retries(|| self.server.resume()).await?;
        } else {
            self.deliver(self.mode, &mut phases).await?;
        }
        let first = self.score(&mut phases).await?;
        if first.passes(&self.config.canary) {
            return Ok(self.delivered(first, phases));
        }
        report(Progress::CanaryFailed(first));
        self.verify_folder().await?;
        self.deliver(PauseMode::Abort, &mut phases).await?;
        let second = self.score(&mut phases).await?;
        if second.passes(&self.config.canary) {
            return Ok(self.delivered(second, phases));
        }
        let (server, policy) = (self.server.name(), self.delivery.policy.version.to_string());
        Err(Fault::Canary { server, policy, figures: second })
    }

    fn check_model(&self, found: &Identity) -> Result<(), Fault> {
        if found.model == self.model {
            return Ok(());
        }
        let (server, expected) = (self.server.name(), self.model.clone());
        Err(Fault::Model { server, expected, found: found.model.clone() })
    }

    /// Returns `true` if the server reports the label of the weights. A server that was restarted reports another label, and SGLang reports
    /// none.
    async fn is_labelled(&self) -> Result<bool, ServerError> {
        let label = self.delivery.label();
        Ok(with_retries(|| self.server.reported_label()).await?.is_some_and(|found| found == label))
    }

    /// Pauses the server, loads and labels the weights, and resumes the server. Adds the times to `phases`.
    async fn deliver(&self, mode: PauseMode, phases: &mut Phases) -> Result<(), ServerError> {
        self.stall_detector.set_paused(true);
        let delivered = self.deliver_paused(mode, phases).await;
        self.stall_detector.set_paused(false);
        delivered
    }

    async fn deliver_paused(
        &self,
        mode: PauseMode,
        phases: &mut Phases,
    ) -> Result<(), ServerError> {
        let (label, server) = (self.delivery.label(), &self.server);
        let folder = self.delivery.folder.path().to_string_lossy();
        let begin = self.clock.now();
        with_retries(|| server.pause(mode)).await?;
        let paused = self.clock.now();
        with_retries(|| server.load(&folder, &label)).await?;
        let loaded = self.clock.now();
        with_retries(|| server.label(&label)).await?;
        with_retries(|| server.resume()).await?;
        phases.pause = add(phases.pause, paused.since(begin));
        phases.load = add(phases.load, loaded.since(paused));
        phases.resume = add(phases.resume, self.clock.now().since(loaded));
        Ok(())
    }

    async fn score(&self, phases: &mut Phases) -> Result<CanaryFigures, ServerError> {
        let begin = self.clock.now();
        let (tokens, salt) = (&self.config.canary.tokens, self.delivery.salt());
        let scores = with_retries(|| self.server.score(tokens, &salt)).await?;
        phases.canary = add(phases.canary, self.clock.now().since(begin));
        let reference = &self.delivery.reference;
        Ok(CanaryFigures::compare(&scores, reference, self.verified.as_ref()))
    }

    /// Returns an error if the weights in the folder have changed since they were written. The file then caused the failed canary, not the
    /// server. A verification that panics counts as passed.
    async fn verify_folder(&self) -> Result<(), WeightError> {
        let delivery = Arc::clone(&self.delivery);
        let verified = tokio::task::spawn_blocking(move || delivery.folder.verify()).await;
        verified.unwrap_or(Ok(()))
    }

    fn delivered(&self, figures: CanaryFigures, phases: Phases) -> Delivered {
        let verified = VerifiedDelivery::new(Arc::clone(&self.delivery.reference), &figures);
        Delivered { policy: self.delivery.policy.clone(), verified, figures, phases }
    }
}

fn add(one: Nanos, other: Nanos) -> Nanos {
    Nanos(one.0 + other.0)
}
