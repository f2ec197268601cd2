//! Further tries.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;

use super::Cost;
use crate::reward::{Context, ErrorKind, Reward, RewardError, Sample, Score};

/// The longest wait that is worth another try: a server that asks to be left alone for a day shall not hold a run for one.
const PATIENCE: Duration = Duration::from_secs(600);

/// A reward that is asked again where another try may help: after an error that is retryable, or a timeout.
pub struct Retry<R> {
    reward: R,
    attempts: u32,
    backoff: Backoff,
}

impl<R: Reward> Retry<R> {
    /// Asks at most `attempts` times.
    #[must_use]
    pub fn new(reward: R, attempts: u32, backoff: Backoff) -> Self {
        Self { reward, attempts, backoff }
    }

    /// How long to wait after the failed try `attempt`, from 1; the error itself if there is no further one, or not in time.
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

/// Waits that double, up to a minute, each shortened at random by up to a half, so that calls that failed together do not come back
/// together.
pub struct Backoff {
    first: Duration,
    rng: Mutex<ChaCha8Rng>,
}

impl From<Duration> for Backoff {
    /// Waits from `first` on.
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
