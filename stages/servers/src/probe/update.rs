//! The check of weight updates: a perturbed copy of the weights is loaded and detected, and then the first weights are restored.

use std::fs;
use std::iter;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;

use super::finding::{Checked, Finding};
use super::report::Check;
use super::session::{FirstWeights, ProbeSession, model_failure};
use crate::canary::{CanaryConfig, CanaryFigures, VerifiedDelivery};
use crate::http::ServerError;
use crate::server::{TokenChunk, with_retries};
use crate::vllm::protocol::PauseMode;
use crate::weights::{WeightFolder, WeightRoot};

/// The minimum mean change of the scores, in nats, at which no further perturbation is added. A noisy server needs a larger change.
const MIN_CHANGE: f64 = 0.1;
/// The factor by which an update may increase the mean difference of the canary. A larger increase shows that the server uses only a part
/// of the new weights.
const MAX_GROWTH: f64 = 4.0;
/// The strength of the first perturbation. Each further perturbation is twice as strong.
const FIRST_STRENGTH: f64 = 0.01;
/// The maximum number of perturbations, which add up.
const MAX_PERTURBATIONS: u32 = 8;
/// The length, in tokens, of the prompt whose KV cache must not be used again: more than two blocks of vLLM's KV cache on CPU, which have
/// 128 tokens each.
const PREFIX_TOKENS: usize = 272;
/// The number of tokens that are sampled after the prompt of `PREFIX_TOKENS` tokens.
const SAMPLED_TOKENS: u32 = 16;

/// The data of a check of weight updates: the perturbed weights to load, and the scores to expect before and after the update.
struct Update {
    /// The program's scores of the canary with the perturbed weights.
    reference: Arc<[f32]>,
    /// The program's scores with the first weights, and the server's usual difference from the program.
    first: VerifiedDelivery,
    folder: TemporaryFolder,
    prefix: Prefix,
}

/// A long prompt and its response under the first weights.
struct Prefix {
    prompt: Vec<i32>,
    sampled: TokenChunk,
    /// The program's scores of the response with the first weights.
    reference: Vec<f32>,
}

/// The perturbed weights in a folder of the probe. Dropping this value removes the weights and then the folder, because fields are dropped
/// in the order of their declaration.
struct TemporaryFolder {
    weights: WeightFolder,
    _root: ProbeFolder,
}

