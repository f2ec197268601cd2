//! Wrappers that bound a reward: timeout, retries, concurrency, budgets and a cache.

mod cached;
mod retry;
mod timeout;

use std::time::Duration;

use serde::{Deserialize, Serialize};

pub use cached::Cached;
pub use retry::{Backoff, Retry};
pub use timeout::Timeout;

use rollpacker_stages::catalog::{CatalogError, Options, check_range, read, take};
use rollpacker_stages::documented;
use rollpacker_stages::documented::{Documented, names};
use rollpacker_stages::reward::{Budgets, Cost, Limited, Reward, SharedReward};

documented! {
    /// Options that bound any reward, as written in a recipe. By default nothing is bounded.
    ///
    /// The wrappers apply from the outside in: cache, retries, concurrency and budgets, timeout. Each attempt waits for a free slot
    /// (`concurrency`) and for its budget; the timeout starts only after that wait.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Guard {
        /// The maximum time of a call. From 1e-6 to 86400. Default: no limit.
        pub timeout_s: Option<f64> [seconds],
        /// The maximum number of attempts for a sample. A call is repeated after a
        /// [retryable](rollpacker_stages::reward::ErrorKind::Retryable) error or a
        /// [timeout](rollpacker_stages::reward::ErrorKind::Timeout). From 1 to 1000. Default: 1.
        pub attempts: u32,
        /// The wait before the second attempt. It doubles for each further attempt, up to a minute, and is shortened by up to a half at
        /// random. The wait is at least as long as the server requests; if that is ten minutes or more, there is no further attempt. From
        /// 1e-6 to 86400. Default: 1.
        pub backoff_s: f64 [seconds],
        /// The maximum number of concurrent calls. At least 1. Default: no limit.
        pub concurrency: Option<usize>,
        /// The maximum mean rate of requests. A burst may use the budget of a whole minute at once. From 1e-3 to 1e12. Default: no limit.
        pub requests_per_minute: Option<f64> [requests per minute],
        /// The maximum mean rate of tokens, [as estimated](rollpacker_stages::reward::Reward::cost). A burst may use the budget of a whole
        /// minute at once. From 1e-3 to 1e12. Default: no limit.
        pub tokens_per_minute: Option<f64> [tokens per minute],
        /// The maximum number of scores to cache. Responses share a score if all inputs of the reward are equal. 0 disables the cache. At
        /// least 0. Default: 0.
        pub cache: usize,
    }
}

/// The range of times in seconds: a microsecond to a day.
const SECONDS_RANGE: (f64, f64) = (1e-6, 86_400.0);

/// The range of rates per minute. The lowest rate allows one request or token in about 17 hours, so that no call waits forever.
const RATE_RANGE: (f64, f64) = (1e-3, 1e12);

const MAX_ATTEMPTS: f64 = 1000.0;

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
    /// The names of the guard's options. In a recipe, they are written together with the options of the reward.
    pub const KEYS: [&str; 7] = names(Self::FIELDS);

    /// Removes the guard's options from the options of a reward and parses them.
    ///
    /// # Errors
    /// If an option has the wrong type.
    pub fn take(options: &mut Options) -> Result<Self, CatalogError> {
        read(take(options, &Self::KEYS))
    }

    /// Returns a reward in the wrappers that the options require, or the reward itself if they require none.
    ///
    /// # Errors
    /// If an option is out of range.
    pub fn wrap(&self, reward: impl Reward) -> Result<SharedReward, CatalogError> {
        let mut reward = SharedReward::new(reward);
        if let Some(seconds) = self.timeout_s {
            reward = SharedReward::new(Timeout::new(reward, duration("timeout_s", seconds)?));
        }
        if let Some(budgets) = self.budgets()? {
            reward = SharedReward::new(Limited::new(reward, budgets)?);
        }
        check_bounds("attempts", f64::from(self.attempts), 1.0, MAX_ATTEMPTS)?;
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
            rate.map(|rate| check_bounds(key, rate, RATE_RANGE.0, RATE_RANGE.1)).transpose()
        };
        let budgets = Budgets {
            concurrency: self.concurrency,
            requests_per_minute: rate("requests_per_minute", self.requests_per_minute)?,
            tokens_per_minute: rate("tokens_per_minute", self.tokens_per_minute)?,
        };
        Ok((budgets != Budgets::default()).then_some(budgets))
    }
}

/// Converts an option in seconds to a duration. Returns an error if it is not within [`SECONDS_RANGE`].
pub(crate) fn duration(key: &str, seconds: f64) -> Result<Duration, CatalogError> {
    check_bounds(key, seconds, SECONDS_RANGE.0, SECONDS_RANGE.1).map(Duration::from_secs_f64)
}

fn check_bounds(key: &str, value: f64, min: f64, max: f64) -> Result<f64, CatalogError> {
    let expected = if value > 0.0 {
        format!("a number from {min} to {max}")
    } else {
        "a number above 0".into()
    };
    check_range(key, value, |value| (min..=max).contains(&value), &expected)?;
    Ok(value)
}

#[cfg(test)]
mod tests;
