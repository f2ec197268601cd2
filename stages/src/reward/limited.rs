//! Limits on concurrent calls and on requests and tokens per minute.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::Cost;
use crate::catalog::{CatalogError, check_range};
use crate::reward::{Context, Reward, RewardError, Sample, Score};

/// A reward whose calls wait for a free slot and for budget, first come first served. A call that costs more than the budget of a minute
/// takes only the budget of a minute. The metric `queue_s` is the waiting time in seconds.
pub struct Limited<R> {
    reward: R,
    calls: Semaphore,
    buckets: Arc<Buckets>,
}

/// The values that a limit may have.
const POSITIVE: &str = "a number above 0";

/// The limits of a [`Limited`]. A limit must be more than 0; `None` means no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Budgets {
    /// Maximum number of concurrent calls.
    pub concurrency: Option<usize>,
    /// Maximum number of requests per minute.
    pub requests_per_minute: Option<f64>,
    /// Maximum number of tokens per minute.
    pub tokens_per_minute: Option<f64>,
}

impl<R: Reward> Limited<R> {
    /// Limits the calls of a reward.
    ///
    /// # Errors
    /// Returns an error with the name of the field if a limit is not a positive, finite number.
    pub fn new(reward: R, budgets: Budgets) -> Result<Self, CatalogError> {
        let rates = [
            ("requests_per_minute", budgets.requests_per_minute),
            ("tokens_per_minute", budgets.tokens_per_minute),
        ];
        for (key, rate) in rates {
            check_range(key, rate.unwrap_or(1.0), |rate| rate > 0.0, POSITIVE)?;
        }
        if budgets.concurrency == Some(0) {
            return Err(CatalogError::out_of_range("concurrency", POSITIVE, 0));
        }
        let calls = budgets.concurrency.unwrap_or(Semaphore::MAX_PERMITS);
        Ok(Self {
            reward,
            calls: Semaphore::new(calls.min(Semaphore::MAX_PERMITS)),
            buckets: Arc::new(Buckets {
                requests: budgets.requests_per_minute.map(Bucket::new),
                tokens: budgets.tokens_per_minute.map(Bucket::new),
            }),
        })
    }
}

impl<R: Reward> Reward for Limited<R> {
    async fn score(&self, sample: &Sample, context: &Context) -> Result<Score, RewardError> {
        let queued = Instant::now();
        // The slot is acquired before the budget, so that the call starts as soon as the budget is granted.
        let _permit = self.calls.acquire().await.expect("invariant: the semaphore is never closed");
        self.buckets.take(self.reward.cost(sample)).await;
        context.metric("queue_s", queued.elapsed().as_secs_f64());
        self.reward.score(sample, &context.with_budgets(Arc::clone(&self.buckets))).await
    }

    fn cost(&self, sample: &Sample) -> Cost {
        self.reward.cost(sample)
    }
}

/// The token buckets for requests and tokens; `None` means no limit.
pub(in crate::reward) struct Buckets {
    requests: Option<Bucket>,
    tokens: Option<Bucket>,
}

impl Buckets {
    /// Takes the cost from the bucket of requests and then from the bucket of tokens. Waits at each bucket until its level is no longer
    /// negative. Each amount is capped at the allowance of one minute. If the future is dropped while it waits for tokens, the requests
    /// stay taken.
    pub(in crate::reward) async fn take(&self, cost: Cost) {
        if let Some(requests) = &self.requests {
            requests.take(f64::from(cost.requests)).await;
        }
        if let Some(tokens) = &self.tokens {
            tokens.take(cost.tokens as f64).await;
        }
    }
}

/// A token bucket. Its capacity is the allowance of one minute, and it is full at first.
struct Bucket {
    per_minute: f64,
    level: Mutex<BucketLevel>,
}

/// The level of a bucket at a point in time. It is negative while calls wait that have taken more than the bucket held.
struct BucketLevel {
    left: f64,
    at: Option<Instant>,
}

impl Bucket {
    fn new(per_minute: f64) -> Self {
        Self { per_minute, level: Mutex::new(BucketLevel { left: per_minute, at: None }) }
    }

    /// Takes `amount`, capped at the capacity of the bucket, and waits until the level is no longer negative.
    ///
    /// The amount is taken before the wait, not after it: the negative level is what the waiting calls lack, so each new call computes a
    /// wait that includes all earlier calls, and calls are served in order.
    async fn take(&self, amount: f64) {
        let mut pending = PendingAmount { bucket: self, amount: amount.min(self.per_minute) };
        let missing = -self.change(-pending.amount);
        if missing > 0.0 {
            let seconds = 60.0 * missing / self.per_minute;
            tokio::time::sleep(Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)).await;
        }
        pending.amount = 0.0;
    }

    /// Refills the bucket for the time since the last change, changes its level, and returns the new level.
    fn change(&self, by: f64) -> f64 {
        let mut level = self.level.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let since = level.at.replace(now).map_or(Duration::ZERO, |at| now - at);
        let flowed = level.left + since.as_secs_f64() / 60.0 * self.per_minute;
        level.left = flowed.min(self.per_minute) + by;
        level.left
    }
}

/// A guard that returns the amount to the bucket if the call is dropped while it waits.
struct PendingAmount<'a> {
    bucket: &'a Bucket,
    amount: f64,
}

impl Drop for PendingAmount<'_> {
    fn drop(&mut self) {
        if self.amount > 0.0 {
            self.bucket.change(self.amount);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::reward::from_fn;

    #[test]
    fn limits_that_let_no_call_begin_are_refused() {
        let limited = |budgets| Limited::new(from_fn(|_| Ok(1.0.into())), budgets).map(drop);
        limited(Budgets::default()).expect("no limits");
        let rate = Some(60.0);
        limited(Budgets { requests_per_minute: rate, ..Budgets::default() }).expect("a limit");
        for (key, budgets) in [
            ("concurrency", Budgets { concurrency: Some(0), ..Budgets::default() }),
            (
                "requests_per_minute",
                Budgets { requests_per_minute: Some(0.0), ..Budgets::default() },
            ),
            ("tokens_per_minute", Budgets { tokens_per_minute: Some(-1.0), ..Budgets::default() }),
            (
                "tokens_per_minute",
                Budgets { tokens_per_minute: Some(f64::NAN), ..Budgets::default() },
            ),
        ] {
            let error = limited(budgets).expect_err("refused").to_string();
            assert!(error.contains(key) && error.contains(POSITIVE), "{error}");
        }
    }
}
