//! Retries.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rollpacker_stages::reward::{Context, ErrorKind, Reward, RewardError, Sample, Score};

use super::Cost;

/// The wait from which on there is no further attempt, so that a server that requests a wait of a day does not block a run for a day.
const PATIENCE: Duration = Duration::from_secs(600);

/// A reward that is called again after a retryable error or a timeout.
pub struct Retry<R> {
    reward: R,
    attempts: u32,
    backoff: Backoff,
}

impl<R: Reward> Retry<R> {
    /// Makes at most `attempts` attempts.
    #[must_use]
    pub fn new(reward: R, attempts: u32, backoff: Backoff) -> Self {
        Self { reward, attempts, backoff }
    }

    /// Returns the wait after the failed attempt `attempt`, counted from 1. Returns the error itself if there is no further attempt, or
    /// none before the deadline.
    fn wait(
        &self,
        attempt: u32,
        error: RewardError,
        context: &Context,
    ) -> Result<Duration, RewardError> {
        if !matches!(error.kind, ErrorKind::Retryable | ErrorKind::Timeout) {
            return Err(error);
        }
        let wait = self.backoff.wait(attempt).max(error.retry_after.unwrap_or_default());
        let patience = context.remaining().unwrap_or(PATIENCE).min(PATIENCE);
        let in_time = wait < patience;
        if attempt < self.attempts && in_time {
            return Ok(wait);
        }
        let tries = if attempt == 1 { "attempt" } else { "attempts" };
        Err(RewardError { reason: format!("after {attempt} {tries}: {}", error.reason), ..error })
    }
}

impl<R: Reward> Reward for Retry<R> {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let mut attempt = 1;
        loop {
            let error = match self.reward.score(sample, context).await {
                Ok(score) => return Ok(score),
                Err(error) => error,
            };
            let wait = self.wait(attempt, error, context)?;
            context.metric("retries", 1.0);
            tokio::time::sleep(wait).await;
            attempt += 1;
        }
    }

    fn cost(&self, sample: &Sample) -> Cost {
        self.reward.cost(sample)
    }
}

/// Exponential backoff: waits that double, up to a minute. Each is shortened by up to a half at random, so that calls that failed together
/// do not return together.
pub struct Backoff {
    first: Duration,
    rng: Mutex<ChaCha8Rng>,
}

impl From<Duration> for Backoff {
    /// Starts with a wait of `first`.
    fn from(first: Duration) -> Self {
        Self { first, rng: Mutex::new(ChaCha8Rng::seed_from_u64(0)) }
    }
}

impl Backoff {
    const LONGEST: Duration = Duration::from_secs(60);

    fn wait(&self, attempt: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempt - 1).and_then(|by| self.first.checked_mul(by));
        let jitter: f64 =
            self.rng.lock().unwrap_or_else(PoisonError::into_inner).random_range(0.5..1.0);
        doubled.unwrap_or(Self::LONGEST).min(Self::LONGEST).mul_f64(jitter)
    }
}
