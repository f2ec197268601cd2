//! A limit on the time of a call.

use std::time::Duration;

use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

use super::Cost;

/// A reward with a time limit. A call that exceeds it is dropped, which also ends its requests and processes.
pub struct Timeout<R> {
    reward: R,
    limit: Duration,
}

impl<R: Reward> Timeout<R> {
    /// Limits each call to `limit`. A call that takes longer ends with a [timeout](rollpacker_stages::reward::ErrorKind::Timeout) error.
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
