//! The progress of a server, by which a client distinguishes a response that waits from a response that is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::call::Limits;
use crate::http::{Events, ServerError};

/// Detects whether a server has stalled, from the time of its last progress.
#[derive(Debug)]
pub(crate) struct StallDetector {
    start: Instant,
    /// The time of the last progress, in milliseconds from `start`.
    last: AtomicU64,
    /// `true` while the server is paused for a load, when no token is due.
    paused: AtomicBool,
    stall: Duration,
}

impl StallDetector {
    pub(crate) fn new(limits: Limits) -> Self {
        let (last, paused) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { start: Instant::now(), last, paused, stall: limits.stall }
    }

    pub(crate) fn record_progress(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Records that the server is paused, so that no token is due, or has resumed. Either counts as progress.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.record_progress();
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Returns the next event of a response; `None` after the last one. Fails if the stream breaks. Also fails if the response had no event
    /// for the stall limit while the server made no progress, or had none for ten times the limit. Pauses do not count.
    pub(crate) async fn next_event(
        &self,
        path: &str,
        events: &mut Events,
    ) -> Result<Option<String>, ServerError> {
        let mut silent = Duration::ZERO;
        loop {
            match tokio::time::timeout(self.stall, events.next()).await {
                Ok(event) => {
                    self.record_progress();
                    return event;
                }
                Err(_) if self.is_paused() => silent = Duration::ZERO,
                Err(_) => silent += self.stall,
            }
            if self.is_stalled(silent) {
                return Err(events.endpoint().stall_error(path, silent));
            }
        }
    }

    /// Returns the maximum time without a token (see [`Limits::stall`]).
    pub(crate) fn stall_limit(&self) -> Duration {
        self.stall
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Returns `true` if a response that had no event for the time `silent` is lost.
    fn is_stalled(&self, silent: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let moves = self.start.elapsed().saturating_sub(last) < self.stall;
        silent >= self.stall * if moves { 10 } else { 1 }
    }
}