/// A folder that is removed on drop, with all files that a failed write left in it.
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
        let updated = self.check_weight_update(&update).await;
        let has_arrived = updated.as_ref().is_ok_and(|(finding, _)| finding.has_passed());
        let prefix = match &updated {
            Ok((_, figures)) if has_arrived => {
                self.check_prefix_cache(&update.prefix, figures).await
            }
            _ => Err(Finding::unchecked("the update has not arrived")),
        };
        self.record(Check::WeightUpdate, updated.map(|(finding, _)| finding));
        self.record(Check::PrefixCache, prefix);
        // The server may read the perturbed weights until it has others.
        let restored = self.restore().await;
        self.record(Check::WeightsRestored, restored);
        drop(update);
    }

    /// Verifies that the server can load the first weights again, samples a response to a long prompt, and writes perturbed weights.
    /// Afterwards the server still has the first weights, but the program's model has the perturbed weights.
    async fn prepare(&mut self) -> Result<Update, Finding> {
        let Some(noise) = self.noise else {
            let details = "the server's log-probabilities are not those of --model, whose weights would be restored";
            return Err(Finding::unchecked(details));
        };
        let label = self.client.reported_label().await?;
        let reference: Arc<[f32]> = self.model.score(self.canary()).map_err(model_failure)?.into();
        let mut weights =
            FirstWeights { label, reference: Arc::clone(&reference), perturbed: None };
        self.undo.weights.replace(Some(weights.clone()));
        let restored = self.restore().await?;
        if !restored.has_passed() {
            return Err(restored);
        }
        let prefix = self.prefix().await?;
        let first = VerifiedDelivery::new(Arc::clone(&reference), &noise);
        let changed = self.perturb(&reference, &prefix, &noise)?;
        let folder = self.write().map_err(Finding::unchecked)?;
        weights.perturbed = Some(VerifiedDelivery::new(Arc::clone(&changed), &noise));
        self.undo.weights.replace(Some(weights));
        Ok(Update { reference: changed, first, folder, prefix })
    }

    /// Samples a response to a long prompt, which enters the prefix cache. The prompt has the tokens of the canary in an irregular order:
    /// after a repetitive text a model is certain of the next token, and a change of the weights would hardly change the scores.
    async fn prefix(&self) -> Result<Prefix, Finding> {
        let room = usize::try_from(self.context()).unwrap_or(PREFIX_TOKENS) / 2;
        let numbers = iter::successors(Some(7_usize), |number| Some((5 * number + 3) % 512));
        let tokens = numbers.map(|number| self.canary()[number * self.canary().len() / 512]);
        let prompt: Vec<i32> = tokens.take(PREFIX_TOKENS.min(room).max(1)).collect();
        let sampled = self
            .generate_one(&self.call(prompt.clone(), 1.0, SAMPLED_TOKENS), |_| {})
            .await?
            .sampled;
        let reference = self.model_scores(&prompt, &sampled.tokens)?;
        Ok(Prefix { prompt, sampled, reference })
    }

    /// Perturbs the program's weights until the scores of the canary and of the long prompt's response change clearly. Returns the new
    /// scores of the canary. Fails if `MAX_PERTURBATIONS` perturbations do not change the scores clearly.
    fn perturb(
        &mut self,
        first: &Arc<[f32]>,
        prefix: &Prefix,
        noise: &CanaryFigures,
    ) -> Result<Arc<[f32]>, Finding> {
        let (mut changed, mut moved) = (Arc::clone(first), 0.0);
        for number in 0..MAX_PERTURBATIONS {
            self.model.perturb(FIRST_STRENGTH * f64::from(1 << number)).map_err(model_failure)?;
            changed = self.model.score(self.canary()).map_err(model_failure)?.into();
            let after = self.model_scores(&prefix.prompt, &prefix.sampled.tokens)?;
            let canary = CanaryFigures::compare(&changed, first, None).mean;
            moved = canary.min(CanaryFigures::compare(&after, &prefix.reference, None).mean);
            if moved >= MIN_CHANGE.max(20.0 * noise.mean) {
                break;
            }
        }
        if moved > 4.0 * noise.mean + 1e-4 {
            return Ok(changed);
        }
        let details = "a perturbation of the weights does not change the scores clearly";
        Err(Finding::unchecked(details).figure("change", moved).figure("noise", noise.mean))
    }

    /// Writes the program's current weights to a temporary folder.
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

    /// Loads the perturbed weights and compares the server's scores of the canary with the program's. Returns the finding and the figures,
    /// or a finding as the error if a call fails.
    async fn check_weight_update(
        &self,
        update: &Update,
    ) -> Result<(Finding, CanaryFigures), Finding> {
        let label = format!("probe-{:016x}-update", self.nonce);
        self.deliver(update.folder.weights.path(), &label).await?;
        let scores = self.client.score(self.canary(), &self.salt(1)).await?;
        let figures = CanaryFigures::compare(&scores, &update.reference, Some(&update.first));
        // A mix of old and new tensors can be within the bounds, but its difference is larger than that of the first weights.
        let before = self.noise.map_or(0.0, |noise| noise.mean);
        let is_partial = figures.has_grown(MAX_GROWTH, before);
        let finding = finding_of_update(&figures, &self.config.canary, is_partial);
        let finding = finding.with_scores(&figures).figure("mean_before", before);
        Ok((finding.figure("to_old", figures.to_previous.unwrap_or(f64::NAN)), figures))
    }

    /// Pauses the server, loads and labels the weights, and resumes the server, as the engine does. If a step fails, the server may stay
    /// paused.
    async fn deliver(&self, folder: &Path, label: &str) -> Result<(), ServerError> {
        let (client, folder) = (&self.client, folder.to_string_lossy());
        self.pause(PauseMode::Abort).await?;
        with_retries(|| client.load(&folder)).await?;
        with_retries(|| client.label(label)).await?;
        self.resume().await
    }

    /// Checks that no KV cache of the old weights is used: continues the long prompt with the salt of the new weights. Scoring a prompt
    /// does not use the cache, so the check samples a response.
    async fn check_prefix_cache(&self, prefix: &Prefix, update: &CanaryFigures) -> Checked {
        let mut call = self.call(prefix.prompt.clone(), 1.0, SAMPLED_TOKENS);
        call.cache_salt = self.salt(1);
        let sampled = self.generate_one(&call, |_| {}).await?.sampled;
        let expected = self.model_scores(&prefix.prompt, &sampled.tokens)?;
        let distance = |one: &[f32], other: &[f32]| CanaryFigures::compare(one, other, None).mean;
        let before = distance(&prefix.sampled.logprobs, &prefix.reference);
        // The old response, scored with both weights, shows how much an old cache could change.
        let moved = self.model_scores(&prefix.prompt, &prefix.sampled.tokens)?;
        let moved = distance(&moved, &prefix.reference);
        let found = distance(&sampled.logprobs, &expected);
        let tolerance = 4.0 * before.max(update.mean) + 1e-4;
        if moved < 2.0 * tolerance {
            let details = "the update changes the scores after the prompt too little";
            return Err(Finding::unchecked(details).figure("change", moved));
        }
        let details = "difference in nats to the new weights, after a prompt that was cached under the old ones";
        let finding = Finding::passed_if(found <= tolerance, details)
            .figure("mean", found)
            .figure("tolerance", tolerance)
            .figure("prompt_tokens", prefix.prompt.len() as f64);
        Ok(finding)
    }

    /// Loads and labels the first weights again, resumes the server, and compares the scores. If the weights were not changed, the finding
    /// is that the check could not run.
    pub(super) async fn restore(&self) -> Checked {
        let Some(first) = self.undo.weights.borrow().clone() else {
            return Err(Finding::unchecked("the weights were not changed"));
        };
        let folder = fs::canonicalize(&self.config.model_folder);
        let folder = folder.unwrap_or_else(|_| self.config.model_folder.clone());
        let delivered = self.deliver(&folder, &first.label).await;
        // After a load that failed, the server may still have its weights. It must not stay paused in any case.
        let resumed = if self.undo.paused.get() { self.resume().await } else { Ok(()) };
        let salt = self.salt(2);
        let scores = with_retries(|| self.client.score(self.canary(), &salt)).await?;
        let figures = CanaryFigures::compare(&scores, &first.reference, first.perturbed.as_ref());
        if !figures.passes(&self.config.canary) {
            delivered?;
            let details = "the server does not use its first weights after loading them again";
            return Err(Finding::failed(details).with_scores(&figures));
        }
        resumed?;
        self.set_first_label(&first.label).await?;
        self.undo.weights.replace(None);
        match delivered {
            Ok(()) => Ok(Finding::passed("the server has its first weights").with_scores(&figures)),
            Err(error) => Err(error.into()),
        }
    }
}

