//! The canary: a test that a server samples from the weights that were delivered to it.
//!
//! A server can accept a load and keep the old weights, and no call of its protocol shows it: a label is any text that a client set, and
//! checksums may be those of tensors that are not in use. The canary compares the server's log-probabilities (scores) of fixed tokens with
//! those of the trainer's own forward pass.
//!
//! Two rules decide. First, the figures must be within bounds that cover the difference between two implementations. Second, the scores
//! must follow the update: if the trainer's scores have moved by more than twice the difference between server and trainer at the last
//! verified delivery, the server's scores must now be nearer to the new scores than to the old scores. The second rule finds a server that
//! is one update behind. The first rule cannot find such a server, because one update may change the scores by less than the rounding of
//! half precision does.

use std::fmt;
use std::sync::Arc;

/// The tokens and the bounds of the canary.
#[derive(Clone, Debug, PartialEq)]
pub struct CanaryConfig {
    /// The tokens to score; at least 2. They should be ordinary text in the vocabulary of the model.
    pub tokens: Vec<i32>,
    /// The largest [`CanaryFigures::kl`] that passes, in nats.
    pub max_kl: f64,
    /// The largest [`CanaryFigures::max`] that passes, in nats.
    pub max_difference: f64,
}

impl CanaryConfig {
    /// Creates a canary with bounds for half precision: a KL divergence of 0.01, and a difference of 1 nat for a token.
    #[must_use]
    pub fn new(tokens: Vec<i32>) -> Self {
        Self { tokens, max_kl: 0.01, max_difference: 1.0 }
    }
}

/// The comparison of a server's scores with the trainer's scores.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct CanaryFigures {
    /// The mean of `exp(d) - d - 1` over the tokens, where `d` is the trainer's log-probability minus the server's log-probability, in
    /// nats. It is the estimator k3 of the KL divergence (`rollout/canary_kl`).
    pub kl: f64,
    /// The maximum of `|d|` in nats (`rollout/canary_max`).
    pub max: f64,
    /// The mean of `|d|` in nats.
    pub mean: f64,
    /// The mean absolute difference, in nats, between the server's scores and the trainer's scores under the weights of the last verified
    /// delivery to the server. `None` if no delivery to the server was verified before.
    pub to_previous: Option<f64>,
    /// `true` if an update was large enough to be detected, and the server's scores are still nearer to the scores under the previous
    /// weights than to the new scores.
    pub is_stale: bool,
}

impl fmt::Display for CanaryFigures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "canary_kl {:.2e}, canary_max {:.2e}", self.kl, self.max)?;
        if let (true, Some(previous)) = (self.is_stale, self.to_previous) {
            write!(
                f,
                ", and the scores are nearer to those of the previous weights ({previous:.2e} on average) than to the new ones ({:.2e})",
                self.mean
            )?;
        }
        Ok(())
    }
}

/// The scores of the last delivery to a server for which the canary passed. The scores of the next delivery are compared with them.
#[derive(Clone, Debug)]
pub(crate) struct VerifiedDelivery {
    /// The trainer's scores under these weights.
    reference: Arc<[f32]>,
    /// The mean absolute difference between the scores of server and trainer, in nats.
    noise: f64,
}

impl VerifiedDelivery {
    pub(crate) fn new(reference: Arc<[f32]>, figures: &CanaryFigures) -> Self {
        Self { reference, noise: figures.mean }
    }
}

impl CanaryFigures {
    /// Compares a server's scores with the trainer's `reference`, which has the same length. `previous` is the last verified delivery to
    /// the server; `None` if there was none.
    pub(crate) fn compare(
        server: &[f32],
        reference: &[f32],
        previous: Option<&VerifiedDelivery>,
    ) -> Self {
        let differences =
            || server.iter().zip(reference).map(|(s, t)| f64::from(*t) - f64::from(*s));
        let tokens = reference.len().max(1) as f64;
        let kl = differences().map(|d| d.exp() - d - 1.0).sum::<f64>() / tokens;
        let max = differences().map(f64::abs).fold(0.0, f64::max);
        let mean = distance(server, reference);
        let to_previous = previous.map(|previous| distance(server, &previous.reference));
        let is_stale = previous.zip(to_previous).is_some_and(|(previous, to_previous)| {
            let moved = distance(reference, &previous.reference);
            moved > 2.0 * previous.noise + ROUNDING && to_previous < mean
        });
        Self { kl, max, mean, to_previous, is_stale }
    }

