//! GAE: advantages by a critic.

use super::whiten::whiten;
use super::{Estimate, TokenAdvantage, Trajectory};

/// Generalised advantage estimation (Schulman et al. 2016, eq. 16), whitened over the tokens of the step as in verl; the returns are the
/// advantages before that, plus the values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Gae {
    /// Discount of a token; in `[0, 1]`.
    pub gamma: f64,
    /// Decay of later errors of the critic; in `[0, 1]`.
    pub lam: f64,
    /// Whether to whiten. Without, no group waits for another.
    pub whiten: bool,
}

impl TokenAdvantage for Gae {
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let mut advantages: Vec<Vec<f64>> =
            trajectories.iter().map(|one| self.advantages(one)).collect();
        let returns: Vec<Vec<f64>> = advantages
            .iter()
            .zip(trajectories)
            .map(|(advantages, one)| {
                advantages.iter().zip(&one.values).map(|(a, v)| a + v).collect()
            })
            .collect();
        if self.whiten {
            whiten(&mut advantages);
        }
        let both = |(advantages, returns)| Estimate { advantages, returns };
        advantages.into_iter().zip(returns).map(both).collect()
    }

    fn whole_step(&self) -> bool {
        self.whiten
    }

    fn needs_values(&self) -> bool {
        true
    }
}

impl Gae {
    /// From the last token to the first; after the last there is nothing to come.
    fn advantages(&self, one: &Trajectory) -> Vec<f64> {
        let (mut next, mut later) = (0.0, 0.0);
        let backwards = one.rewards.iter().zip(&one.values).rev().map(|(reward, value)| {
            later = reward + self.gamma * next - value + self.gamma * self.lam * later;
            next = *value;
            later
        });
        let mut advantages: Vec<f64> = backwards.collect();
        advantages.reverse();
        advantages
    }
}