/// Returns the finding for the scores of the canary after a load. `is_partial` is `true` if they differ from the program's scores by more
/// than an update of all weights explains.
fn finding_of_update(figures: &CanaryFigures, config: &CanaryConfig, is_partial: bool) -> Finding {
    if figures.is_stale {
        Finding::failed("the server loaded other weights and still uses the old ones")
    } else if !figures.passes(config) {
        Finding::failed(
            "the server's scores after the load are out of bounds: it does not use the new weights as they are",
        )
    } else if is_partial {
        Finding::failed("the server uses the new weights only in part")
    } else {
        Finding::passed("the server uses perturbed weights after loading them")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_finding_of_an_update_tells_its_failure() {
        let config = CanaryConfig::new(vec![1, 2, 3]);
        let details = |server: &[f32], previous: Option<&[f32]>, is_partial| {
            let reference = [-1.0, -2.0];
            let previous = previous.map(|previous| {
                let exact = CanaryFigures::compare(previous, previous, None);
                VerifiedDelivery::new(previous.into(), &exact)
            });
            let figures = CanaryFigures::compare(server, &reference, previous.as_ref());
            let finding = finding_of_update(&figures, &config, is_partial);
            let is_passed = finding.has_passed();
            (is_passed, finding.report(Check::WeightUpdate).details)
        };
        let old: &[f32] = &[-1.5, -2.5];
        for (server, previous, is_partial, passes, part) in [
            ([-1.0, -2.0], Some(old), false, true, "uses perturbed weights"),
            ([-1.5, -2.5], Some(old), false, false, "still uses the old ones"),
            ([-9.0, -2.0], None, false, false, "out of bounds"),
            ([f32::NAN, -2.0], None, false, false, "out of bounds"),
            ([-1.0, -2.1], None, true, false, "only in part"),
        ] {
            let (passed, details) = details(&server, previous, is_partial);
            assert_eq!((passed, details.contains(part)), (passes, true), "{server:?}: {details}");
        }
    }
}
