//! REINFORCE++, without and with a group baseline.

use rollpacker_stages::documented;
use serde::{Deserialize, Serialize};

use super::whiten::whiten;
use super::{Estimate, TokenAdvantage, Trajectory};

documented! {
    /// The discounted sum of the rewards from each token on, whitened over the tokens of the step (Hu 2025, REINFORCE++; verl's
    /// `reinforce_plus_plus`).
    #[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct ReinforcePlusPlus {
        /// Discount factor per token. In [0, 1]. Default: 1. (verl: `algorithm.gamma`)
        pub gamma: f64,
    }
}

impl Default for ReinforcePlusPlus {
    fn default() -> Self {
        Self { gamma: 1.0 }
    }
}

impl TokenAdvantage for ReinforcePlusPlus {
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let returns: Vec<Vec<f64>> =
            trajectories.iter().map(|one| discounted(&one.rewards, self.gamma)).collect();
        whitened(returns)
    }
}

/// The score minus the group mean, whitened over the tokens of the step (Hu 2025, REINFORCE++; verl's `reinforce_plus_plus_baseline`). The
/// mean of a group of one is taken as 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReinforcePlusPlusBaseline;

impl TokenAdvantage for ReinforcePlusPlusBaseline {
    fn estimate(&self, trajectories: &[Trajectory]) -> Vec<Estimate> {
        let groups = trajectories.chunk_by(|one, next| one.group == next.group);
        let scores = groups.flat_map(|group| {
            let sum: f64 = group.iter().map(|one| one.score).sum();
            let mean = if group.len() > 1 { sum / group.len() as f64 } else { 0.0 };
            group.iter().map(move |one| vec![one.score - mean; one.rewards.len()])
        });
        whitened(scores.collect())
    }
}

/// Returns the discounted sum of the rewards from each token on.
fn discounted(rewards: &[f64], gamma: f64) -> Vec<f64> {
    let later = rewards.iter().rev().scan(0.0, |later, reward| {
        *later = reward + gamma * *later;
        Some(*later)
    });
    let mut returns: Vec<f64> = later.collect();
    returns.reverse();
    returns
}

fn whitened(mut advantages: Vec<Vec<f64>>) -> Vec<Estimate> {
    whiten(&mut advantages);
    let bare = |advantages| Estimate { advantages, returns: Vec::new() };
    advantages.into_iter().map(bare).collect()
}
