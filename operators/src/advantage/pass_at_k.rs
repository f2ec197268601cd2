//! GRPO for pass@k.

use super::grpo::moments;
use super::{Advantage, ScoredResponse};

/// Rewards only the best response of a group (verl's `grpo_passk`). The advantage of the best response is its score minus the second best
/// score. If `norm_by_std` is `true`, the difference is divided by the group's standard deviation plus `epsilon`. All other responses have
/// advantage 0, and so has the response of a group of one.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PassAtK {
    /// `true` to divide by the standard deviation of the group. (verl: `algorithm.norm_adv_by_std_in_grpo`)
    pub norm_by_std: bool,
    /// Added to the standard deviation. Must be positive, because the standard deviation of equal scores is 0.
    pub epsilon: f64,
}

impl Advantage for PassAtK {
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
        let mut advantages = vec![0.0; group.len()];
        let mut order: Vec<usize> = (0..group.len()).collect();
        order.sort_by(|&a, &b| group[b].score.total_cmp(&group[a].score));
        if let [best, second, ..] = order[..] {
            let scale = if self.norm_by_std { moments(group).1 + self.epsilon } else { 1.0 };
            advantages[best] = (group[best].score - group[second].score) / scale;
        }
        advantages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_best_is_rewarded() {
        let group = [0.0, 3.0, 1.0].map(|score| ScoredResponse { score, tokens: 1 });
        let plain = PassAtK { norm_by_std: false, epsilon: 1e-6 };
        assert_eq!(plain.advantages(&group), [0.0, 2.0, 0.0]);
        let scaled = PassAtK { norm_by_std: true, ..plain }.advantages(&group);
        assert!((scaled[1] - 2.0 / (7.0f64 / 3.0).sqrt()).abs() < 1e-5, "{scaled:?}");
        assert_eq!(plain.advantages(&group[..1]), [0.0]);
    }
}
