//! A limit on the time of a call.

use std::time::Duration;

use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

use super::Cost;

/// A reward whose calls are dropped when they exceed a time limit, which also ends the requests and processes that they started.
pub struct Timeout<R> {
    reward: R,
    limit: Duration,
}

impl<R: Reward> Timeout<R> {
    /// Drops calls after `limit`.
    #[must_use]
    pub fn new(reward: R, limit: Duration) -> Self {
        Self { reward, limit }
    }
}

impl<R: Reward> Reward for Timeout<R> {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let context = context.within(self.limit);
        let score = tokio::time::timeout(self.limit, self.reward.score(sample, &context)).await;
        let late = |_| RewardError::timeout(format_args!("took longer than {:?}", self.limit));
        score.unwrap_or_else(|elapsed| Err(late(elapsed)))
    }

    fn cost(&self, sample: &Sample) -> Cost {
        self.reward.cost(sample)
    }
}
