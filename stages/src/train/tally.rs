//! What a step adds up beside its gradient, and the metrics that this gives.

use tch::{Kind, TchError, Tensor};

use super::Metrics;
use super::optimizer::Update;

/// Sums of a step or of a part of it; sums of parts add up to that of the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// What the loss is divided by: weighted tokens or responses.
    pub(crate) denominator: f64,
    /// Response tokens.
    pub(crate) tokens: f64,
    /// In the order of [`Terms`].
    sums: [f64; TERMS],
    /// Largest difference of probabilities of a token between engine and trainer.
    probs_diff_max: f64,
}

const TERMS: usize = 7;

/// The terms of each token, all `[tokens]`. The first three are times the token's factor in the loss; all are summed.
pub(crate) struct Terms<'a> {
    pub(crate) pg_loss: &'a Tensor,
    pub(crate) kl_loss: &'a Tensor,
    pub(crate) entropy: &'a Tensor,
    pub(crate) clipped: &'a Tensor,
    pub(crate) clipped_lower: &'a Tensor,
    pub(crate) log_ratio: &'a Tensor,
    pub(crate) probs_diff: &'a Tensor,
}

impl Terms<'_> {
    /// The sums and the largest difference of probabilities, `[8]`; one transfer where the device is not the CPU.
    pub(crate) fn reduce(&self) -> Result<Tensor, TchError> {
        let terms = [
            self.pg_loss,
            self.kl_loss,
            self.entropy,
            self.clipped,
            self.clipped_lower,
            self.log_ratio,
            self.probs_diff,
        ];
        let sums = terms.iter().map(|term| term.f_detach()?.f_sum(Kind::Double));
        let max = self.probs_diff.f_detach()?.f_max()?.f_to_kind(Kind::Double);
        Tensor::f_stack(&sums.chain([max]).collect::<Result<Vec<_>, _>>()?, 0)
    }
}

impl Tally {
    /// The tally of a micro-batch from its reduced [`Terms`].
    pub(crate) fn of(denominator: f64, tokens: usize, reduced: &Tensor) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(reduced)?;
        let mut sums = [0.0; TERMS];
        sums.copy_from_slice(&values[..TERMS]);
        Ok(Self { denominator, tokens: tokens as f64, sums, probs_diff_max: values[TERMS] })
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.denominator += other.denominator;
        self.tokens += other.tokens;
        self.sums.iter_mut().zip(other.sums).for_each(|(sum, more)| *sum += more);
        self.probs_diff_max = self.probs_diff_max.max(other.probs_diff_max);
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.sums.iter().all(|sum| sum.is_finite())
    }

    /// The metrics of a step in verl's names; `coefficients` are those of KL divergence and entropy in the loss.
    pub(crate) fn metrics(&self, update: Update, (kl_coef, entropy_coeff): (f64, f64)) -> Metrics {
        let [pg_loss, kl_loss, entropy, clipped, lower, log_ratio, probs_diff] = self.sums;
        let mean = |sum: f64| sum / self.denominator;
        let per_token = |sum: f64| sum / self.tokens;
        let mut metrics = vec![
            ("actor/loss", mean(pg_loss + kl_coef * kl_loss - entropy_coeff * entropy)),
            ("actor/pg_loss", mean(pg_loss)),
            ("actor/pg_clipfrac", per_token(clipped)),
            ("actor/pg_clipfrac_lower", per_token(lower)),
            ("actor/ppo_kl", per_token(-log_ratio)),
            ("actor/entropy", mean(entropy)),
            ("actor/grad_norm", update.grad_norm),
            ("actor/lr", update.learning_rate),
            ("training/rollout_probs_diff_mean", per_token(probs_diff)),
            ("training/rollout_probs_diff_max", self.probs_diff_max),
        ];
        if kl_coef > 0.0 {
            metrics.extend([("actor/kl_loss", mean(kl_loss)), ("actor/kl_coef", kl_coef)]);
        }
        metrics.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
    }
}
