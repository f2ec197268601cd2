//! The objective of a trainer: policy loss, KL term and entropy of tokens, weighted by the aggregation.

use rollpacker_stages::catalog::{Catalog, CatalogError};
use tch::{Device, TchError, Tensor};

use super::Sequence;
use super::config::{Aggregation, OldLogprobs, TrainerConfig};
use super::head::TokenScores;
use super::loss::{
    Segments, SharedKl, SharedPolicyLoss, Tokens, importance_weights, kl_estimators, policy_losses,
};
use super::rejection::RejectionMask;
use super::tally::{ReducedTerms, TermReduction, Terms};

/// The policy loss and the KL estimators of a trainer.
#[derive(Clone, Debug)]
pub struct Objective {
    /// The loss that trains the policy, besides the KL term and the entropy bonus.
    pub policy_loss: SharedPolicyLoss,
    /// The KL estimator of the loss. Unused if `kl_loss_coef` is 0.
    pub kl_loss: SharedKl,
    /// The KL estimator of the penalty in rewards; `None` without such a penalty. A trainer uses it only if it holds the reference, so its
    /// configuration must also set `reward_kl` or a positive `kl_loss_coef`.
    pub reward_kl: Option<SharedKl>,
}

impl Objective {
    /// Creates the built-in functions that `config` names.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, or an option is wrong.
    pub fn builtin(config: &TrainerConfig) -> Result<Self, CatalogError> {
        Self::of(config, &policy_losses(), &kl_estimators())
    }

    /// Creates the functions that `config` names from two catalogs.
    ///
    /// # Errors
    /// Returns an error if a name is unknown, or an option is wrong.
    pub fn of(
        config: &TrainerConfig,
        losses: &Catalog<SharedPolicyLoss>,
        estimators: &Catalog<SharedKl>,
    ) -> Result<Self, CatalogError> {
        Ok(Self {
            policy_loss: losses.make(&config.policy_loss)?,
            kl_loss: estimators.make(&config.kl_loss_type)?,
            reward_kl: config
                .reward_kl
                .as_ref()
                .map(|choice| estimators.make(choice))
                .transpose()?,
        })
    }

    /// Returns the aggregation that the policy loss fixes, or the configured aggregation if the policy loss fixes none.
    pub(crate) fn aggregation(&self, config: &TrainerConfig) -> Aggregation {
        self.policy_loss.aggregation().unwrap_or(config.loss_agg_mode)
    }

