//! Wrappers that keep a reward in bounds: time, tries, calls at once, budgets, memory of what was asked.

mod cached;
mod cost;
mod limited;
mod retry;
mod timeout;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cached::Cached;
pub use cost::Cost;
pub(super) use limited::Buckets;
pub use limited::{Budgets, Limited};
pub use retry::{Backoff, Retry};
pub use timeout::Timeout;

use super::{Reward, SharedReward};
use crate::catalog::{CatalogError, Options, read, take};

/// What every reward may be wrapped in, as a recipe has it. By default nothing.
///
/// From the outside in: the cache is asked first; then come the tries; each of them waits for its turn and its budget; and only then does
/// the time of the call begin.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Guard {
    /// The longest call, in seconds; none by default.
    pub timeout_s: Option<f64>,
    /// How often a sample is tried while it [may help](super::ErrorKind::Retryable) or [takes too long](super::ErrorKind::Timeout).
    pub attempts: u32,
    /// The wait before the second try, in seconds, doubled for each further one and shortened by up to a half at random; at least what
    /// the server asks for, which is given up where that is ten minutes or more.
    pub backoff_s: f64,
    /// Calls at once; any number by default.
    pub concurrency: Option<usize>,
    /// Requests a minute, in the long run; as many may be made at once.
    pub requests_per_minute: Option<f64>,
    /// Tokens a minute, in the long run, [as estimated](super::Reward::cost); as many may be spent at once.
    pub tokens_per_minute: Option<f64>,
    /// Scores that are remembered, by all that a reward sees of a sample; none by default.
    pub cache: usize,
}

/// Times of a call, seconds: a microsecond to a day.
const SECONDS: (f64, f64) = (1e-6, 86_400.0);

/// Requests or tokens a minute: from one in 16 hours on, so that no call waits for ever.
const RATES: (f64, f64) = (1e-3, 1e12);

/// Tries of a sample.
const MOST_ATTEMPTS: f64 = 1000.0;

impl Default for Guard {
    fn default() -> Self {
        Self {
            timeout_s: None,
            attempts: 1,
            backoff_s: 1.0,
            concurrency: None,
            requests_per_minute: None,
            tokens_per_minute: None,
            cache: 0,
        }
    }
}

impl Guard {
    /// The options that are the guard's, in a recipe beside the reward's own.
    pub const KEYS: [&str; 7] = [
        "timeout_s",
        "attempts",
        "backoff_s",
        "concurrency",
        "requests_per_minute",
        "tokens_per_minute",
        "cache",
    ];

    /// Takes the guard's options out of a reward's.
    ///
    /// # Errors
    /// If one is of the wrong type.
    pub fn take(options: &mut Options) -> Result<Self, CatalogError> {
        read(take(options, &Self::KEYS))
    }

    /// Wraps a reward.
    ///
    /// # Errors
    /// If an option is out of its bounds.
    pub fn wrap(&self, reward: impl Reward) -> Result<SharedReward, CatalogError> {
        let mut reward = SharedReward::new(reward);
        if let Some(seconds) = self.timeout_s {
            reward = SharedReward::new(Timeout::new(reward, duration("timeout_s", seconds)?));
        }
        if let Some(budgets) = self.budgets()? {
            reward = SharedReward::new(Limited::new(reward, budgets));
        }
        within("attempts", f64::from(self.attempts), 1.0, MOST_ATTEMPTS)?;
        let backoff = Backoff::from(duration("backoff_s", self.backoff_s)?);
        if self.attempts > 1 {
            reward = SharedReward::new(Retry::new(reward, self.attempts, backoff));
        }
        if self.cache > 0 {
            reward = SharedReward::new(Cached::new(reward, self.cache));
        }
        Ok(reward)
    }

    fn budgets(&self) -> Result<Option<Budgets>, CatalogError> {
        let rate = |key, rate: Option<f64>| {
            rate.map(|rate| within(key, rate, RATES.0, RATES.1)).transpose()
        };
        if self.concurrency == Some(0) {
            return Err(CatalogError::bound("concurrency", "a number above 0", 0));
        }
        let budgets = Budgets {
            concurrency: self.concurrency,
            requests_per_minute: rate("requests_per_minute", self.requests_per_minute)?,
            tokens_per_minute: rate("tokens_per_minute", self.tokens_per_minute)?,
        };
        Ok((budgets != Budgets::default()).then_some(budgets))
    }
}

fn duration(key: &str, seconds: f64) -> Result<Duration, CatalogError> {
    within(key, seconds, SECONDS.0, SECONDS.1).map(Duration::from_secs_f64)
}

fn within(key: &str, value: f64, least: f64, most: f64) -> Result<f64, CatalogError> {
    if value.is_nan() || value <= 0.0 {
        return Err(CatalogError::bound(key, "a number above 0", value));
    }
    let wrong = || CatalogError::bound(key, &format!("a number from {least} to {most}"), value);
    (least..=most).contains(&value).then_some(value).ok_or_else(wrong)
}

#[cfg(test)]
mod tests;
