//! Rewards per token, from scores and the KL penalty.

use arrow_array::types::{Float32Type, Float64Type, Int32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;

use super::Trajectory;

/// The responses of a batch with their rewards, and the mean KL divergence of each response. The KL penalty has been subtracted from
/// rewards and scores.
pub(super) struct Rewarded {
    pub(super) trajectories: Vec<Trajectory>,
    /// Mean divergence per response, in nats per token. Empty without a KL penalty.
    pub(super) divergences: Vec<f64>,
}

/// Reads the responses of a batch. With a `coefficient`, the KL penalty of a token is `coefficient` times its divergence. It is subtracted
/// from the reward of the token and from the score of the response. Values and divergences are read only if the batch is `inferred`.
pub(super) fn rewarded(batch: &Batch, inferred: bool, coefficient: Option<f64>) -> Rewarded {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
    let scores = batch.values::<Float64Type>(column::SCORE);
    let tokens = batch.lists::<Int32Type>(column::RESPONSE_IDS);
    let by_token = batch.lists::<Float32Type>(column::TOKEN_SCORES);
    let floats = |name, row| if inferred { batch.lists::<Float32Type>(name).get(row) } else { &[] };
    let mut divergences = Vec::new();
    let trajectories = (0..batch.num_rows())
        .map(|row| {
            let mut score = scores.value(row);
            let mut rewards = token_rewards(score, by_token.get(row), tokens.get(row).len());
            if let Some(coefficient) = coefficient {
                let kl = floats(column::REWARD_KL, row);
                subtract_kl(&mut rewards, kl, coefficient);
                score -= coefficient * sum(kl);
                divergences.push(sum(kl) / kl.len().max(1) as f64);
            }
            let values = floats(column::VALUES, row);
            let values = values.iter().map(|&value| f64::from(value)).collect();
            Trajectory { group: prompts.value(row), score, rewards, values }
        })
        .collect();
    Rewarded { trajectories, divergences }
}

/// Returns the reward of each of `tokens` tokens. `by_token` has the rewards that are assigned to single tokens; it is empty if there are
/// none. The rest of `score` is added to the last token.
fn token_rewards(score: f64, by_token: &[f32], tokens: usize) -> Vec<f64> {
    let mut rewards: Vec<f64> = by_token.iter().map(|&reward| f64::from(reward)).collect();
    rewards.resize(tokens, 0.0);
    let sum: f64 = rewards.iter().sum();
    if let Some(last) = rewards.last_mut() {
        *last += score - sum;
    }
    rewards
}

fn subtract_kl(rewards: &mut [f64], kl: &[f32], coefficient: f64) {
    for (reward, &kl) in rewards.iter_mut().zip(kl) {
        *reward -= coefficient * f64::from(kl);
    }
}

fn sum(numbers: &[f32]) -> f64 {
    numbers.iter().map(|&number| f64::from(number)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_token_receives_the_score_minus_the_token_rewards() {
        assert_eq!(token_rewards(2.0, &[], 3), [0.0, 0.0, 2.0]);
        assert_eq!(token_rewards(2.0, &[0.5, 0.25, 0.0], 3), [0.5, 0.25, 1.25]);
        assert!(token_rewards(2.0, &[], 0).is_empty());
    }

    #[test]
    fn the_kl_penalty_is_subtracted_per_token() {
        let mut rewards = token_rewards(1.0, &[], 2);
        subtract_kl(&mut rewards, &[0.5, -1.0], 0.1);
        assert_eq!(rewards, [-0.05, 1.1]);
    }
}