    /// Returns the numerator of the loss of a micro-batch, and the other results of the micro-batch. The numerator is 0 if every token is
    /// rejected. `columns` must be the columns of `sequences`.
    pub(crate) fn numerator(
        &self,
        config: &TrainerConfig,
        scores: &TokenScores,
        columns: &Columns,
        sequences: &[Sequence<'_>],
    ) -> Result<(Tensor, Outcome), TchError> {
        let mut terms = Terms::default();
        let logprobs = match &columns.start {
            Some(start) => start.shallow_clone(),
            None => scores.logprobs.f_detach()?,
        };
        let importance = add_mismatch(config, &logprobs, columns, &mut terms)?;
        let kept = RejectionMask::of(&config.rollout_rs, sequences, &logprobs)?;
        let total = match &kept {
            None => self.loss(config, scores, columns, importance.as_ref(), &mut terms)?,
            // The losses need at least one token.
            Some(kept) if kept.is_empty() => scores.logprobs.f_narrow(0, 0, 0)?,
            Some(kept) => {
                let (device, scale) = (logprobs.device(), config.loss_scale_factor);
                let at = kept.indices(device)?;
                let factors = kept.factors(sequences, self.aggregation(config), scale, device)?;
                let columns = columns.select(&at, factors, &kept.lengths())?;
                let importance = importance.as_ref().map(|of| of.f_index_select(0, &at));
                let (scores, importance) = (scores.select(&at)?, importance.transpose()?);
                self.loss(config, &scores, &columns, importance.as_ref(), &mut terms)?
            }
        };
        let outcome = Outcome { terms: terms.reduce()?, logprobs, importance, kept };
        Ok((total.f_sum(total.kind())?, outcome))
    }

    /// Returns the loss of each token, times its factor.
    fn loss(
        &self,
        config: &TrainerConfig,
        scores: &TokenScores,
        columns: &Columns,
        importance: Option<&Tensor>,
        terms: &mut Terms,
    ) -> Result<Tensor, TchError> {
        let old = match config.old_logprobs {
            OldLogprobs::Engine => columns.rollout.shallow_clone(),
            OldLogprobs::Trainer => match &columns.start {
                Some(start) => start.shallow_clone(),
                None => scores.logprobs.f_detach()?,
            },
        };
        let tokens = Tokens {
            logprobs: &scores.logprobs,
            old: &old,
            advantages: &columns.advantages,
            segments: &columns.segments,
        };
        let mut total = self.policy_term(&tokens, columns, importance, terms)?;
        if let Some(kl) = self.kl_term(config, &tokens, columns)? {
            terms.add("actor/kl_loss", TermReduction::Loss, &kl)?;
            total = total.f_add(&kl.f_mul_scalar(config.kl_loss_coef)?)?;
        }
        let entropy = scores.entropy.f_mul(&columns.factors)?;
        terms.add("actor/entropy", TermReduction::Loss, &entropy)?;
        if config.entropy_coeff > 0.0 {
            total = total.f_sub(&entropy.f_mul_scalar(config.entropy_coeff)?)?;
        }
        terms.add("actor/loss", TermReduction::Policy, &total)?;
        Ok(total)
    }

    /// Returns the policy loss of each token, times its factor and its importance weight.
    fn policy_term(
        &self,
        tokens: &Tokens<'_>,
        columns: &Columns,
        importance: Option<&Tensor>,
        terms: &mut Terms,
    ) -> Result<Tensor, TchError> {
        let policy = self.policy_loss.tokens(tokens)?;
        let mut loss = policy.loss.f_mul(&columns.factors)?;
        for (name, values) in &policy.metrics {
            terms.add(name, TermReduction::KeptTokens, values)?;
        }
        terms.add("actor/ppo_kl", TermReduction::KeptTokens, &tokens.log_ratio()?.f_neg()?)?;
        if let Some(weights) = importance {
            loss = loss.f_mul(&self.policy_loss.importance(weights, tokens.segments)?)?;
        }
        terms.add("actor/pg_loss", TermReduction::Policy, &loss)?;
        Ok(loss)
    }

    /// Returns the estimate of the KL divergence from the reference at each token, times the factor of the token. With
    /// `use_bias_correction_kl`, the estimate is also multiplied by the ratio of the policy to the old policy. `None` if the loss has no KL
    /// term.
    fn kl_term(
        &self,
        config: &TrainerConfig,
        tokens: &Tokens<'_>,
        columns: &Columns,
    ) -> Result<Option<Tensor>, TchError> {
        let Some(reference) = &columns.reference else { return Ok(None) };
        let mut kl = self.kl_loss.tokens(tokens.logprobs, reference)?;
        if config.use_bias_correction_kl {
            kl = kl.f_mul(&tokens.log_ratio()?.f_exp()?)?;
        }
        kl.f_mul(&columns.factors).map(Some)
    }
}

/// The results of a micro-batch besides its gradient.
pub(crate) struct Outcome {
    pub(crate) terms: ReducedTerms,
    /// The trainer's log-probabilities at the start of the step, without gradient; `[response tokens]`.
    pub(crate) logprobs: Tensor,
    /// The importance weights, before they are divided by their mean; `[response tokens]`. `None` without importance sampling.
    pub(crate) importance: Option<Tensor>,
    /// The tokens that are not rejected; `None` without rejection.
    pub(crate) kept: Option<RejectionMask>,
}

/// Adds the terms of the difference between engine and trainer, and returns the importance weights; `None` without importance sampling.
fn add_mismatch(
    config: &TrainerConfig,
    logprobs: &Tensor,
    columns: &Columns,
    terms: &mut Terms,
) -> Result<Option<Tensor>, TchError> {
    let difference = logprobs.f_exp()?.f_sub(&columns.rollout.f_exp()?)?.f_abs()?;
    terms.add("training/rollout_probs_diff_mean", TermReduction::Tokens, &difference)?;
    terms.add("training/rollout_probs_diff_max", TermReduction::Max, &difference)?;
    terms.add("rollout_corr/kl", TermReduction::Tokens, &columns.rollout.f_sub(logprobs)?)?;
    let Some(is) = &config.rollout_is else { return Ok(None) };
    let weights = importance_weights(is, logprobs, &columns.rollout, &columns.segments)?;
    terms.add("rollout_corr/rollout_is_mean", TermReduction::Tokens, &weights)?;
    terms.add("rollout_corr/rollout_is_max", TermReduction::Max, &weights)?;
    Ok(Some(weights))
}

/// The inputs of the loss besides the model; all `[response tokens]`.
pub(crate) struct Columns {
    /// Log-probabilities of the engine, in nats.
    pub(crate) rollout: Tensor,
    pub(crate) advantages: Tensor,
    /// The factor of each token in the numerator.
    pub(crate) factors: Tensor,
    /// Log-probabilities of the reference, in nats; `None` if the loss has no KL term.
    pub(crate) reference: Option<Tensor>,
    /// Log-probabilities of the trainer at the start of the step, in nats; `None` in a step with one update, where the loss itself computes
    /// them.
    pub(crate) start: Option<Tensor>,
    pub(crate) segments: Segments,
}

impl Columns {
    /// Creates the columns of `sequences`, each of which has at least one token.
    pub(crate) fn new(
        sequences: &[Sequence<'_>],
        factors: Tensor,
        reference: Option<Tensor>,
        start: Option<Tensor>,
        device: Device,
    ) -> Result<Self, TchError> {
        let lengths: Vec<i64> = sequences.iter().map(|s| s.response_ids.len() as i64).collect();
        Ok(Self {
            rollout: column(sequences, |s| s.logprobs, device)?,
            advantages: column(sequences, |s| s.advantages, device)?,
            factors,
            reference,
            start,
            segments: Segments::new(&lengths, device)?,
        })
    }

    /// Returns the columns of the tokens at `at`, with other factors, as sequences of the given lengths.
    fn select(&self, at: &Tensor, factors: Tensor, lengths: &[i64]) -> Result<Self, TchError> {
        let select = |column: &Option<Tensor>| {
            column.as_ref().map(|column| column.f_index_select(0, at)).transpose()
        };
        Ok(Self {
            rollout: self.rollout.f_index_select(0, at)?,
            advantages: self.advantages.f_index_select(0, at)?,
            factors,
            reference: select(&self.reference)?,
            start: select(&self.start)?,
            segments: Segments::new(lengths, at.device())?,
        })
    }
}

/// Returns the numbers that `slice` returns for each sequence, concatenated.
pub(crate) fn column<'a>(
    sequences: &[Sequence<'a>],
    slice: impl Fn(&Sequence<'a>) -> &'a [f32],
    device: Device,
) -> Result<Tensor, TchError> {
    let values: Vec<f32> = sequences.iter().flat_map(slice).copied().collect();
    Tensor::f_from_slice(&values)?.f_to_device(device)
}

/// Returns the factor of each token in the numerator: the weight of its response times the coefficient of the aggregation `mode`. `scale`
/// is the divisor of `seq-mean-token-sum-norm`; other aggregations ignore it.
pub(crate) fn factors(
    sequences: &[Sequence<'_>],
    mode: Aggregation,
    scale: f64,
    device: Device,
) -> Result<Tensor, TchError> {
    let factors = sequences.iter().flat_map(|s| {
        let factor = f64::from(s.weight) * mode.coefficient(s.response_ids.len(), scale);
        std::iter::repeat_n(factor as f32, s.response_ids.len())
    });
    Tensor::f_from_slice(&factors.collect::<Vec<_>>())?.f_to_device(device)
}

/// Returns the denominator of the loss: the sum of the contributions of all responses under the aggregation `mode`, each times the weight
/// of the response.
pub(crate) fn denominator(sequences: &[Sequence<'_>], mode: Aggregation) -> f64 {
    let measure = |s: &Sequence<'_>| f64::from(s.weight) * mode.measure(s.response_ids.len());
    sequences.iter().map(measure).sum()
}

/// Returns the number of response tokens, before any is rejected.
pub(crate) fn tokens(sequences: &[Sequence<'_>]) -> usize {
    sequences.iter().map(|s| s.response_ids.len()).sum()
}

#[cfg(test)]
mod tests {
    use rollpacker_stages::catalog::Choice;
    use rollpacker_stages::train::config::{Level, RolloutIs, Threshold};

    use super::*;

    /// Returns the numerator of a response with two tokens, whose importance weights are 0.5 and 8, and its gradient with respect to the
    /// log-probabilities of the tokens.
    fn weighed(loss: &str) -> (f64, Vec<f64>) {
        let rollout_is = RolloutIs {
            level: Level::Token,
            threshold: Threshold::Above(10.0),
            batch_normalize: false,
        };
        let config = TrainerConfig {
            policy_loss: Choice::of(loss),
            rollout_is: Some(rollout_is),
            old_logprobs: OldLogprobs::Trainer,
            ..TrainerConfig::default()
        };
        let logprobs = Tensor::from_slice(&[-1.0f64, -2.0]).set_requires_grad(true);
        let columns = Columns {
            rollout: logprobs.detach() - Tensor::from_slice(&[0.5f64.ln(), 8f64.ln()]),
            advantages: Tensor::from_slice(&[1.0f64, 1.0]),
            factors: Tensor::from_slice(&[0.5f64, 0.5]),
            reference: None,
            start: None,
            segments: Segments::new(&[2], Device::Cpu).unwrap(),
        };
        let scores = TokenScores { entropy: logprobs.zeros_like(), logprobs };
        let objective = Objective::builtin(&config).unwrap();
        let (numerator, _) = objective.numerator(&config, &scores, &columns, &[]).unwrap();
        numerator.backward();
        let gradient = Vec::try_from(scores.logprobs.grad()).unwrap();
        (numerator.double_value(&[]), gradient)
    }

    #[track_caller]
    fn check(loss: &str, expected: (f64, [f64; 2])) {
        let (numerator, gradient) = weighed(loss);
        let found = [numerator, gradient[0], gradient[1]];
        let expected = [expected.0, expected.1[0], expected.1[1]];
        let close =
            found.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6);
        assert!(close, "{loss}: {found:?}, expected {expected:?}");
    }

    #[test]
    fn importance_weights_are_applied_as_the_loss_defines() {
        check("vanilla", (-4.25, [-0.25, -4.0]));
        // The geometric mean of 0.5 and 8 for both tokens.
        check("geo_mean", (-2.0, [-1.0, -1.0]));
    }
}