    /// Returns `true` if the mean difference exceeds `factor` times `before`, the mean difference that correct weights had, by more than
    /// `ALLOWED_GROWTH`.
    ///
    /// Such a growth indicates that the server loads only a part of the tensors. The scores of such a server follow each update, so
    /// `is_stale` remains `false`, but they deviate a little more each time.
    #[must_use]
    pub(crate) fn has_grown(&self, factor: f64, before: f64) -> bool {
        self.mean > factor * before + ALLOWED_GROWTH
    }

    /// Returns `true` if the figures are within the bounds and the scores have followed the update. Returns `false` if `kl` or `max` is
    /// NaN.
    #[must_use]
    pub fn passes(&self, config: &CanaryConfig) -> bool {
        // Comparisons with NaN are false, so that it never passes.
        self.kl <= config.max_kl && self.max <= config.max_difference && !self.is_stale
    }
}

/// The growth of the mean difference, in nats, that [`CanaryFigures::has_grown`] always permits.
const ALLOWED_GROWTH: f64 = 1e-3;

/// The rounding of single precision in a sum of log-probabilities, in nats. An update that moves the scores by less is not detected.
const ROUNDING: f64 = 1e-6;

/// Returns the mean absolute difference of two lists of scores, in nats.
fn distance(one: &[f32], other: &[f32]) -> f64 {
    let sum: f64 = one.iter().zip(other).map(|(a, b)| (f64::from(*a) - f64::from(*b)).abs()).sum();
    sum / one.len().max(1) as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> CanaryConfig {
        CanaryConfig::new(vec![1, 2, 3])
    }

    fn verified(server: &[f32], reference: &[f32]) -> VerifiedDelivery {
        let figures = CanaryFigures::compare(server, reference, None);
        assert!(figures.passes(&config()), "{figures}");
        VerifiedDelivery::new(reference.into(), &figures)
    }

    #[test]
    fn figures_are_those_of_their_formulas() {
        let figures = CanaryFigures::compare(&[-1.0, -2.0], &[-1.5, -2.0], None);
        assert!((figures.kl - ((-0.5_f64).exp() + 0.5 - 1.0) / 2.0).abs() < 1e-12);
        assert_eq!((figures.max, figures.mean), (0.5, 0.25));
    }

    #[test]
    fn other_weights_are_out_of_bounds() {
        assert!(!CanaryFigures::compare(&[-1.0, -9.0], &[-1.0, -2.0], None).passes(&config()));
        assert!(!CanaryFigures::compare(&[f32::NAN], &[-1.0], None).passes(&config()));
    }

    #[test]
    fn a_server_that_is_one_small_update_old_is_detected() {
        let (old, new) = ([-1.0, -2.0], [-1.0001, -2.0001]);
        let before = verified(&[-1.000_01, -2.0], &old);
        let stale = CanaryFigures::compare(&[-1.000_01, -2.0], &new, Some(&before));
        assert!(stale.max < 1e-3 && stale.is_stale && !stale.passes(&config()));
        let correct = CanaryFigures::compare(&[-1.000_11, -2.0001], &new, Some(&before));
        assert!(correct.passes(&config()), "{correct}");
    }

    #[test]
    fn a_tensor_that_is_never_loaded_shows_as_drift() {
        let exact = CanaryFigures::compare(&[-1.0, -2.0], &[-1.0, -2.000_001], None);
        let after = CanaryFigures::compare(&[-1.0, -2.0], &[-1.003, -2.002], None);
        assert!(!exact.has_grown(10.0, exact.mean) && after.has_grown(10.0, exact.mean));
        // Half precision differs by as much from the start.
        assert!(!after.has_grown(10.0, 0.02));
    }

    #[test]
    fn an_update_below_the_noise_of_the_server_passes() {
        let before = verified(&[-1.02, -2.03], &[-1.0, -2.0]);
        let after = CanaryFigures::compare(&[-1.02, -2.03], &[-1.0001, -2.0001], Some(&before));
        assert!(after.passes(&config()), "{after}");
    }
}
