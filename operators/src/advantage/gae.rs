//! GAE: advantages from a critic.

use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::whiten::whiten;
use super::{Estimate, TokenAdvantage, Trajectory};

documented! {
    /// Generalized advantage estimation (Schulman et al. 2016, eq. 16). If `whiten` is `true`, the advantages are whitened over the tokens
    /// of the step, as in verl. The returns are the advantages before whitening plus the values.
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Gae {
        /// Discount factor per token. In [0, 1]. Default: 1. (verl: `algorithm.gamma`)
        pub gamma: f64,
        /// Decay of later temporal-difference errors. In [0, 1]. Default: 1. (verl: `algorithm.lam`)
        pub lam: f64,
        /// `true` to whiten over the step. If `false`, groups are estimated without waiting for the rest of the step. Default: `true`.
        pub whiten: bool,
    }
}

impl Default for Gae {
    fn default() -> Self {
        Self { gamma: 1.0, lam: 1.0, whiten: true }
    }
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
    /// Returns the advantages, computed backwards from the last token. The value after the last token is 0.
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
