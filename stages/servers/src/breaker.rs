//! The circuit breaker of a server.

use std::time::Duration;

use failsafe::StateMachine;
use failsafe::backoff::{self, EqualJittered};
use failsafe::failure_policy::{self, ConsecutiveFailures};

/// The number of failures in a row after which the circuit breaker opens. The delay after the third failure is 0 s, because `failsafe`
/// rounds half of the first second down to whole seconds.
const MAX_FAILURES: u32 = 3;

/// Decides how soon a failing server is called or started again. There is no delay after the first three failures in a row. From the
/// fourth failure on, the delay grows exponentially from 1 to 2 s up to 15 to 30 s; within each range it is random. Failures that are
/// recorded during a delay do not count.
#[derive(Clone)]
pub(crate) struct Breaker(StateMachine<ConsecutiveFailures<EqualJittered>, ()>);

impl Default for Breaker {
    fn default() -> Self {
        let delays = backoff::equal_jittered(Duration::from_secs(1), Duration::from_secs(30));
        Self(StateMachine::new(failure_policy::consecutive_failures(MAX_FAILURES, delays), ()))
    }
}

impl Breaker {
    pub(crate) fn record_success(&self) {
        self.0.on_success();
    }

    pub(crate) fn record_failure(&self) {
        self.0.on_error();
    }

    /// Waits until the server may be called or started.
    pub(crate) async fn wait_until_permitted(&self) {
        /// The time between two checks. It is short in comparison with the delays of the breaker.
        const CHECK_INTERVAL: Duration = Duration::from_millis(100);
        while !self.0.is_call_permitted() {
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_fourth_failure_in_a_row_delays_the_next_call() {
        let breaker = Breaker::default();
        for _ in 0..MAX_FAILURES {
            breaker.record_failure();
            breaker.wait_until_permitted().await;
        }
        breaker.record_failure();
        assert!(!breaker.0.is_call_permitted());
    }
}
