//! GPG: group policy gradient.

use super::{Estimate, TokenAdvantage, Trajectory};

/// `(score - mean) * n / max(m, 1)` (Chu et al. 2025, GPG; verl's `gpg`). Here `mean` is the mean score of the group, or 0 for a group of
/// one. `n` is the number of responses in the step, and `m` is the number of those with a nonzero score.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Gpg;

impl TokenAdvantage for Gpg {
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let scored = trajectories.iter().filter(|one| one.score != 0.0).count().max(1);
        let factor = trajectories.len() as f64 / scored as f64;
        let groups = trajectories.chunk_by(|one, next| one.group == next.group);
        groups
            .flat_map(|group| {
                let sum: f64 = group.iter().map(|one| one.score).sum();
                let mean = if group.len() > 1 { sum / group.len() as f64 } else { 0.0 };
                group.iter().map(move |one| Estimate {
                    advantages: vec![factor * (one.score - mean); one.rewards.len()],
                    returns: Vec::new(),
                })
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_without_variance_raise_the_scale_of_the_others() {
        let one =
            |group, score| Trajectory { group, score, rewards: vec![0.0, score], values: vec![] };
        let found = Gpg.estimate(&[one(0, 1.0), one(0, 0.0), one(1, 0.0), one(1, 0.0)]);
        let found: Vec<_> = found.into_iter().map(|one| one.advantages).collect();
        assert_eq!(found, [[2.0; 2], [-2.0; 2], [0.0; 2], [0.0; 2]]);
    }
}
