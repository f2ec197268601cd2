//! Weight updates: proven by a perturbed copy of the weights, and undone.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;

use super::finding::{Checked, Finding};
use super::report::Check;
use super::session::{FirstWeights, ProbeSession, own};
use crate::canary::{CanaryFigures, Proven};
use crate::http::ServerError;
use crate::server::{Piece, retried};
use crate::vllm::protocol::PauseMode;
use crate::weights::{WeightFolder, WeightRoot};

/// The smallest mean change of the scores by the perturbation, in nats, that ends the search for its strength.
const CHANGE: f64 = 0.1;
/// The growth of the canary's difference by an update, as a factor, from which the server uses only a part of the new weights.
const PARTIAL: f64 = 4.0;
/// The strength of the first perturbation. Each further one is twice as strong.
const STRENGTH: f64 = 0.01;
const PERTURBATIONS: u32 = 8;
/// The length of the prompt whose KV cache must not be used again: more than two blocks of vLLM's on CPU, which have 128 tokens.
const PREFIX: usize = 272;
/// The number of tokens after that prompt.
const TOKENS: u32 = 16;

/// An update that the server must follow.
struct Update {
    /// The program's scores of the canary with the perturbed weights.
    reference: Arc<[f32]>,
    /// The first weights' scores, as the server has them.
    first: Proven,
    folder: TemporaryFolder,
    prefix: Prefix,
}

/// A long prompt and its response under the first weights.
struct Prefix {
    prompt: Vec<i32>,
    sampled: Piece,
    /// The program's scores of the response with the first weights.
    reference: Vec<f32>,
}

/// The perturbed weights in a folder of the probe. Dropping it removes both; the fields are dropped in this order.
struct TemporaryFolder {
    weights: WeightFolder,
    _root: ProbeFolder,
}

/// A folder that is removed with the value, with all that a failed write left in it.
struct ProbeFolder(PathBuf);

impl Drop for ProbeFolder {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.0) {
            tracing::warn!(folder = %self.0.display(), %error, "cannot remove a temporary folder");
        }
    }
}

impl ProbeSession {
    pub(super) async fn check_update(&mut self) {
        let update = match self.prepare().await {
            Ok(update) => update,
            Err(finding) => return self.record(Check::WeightUpdate, Err(finding)),
        };
        let updated = self.update(&update).await;
        let has_arrived = updated.as_ref().is_ok_and(|(finding, _)| finding.has_passed());
        let prefix = match &updated {
            Ok((_, figures)) if has_arrived => self.prefix_cache(&update.prefix, figures).await,
            _ => Err(Finding::unchecked("the update has not arrived")),
        };
        self.record(Check::WeightUpdate, updated.map(|(finding, _)| finding));
        self.record(Check::PrefixCache, prefix);
        // The server may read the perturbed weights until it has others.
        let restored = self.restore().await;
        self.record(Check::WeightsRestored, restored);
        drop(update);
    }

    /// Proves that the first weights can be loaded again, and then makes others. The server keeps the first weights.
    async fn prepare(&mut self) -> Result<Update, Finding> {
        let Some(noise) = self.noise else {
            let details = "the server's log-probabilities are not those of --model, whose weights would be restored";
            return Err(Finding::unchecked(details));
        };
        let label = self.client.reported_label().await?;
        let reference: Arc<[f32]> = self.model.score(self.canary()).map_err(own)?.into();
        let mut weights = FirstWeights { label, reference: Arc::clone(&reference), others: None };
        self.traces.weights.replace(Some(weights.clone()));
        let restored = self.restore().await?;
        if !restored.has_passed() {
            return Err(restored);
        }
        let prefix = self.prefix().await?;
        let first = Proven::new(Arc::clone(&reference), &noise);
        let changed = self.perturb(&reference, &prefix, &noise)?;
        let folder = self.write().map_err(Finding::unchecked)?;
        weights.others = Some(Proven::new(Arc::clone(&changed), &noise));
        self.traces.weights.replace(Some(weights));
        Ok(Update { reference: changed, first, folder, prefix })
    }

    /// Returns the response to a long prompt, which fills the prefix cache. Its tokens are those of the canary in an irregular order: after
    /// a text that repeats itself, a model is certain, and its weights hardly matter.
    async fn prefix(&self) -> Result<Prefix, Finding> {
        let room = usize::try_from(self.context()).unwrap_or(PREFIX) / 2;
        let numbers = iter::successors(Some(7_usize), |number| Some((5 * number + 3) % 512));
        let tokens = numbers.map(|number| self.canary()[number * self.canary().len() / 512]);
        let prompt: Vec<i32> = tokens.take(PREFIX.min(room).max(1)).collect();
        let sampled = self.one(&self.call(prompt.clone(), 1.0, TOKENS), |_| {}).await?.sampled;
        let reference = self.own_scores(&prompt, &sampled.tokens)?;
        Ok(Prefix { prompt, sampled, reference })
    }

    /// Perturbs the program's weights until the scores of the canary and of the long prompt's response change clearly. Returns the new
    /// scores of the canary.
    fn perturb(
        &mut self,
        first: &Arc<[f32]>,
        prefix: &Prefix,
        noise: &CanaryFigures,
    ) -> Result<Arc<[f32]>, Finding> {
        let (mut changed, mut moved) = (Arc::clone(first), 0.0);
        for number in 0..PERTURBATIONS {
            self.model.perturb(STRENGTH * f64::from(1 << number)).map_err(own)?;
            changed = self.model.score(self.canary()).map_err(own)?.into();
            let after = self.own_scores(&prefix.prompt, &prefix.sampled.tokens)?;
            let canary = CanaryFigures::compare(&changed, first, None).mean;
            moved = canary.min(CanaryFigures::compare(&after, &prefix.reference, None).mean);
            if moved >= CHANGE.max(20.0 * noise.mean) {
                break;
            }
        }
        if moved > 4.0 * noise.mean + 1e-4 {
            return Ok(changed);
        }
        let details = "a perturbation of the weights does not change the scores clearly";
        Err(Finding::unchecked(details).figure("change", moved).figure("noise", noise.mean))
    }

