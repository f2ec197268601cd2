//! The circuit breaker of a server.

use std::time::Duration;

use failsafe::StateMachine;
use failsafe::backoff::{self, EqualJittered};
use failsafe::failure_policy::{self, ConsecutiveFailures};

/// The number of failures in a row after which the circuit breaker opens.
const FAILURES: u32 = 3;

/// Decides how soon a server that fails is called or started again: at once after a first failure, and after a growing time of 1 to 30 s
/// from the third one in a row on.
#[derive(Clone)]
pub(crate) struct Breaker(StateMachine<ConsecutiveFailures<EqualJittered>, ()>);

impl Default for Breaker {
    fn default() -> Self {
        let delays = backoff::equal_jittered(Duration::from_secs(1), Duration::from_secs(30));
        Self(StateMachine::new(failure_policy::consecutive_failures(FAILURES, delays), ()))
    }
}

impl Breaker {
    pub(crate) fn succeeded(&self) {
        self.0.on_success();
    }

    pub(crate) fn failed(&self) {
        self.0.on_error();
    }

    /// Waits until the server may be called or started.
    pub(crate) async fn permitted(&self) {
        /// The delays of the breaker are seconds.
        const INTERVAL: Duration = Duration::from_millis(100);
        while !self.0.is_call_permitted() {
            tokio::time::sleep(INTERVAL).await;
        }
    }
}
