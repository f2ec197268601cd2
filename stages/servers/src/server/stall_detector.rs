//! The progress of a server, by which a client distinguishes a response that waits from a response that is lost.

use std::pin::pin;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::{Instant, timeout};

use super::call::Limits;
use crate::http::{Endpoint, Events, ServerError};

/// The factor by which a single response may exceed the stall limit while its server makes progress.
const WAITING_FACTOR: u32 = 10;

/// Detects whether a server has stalled, from the time of its last progress. Pauses do not count: all times are those of an
/// [`ActiveClock`].
#[derive(Debug)]
pub(crate) struct StallDetector {
    clock: Mutex<ActiveClock>,
    stall: Duration,
}

/// The time that a server has not been paused for. No token is due during a pause.
#[derive(Debug)]
struct ActiveClock {
    start: Instant,
    /// The begin of the current pause; `None` if the server is not paused.
    paused_since: Option<Instant>,
    /// The total time of the earlier pauses.
    paused: Duration,
    /// The time of the last progress.
    last_progress: Duration,
}

impl ActiveClock {
    fn now(&self) -> Duration {
        let until = self.paused_since.unwrap_or_else(Instant::now);
        (until - self.start).saturating_sub(self.paused)
    }
}

impl StallDetector {
    pub(crate) fn new(limits: Limits) -> Self {
        let clock = ActiveClock {
            start: Instant::now(),
            paused_since: None,
            paused: Duration::ZERO,
            last_progress: Duration::ZERO,
        };
        Self { clock: Mutex::new(clock), stall: limits.stall }
    }

    pub(crate) fn record_progress(&self) {
        let mut clock = self.lock();
        clock.last_progress = clock.now();
    }

    /// Records that the server is paused, so that no token is due, or has resumed. Either counts as progress.
    pub(crate) fn set_paused(&self, paused: bool) {
        let mut clock = self.lock();
        match (paused, clock.paused_since) {
            (true, None) => clock.paused_since = Some(Instant::now()),
            (false, Some(since)) => {
                clock.paused += since.elapsed();
                clock.paused_since = None;
            }
            _ => {}
        }
        clock.last_progress = clock.now();
    }

    /// Returns the next event of a response; `None` after the last one. Fails if the stream breaks or the response is lost, as defined for
    /// [`next_part`](Self::next_part).
    pub(crate) async fn next_event(
        &self,
        path: &str,
        events: &mut Events,
    ) -> Result<Option<String>, ServerError> {
        let next = self.wait(events.next(), |silent| self.is_lost(silent)).await;
        next.unwrap_or_else(|silent| Err(events.endpoint().stall_error(path, silent)))
    }

    /// Waits for a part of a response, such as the headers before its events. Fails if the part fails, or if the response is lost: nothing
    /// arrives for the stall limit while the server makes no progress, or for ten times the limit. Pauses do not count.
    pub(crate) async fn next_part<T>(
        &self,
        (endpoint, path): (&Endpoint, &str),
        part: impl Future<Output = Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        let part = self.wait(part, |silent| self.is_lost(silent)).await;
        part.unwrap_or_else(|silent| Err(endpoint.stall_error(path, silent)))
    }

    /// Waits for a response that arrives as a whole. Fails if the response fails, or does not arrive within ten times the stall limit.
    /// Pauses do not count.
    pub(crate) async fn whole<T>(
        &self,
        (endpoint, path): (&Endpoint, &str),
        response: impl Future<Output = Result<T, ServerError>>,
    ) -> Result<T, ServerError> {
        let limit = WAITING_FACTOR * self.stall;
        let response = self.wait(response, |silent| silent >= limit).await;
        response.unwrap_or_else(|silent| Err(endpoint.stall_error(path, silent)))
    }

    /// Waits for `part` and records its arrival as progress. Once per stall limit, passes the time that the part has taken so far, without
    /// pauses, to `is_lost`. If `is_lost` returns `true`, gives up and returns this time as the error.
    async fn wait<T>(
        &self,
        part: impl Future<Output = T>,
        is_lost: impl Fn(Duration) -> bool,
    ) -> Result<T, Duration> {
        let mut part = pin!(part);
        let begin = self.lock().now();
        loop {
            if let Ok(part) = timeout(self.stall, &mut part).await {
                self.record_progress();
                return Ok(part);
            }
            let silent = self.lock().now().saturating_sub(begin);
            if is_lost(silent) {
                return Err(silent);
            }
        }
    }

    /// Returns `true` if a response is lost of which nothing has arrived for the time `silent`.
    fn is_lost(&self, silent: Duration) -> bool {
        let clock = self.lock();
        let moves = clock.now().saturating_sub(clock.last_progress) < self.stall;
        silent >= self.stall * if moves { WAITING_FACTOR } else { 1 }
    }

    fn lock(&self) -> MutexGuard<'_, ActiveClock> {
        self.clock.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::future::pending;

    use futures::future::join;
    use tokio::time::sleep;

    use super::*;

    const STALL: Duration = Duration::from_secs(10);

    fn detector() -> StallDetector {
        StallDetector::new(Limits { stall: STALL, ..Limits::default() })
    }

    async fn wait_for(detector: &StallDetector, part: impl Future<Output = ()>) -> bool {
        detector.wait(part, |silent| detector.is_lost(silent)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_response_is_lost_sooner_if_its_server_is_silent_too() {
        let detector = detector();
        assert!(wait_for(&detector, sleep(STALL / 2)).await);
        assert!(!wait_for(&detector, sleep(3 * STALL)).await);
        let moves = async {
            loop {
                sleep(STALL / 2).await;
                detector.record_progress();
            }
        };
        let waited = async {
            (wait_for(&detector, sleep(9 * STALL)).await, wait_for(&detector, pending()).await)
        };
        tokio::select! {
            () = moves => {}
            waited = waited => assert_eq!(waited, (true, false)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_of_a_pause_is_no_stall() {
        let detector = detector();
        let pause = async {
            sleep(STALL / 2).await;
            detector.set_paused(true);
            sleep(20 * STALL).await;
            detector.set_paused(false);
        };
        let part = sleep(20 * STALL + STALL * 4 / 5);
        assert_eq!(join(wait_for(&detector, part), pause).await, (true, ()));
    }

    #[tokio::test(start_paused = true)]
    async fn the_times_of_short_pauses_are_no_stall_either() {
        let detector = detector();
        let pauses = async {
            loop {
                detector.set_paused(true);
                sleep(STALL * 9 / 10).await;
                detector.set_paused(false);
                sleep(STALL / 10).await;
            }
        };
        tokio::select! {
            () = pauses => {}
            arrived = wait_for(&detector, sleep(50 * STALL)) => assert!(arrived),
        }
    }
}
