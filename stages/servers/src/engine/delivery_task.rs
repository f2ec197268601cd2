//! Bringing a server into rotation: its identity, the weights, and the proof that they arrived.

use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_stages::rollout::Policy;

use super::config::ServersConfig;
use super::measurements::Phases;
use crate::canary::{CanaryFigures, Proven};
use crate::http::ServerError;
use crate::server::{Identity, Pulse, Server, retried};
use crate::vllm::protocol::PauseMode;
use crate::weights::{WeightError, WeightFolder, salt};

/// Weights that are ready to be loaded.
#[derive(Debug)]
pub(super) struct Delivery {
    pub(super) policy: Policy,
    pub(super) folder: WeightFolder,
    /// The trainer's scores of the canary.
    pub(super) reference: Arc<[f32]>,
    /// The time that the preparation took.
    pub(super) write: Nanos,
}

impl Delivery {
    /// Returns the label of the weights on servers: the number of the version.
    pub(super) fn label(&self) -> String {
        self.policy.version.0.to_string()
    }

    /// Returns the salt of the KV cache. It contains the digest, because a resumed run may produce other weights of the same version.
    pub(super) fn salt(&self) -> String {
        salt(&self.policy)
    }
}

/// The reason why a server is not in rotation.
#[derive(Clone, Debug, thiserror::Error)]
pub(super) enum Fault {
    /// A call failed.
    #[error(transparent)]
    Call(#[from] ServerError),
    /// The model of the server has changed.
    #[error("{server}: expected the model `{expected}`, found `{found}`")]
    Model { server: String, expected: String, found: String },
    /// The server loaded the weights twice and does not use them.
    #[error("{server} does not use the weights of {policy} after loading them twice: {figures}")]
    Canary { server: String, policy: String, figures: CanaryFigures },
    /// The folder of the weights is damaged.
    #[error(transparent)]
    Folder(#[from] WeightError),
}

/// The task of bringing a server into rotation.
pub(super) struct WeightDeliveryTask {
    pub(super) server: Server,
    pub(super) pulse: Arc<Pulse>,
    pub(super) delivery: Arc<Delivery>,
    pub(super) config: Arc<ServersConfig>,
    pub(super) clock: Arc<dyn Clock>,
    /// The expected name of the model.
    pub(super) model: String,
    pub(super) mode: PauseMode,
    /// The last delivery to this server.
    pub(super) proven: Option<Proven>,
    /// `true` if the server had these weights before it failed. If it still has them, it need not load them.
    pub(super) had_weights: bool,
}

/// A server that was brought into rotation.
#[derive(Debug)]
pub(super) struct Delivered {
    pub(super) policy: Policy,
    pub(super) proven: Proven,
    pub(super) figures: CanaryFigures,
    pub(super) phases: Phases,
}

/// A report of a [`WeightDeliveryTask`] in progress.
pub(super) enum Progress {
    /// The server answers and loads the weights.
    Loads,
    /// The canary failed. Tokens sampled since the load are of unknown weights.
    Failed(CanaryFigures),
}

impl WeightDeliveryTask {
    /// Runs the task. `report` receives each report before the next call to the server.
    pub(super) async fn run(&self, report: impl Fn(Progress)) -> Result<Delivered, Fault> {
        self.check_model(&retried(|| self.server.identity()).await?)?;
        report(Progress::Loads);
        let mut phases = Phases { write: self.delivery.write, ..Phases::default() };
        let has_weights = self.had_weights && self.is_labelled().await?;
        if has_weights {
            retried(|| self.server.resume()).await?;
        } else {
            self.deliver(self.mode, &mut phases).await?;
        }
        let first = self.score(&mut phases).await?;
        if first.passes(&self.config.canary) {
            return Ok(self.delivered(first, phases));
        }
        report(Progress::Failed(first));
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

    /// Returns `true` if the server reports the label of the weights. A server that was restarted does not.
    async fn is_labelled(&self) -> Result<bool, ServerError> {
        let label = self.delivery.label();
        Ok(retried(|| self.server.reported_label()).await?.is_some_and(|found| found == label))
    }

    /// Pauses, loads, labels and resumes.
    async fn deliver(&self, mode: PauseMode, phases: &mut Phases) -> Result<(), ServerError> {
        self.pulse.set_paused(true);
        let delivered = self.deliver_paused(mode, phases).await;
        self.pulse.set_paused(false);
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
        retried(|| server.pause(mode)).await?;
        let paused = self.clock.now();
        retried(|| server.load(&folder, &label)).await?;
        let loaded = self.clock.now();
        retried(|| server.label(&label)).await?;
        retried(|| server.resume()).await?;
        phases.pause = add(phases.pause, paused.since(begin));
        phases.load = add(phases.load, loaded.since(paused));
        phases.resume = add(phases.resume, self.clock.now().since(loaded));
        Ok(())
    }

    async fn score(&self, phases: &mut Phases) -> Result<CanaryFigures, ServerError> {
        let begin = self.clock.now();
        let (tokens, salt) = (&self.config.canary.tokens, self.delivery.salt());
        let scores = retried(|| self.server.score(tokens, &salt)).await?;
        phases.canary = add(phases.canary, self.clock.now().since(begin));
        let reference = &self.delivery.reference;
        Ok(CanaryFigures::compare(&scores, reference, self.proven.as_ref()))
    }

    /// Reads the folder again: a server that read damaged weights is not at fault.
    async fn verify_folder(&self) -> Result<(), WeightError> {
        let delivery = Arc::clone(&self.delivery);
        let verified = tokio::task::spawn_blocking(move || delivery.folder.verify()).await;
        verified.unwrap_or(Ok(()))
    }

    fn delivered(&self, figures: CanaryFigures, phases: Phases) -> Delivered {
        let proven = Proven::new(Arc::clone(&self.delivery.reference), &figures);
        Delivered { policy: self.delivery.policy.clone(), proven, figures, phases }
    }
}

fn add(one: Nanos, other: Nanos) -> Nanos {
    Nanos(one.0 + other.0)
}
