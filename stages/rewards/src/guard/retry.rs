//! Retries after retryable errors and timeouts.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rollpacker_stages::reward::{Context, ErrorKind, Reward, RewardError, Sample, Score};

use super::Cost;

/// The wait from which on there is no further attempt. A server that requests a wait of a day must not block a run for a day.
const MAX_WAIT: Duration = Duration::from_secs(600);

/// A reward that is called again after a retryable error or a timeout.
pub struct Retry<R> {
    reward: R,
    attempts: u32,
    backoff: Backoff,
}

impl<R: Reward> Retry<R> {
    /// Makes at most `attempts` attempts per sample; 0 counts as 1.
    #[must_use]
    pub fn new(reward: R, attempts: u32, backoff: Backoff) -> Self {
        Self { reward, attempts, backoff }
    }

    /// Returns the wait after the failed attempt `attempt`, counted from 1. Returns the error if it is neither retryable nor a timeout, if
    /// no attempt is left, or if the wait would last at least [`MAX_WAIT`] or until the deadline.
    fn next_wait(
        &self,
        attempt: u32,
        error: RewardError,
        context: &Context,
    ) -> Result<Duration, RewardError> {
        if !matches!(error.kind, ErrorKind::Retryable | ErrorKind::Timeout) {
            return Err(error);
        }
        let wait = self.backoff.delay(attempt).max(error.retry_after.unwrap_or_default());
        let max_wait = context.remaining().unwrap_or(MAX_WAIT).min(MAX_WAIT);
        let in_time = wait < max_wait;
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
            let wait = self.next_wait(attempt, error, context)?;
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
    /// Creates a backoff whose first wait is at most `first`, and at most a minute.
    fn from(first: Duration) -> Self {
        Self { first, rng: Mutex::new(ChaCha8Rng::seed_from_u64(0)) }
    }
}

impl Backoff {
    const MAX_DELAY: Duration = Duration::from_secs(60);

    fn delay(&self, attempt: u32) -> Duration {
        let doubled = 1_u32.checked_shl(attempt - 1).and_then(|by| self.first.checked_mul(by));
        let jitter: f64 =
            self.rng.lock().unwrap_or_else(PoisonError::into_inner).random_range(0.5..1.0);
        doubled.unwrap_or(Self::MAX_DELAY).min(Self::MAX_DELAY).mul_f64(jitter)
    }
}
