//! Group-relative advantages: GRPO, Dr. GRPO and RLOO.

use super::{Advantage, ScoredResponse};

/// Group-relative advantage `(s - mean) / (std + epsilon)`, with the unbiased standard deviation (DeepSeekMath, section 4.1; verl's
/// `grpo`). Without `norm_by_std` it is the advantage of Dr. GRPO, `s - mean`.
///
/// For a group of one, the mean is taken as 0 and the standard deviation as 1, as in verl.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Grpo {
    /// `true` to divide by the standard deviation of the group. Default: `true`. (verl: `algorithm.norm_adv_by_std_in_grpo`)
    pub norm_by_std: bool,
    /// Added to the standard deviation. Must be positive, because the standard deviation of equal scores is 0. Default: 1e-6.
    pub epsilon: f64,
}

impl Default for Grpo {
    fn default() -> Self {
        Self { norm_by_std: true, epsilon: 1e-6 }
    }
}

impl Advantage for Grpo {
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
        let (mean, deviation) = if group.len() > 1 { moments(group) } else { (0.0, 1.0) };
        let scale = if self.norm_by_std { deviation + self.epsilon } else { 1.0 };
        group.iter().map(|one| (one.score - mean) / scale).collect()
    }
}

/// Leave-one-out advantage: the score minus the mean of the other scores (RLOO, section 3).
///
/// For a group of one, the advantage is the score, as in verl.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rloo;

impl Advantage for Rloo {
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
        let others = group.len().saturating_sub(1) as f64;
        let sum: f64 = group.iter().map(|one| one.score).sum();
        group
            .iter()
            .map(
                |one| if others > 0.0 { one.score - (sum - one.score) / others } else { one.score },
            )
            .collect()
    }
}

/// Returns the mean and the unbiased standard deviation of at least two scores.
pub(super) fn moments(group: &[ScoredResponse]) -> (f64, f64) {
    let count = group.len() as f64;
    let mean = group.iter().map(|one| one.score).sum::<f64>() / count;
    let squares: f64 = group.iter().map(|one| (one.score - mean).powi(2)).sum();
    (mean, (squares / (count - 1.0)).sqrt())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(scores: &[f64]) -> Vec<ScoredResponse> {
        scores.iter().map(|&score| ScoredResponse { score, tokens: 1 }).collect()
    }

    fn check(found: &[f64], expected: &[f64]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() < 1e-5, "{found} is not {expected}");
        }
    }

    #[test]
    fn grpo_is_relative_to_mean_and_unbiased_deviation() {
        check(
            &Grpo::default().advantages(&group(&[1.0, 0.0, 0.0, 1.0])),
            &[0.866_02, -0.866_02, -0.866_02, 0.866_02],
        );
        check(&Grpo::default().advantages(&group(&[0.5; 4])), &[0.0; 4]);
        check(&Grpo::default().advantages(&group(&[0.7])), &[0.7]);
    }

    #[test]
    fn dr_grpo_keeps_the_scale() {
        let estimator = Grpo { norm_by_std: false, ..Grpo::default() };
        check(&estimator.advantages(&group(&[3.0, 1.0])), &[1.0, -1.0]);
    }

    #[test]
    fn rloo_leaves_one_out() {
        check(&Rloo.advantages(&group(&[1.0, 0.0, 0.5])), &[0.75, -0.75, 0.0]);
        check(&Rloo.advantages(&group(&[0.7])), &[0.7]);
    }
}