    /// Writes the program's weights.
    fn write(&self) -> Result<TemporaryFolder, String> {
        let name = format!("rollpacker-probe-{:016x}", self.nonce);
        let root = self.config.weights_folder.join(name);
        let opened = WeightRoot::open(&root, &self.config.model_folder);
        let opened = opened.map_err(|error| error.to_string())?;
        let root = ProbeFolder(root);
        let policy = Policy { version: PolicyVersion(1), location: String::new(), digest: 0 };
        let weights = opened.write(&policy, 1, &*self.model).map_err(|error| error.to_string())?;
        Ok(TemporaryFolder { weights, _root: root })
    }

    /// Loads the perturbed weights and compares the scores.
    async fn update(&self, update: &Update) -> Result<(Finding, CanaryFigures), Finding> {
        let label = format!("probe-{:016x}-update", self.nonce);
        self.deliver(update.folder.weights.path(), Some(&label)).await?;
        let scores = self.client.score(self.canary(), &self.salt(1)).await?;
        let figures = CanaryFigures::compare(&scores, &update.reference, Some(&update.first));
        // Weights of which some tensors are old can be within the bounds, but are further off than the first ones were.
        let before = self.noise.map_or(0.0, |noise| noise.mean);
        let is_partial = figures.is_farther(PARTIAL, before);
        let details = match (figures.is_stale, is_partial) {
            (true, _) => "the server loaded other weights and still uses the old ones",
            (false, true) => "the server uses the new weights only in part",
            (false, false) => "the server uses perturbed weights after loading them",
        };
        let passes = figures.passes(&self.config.canary) && !is_partial;
        let finding = Finding::of(passes, details).scores(&figures).figure("mean_before", before);
        Ok((finding.figure("to_old", figures.to_previous.unwrap_or(f64::NAN)), figures))
    }

    /// Pauses, loads, labels and resumes, as the engine does.
    async fn deliver(&self, folder: &Path, label: Option<&str>) -> Result<(), ServerError> {
        let (client, folder) = (&self.client, folder.to_string_lossy());
        self.pause(PauseMode::Abort).await?;
        retried(|| client.load(&folder, label.unwrap_or_default())).await?;
        if let Some(label) = label {
            retried(|| client.label(label)).await?;
        }
        self.resume().await
    }

    /// Continues the long prompt with the salt of the new weights. Scores of a prompt do not use the cache, so this needs a response.
    async fn prefix_cache(&self, prefix: &Prefix, update: &CanaryFigures) -> Checked {
        let mut call = self.call(prefix.prompt.clone(), 1.0, TOKENS);
        call.cache_salt = self.salt(1);
        let sampled = self.one(&call, |_| {}).await?.sampled;
        let expected = self.own_scores(&prefix.prompt, &sampled.tokens)?;
        let distance = |one: &[f32], other: &[f32]| CanaryFigures::compare(one, other, None).mean;
        let before = distance(&prefix.sampled.logprobs, &prefix.reference);
        // The old response, scored with both weights, shows how much an old cache could change.
        let moved = self.own_scores(&prefix.prompt, &prefix.sampled.tokens)?;
        let moved = distance(&moved, &prefix.reference);
        let found = distance(&sampled.logprobs, &expected);
        let tolerance = 4.0 * before.max(update.mean) + 1e-4;
        if moved < 2.0 * tolerance {
            let details = "the update changes the scores after the prompt too little";
            return Err(Finding::unchecked(details).figure("change", moved));
        }
        let details = "difference in nats to the new weights, after a prompt that was cached under the old ones";
        let finding = Finding::of(found <= tolerance, details)
            .figure("mean", found)
            .figure("tolerance", tolerance)
            .figure("prompt_tokens", prefix.prompt.len() as f64);
        Ok(finding)
    }

    /// Loads the first weights again, and compares the scores.
    pub(super) async fn restore(&self) -> Checked {
        let Some(first) = self.traces.weights.borrow().clone() else {
            return Err(Finding::unchecked("the weights were not changed"));
        };
        let label = first.label.as_deref();
        let folder = fs::canonicalize(&self.config.model_folder);
        let folder = folder.unwrap_or_else(|_| self.config.model_folder.clone());
        let delivered = self.deliver(&folder, label).await;
        // After a load that failed, the server may still have its weights. It must not stay paused in any case.
        let resumed = if self.traces.paused.get() { self.resume().await } else { Ok(()) };
        let salt = self.salt(2);
        let scores = retried(|| self.client.score(self.canary(), &salt)).await?;
        let figures = CanaryFigures::compare(&scores, &first.reference, first.others.as_ref());
        if !figures.passes(&self.config.canary) {
            delivered?;
            let details = "the server does not use its first weights after loading them again";
            return Err(Finding::failed(details).scores(&figures));
        }
        resumed?;
        if let Some(label) = label {
            self.set_first_label(label).await?;
        }
        self.traces.weights.replace(None);
        match delivered {
            Ok(()) => Ok(Finding::passed("the server has its first weights").scores(&figures)),
            Err(error) => Err(error.into()),
        }
    }
}
