//! The progress of a server, which distinguishes a response that waits from one that is lost.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::call::Limits;
use crate::http::{Events, ServerError};

/// The time of a server's last token.
#[derive(Debug)]
pub(crate) struct Pulse {
    start: Instant,
    /// Milliseconds from `start`.
    last: AtomicU64,
    /// `true` while the server is paused for a load, when no token is due.
    paused: AtomicBool,
    stall: Duration,
}

impl Pulse {
    pub(crate) fn new(limits: Limits) -> Self {
        let (last, paused) = (AtomicU64::new(0), AtomicBool::new(false));
        Self { start: Instant::now(), last, paused, stall: limits.stall }
    }

    /// Records progress.
    pub(crate) fn beat(&self) {
        let now = u64::try_from(self.start.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.last.fetch_max(now, Ordering::Relaxed);
    }

    /// Sets whether tokens are due.
    pub(crate) fn set_paused(&self, paused: bool) {
        self.beat();
        self.paused.store(paused, Ordering::Relaxed);
    }

    /// Returns the next event of a response. An error if neither the response nor the server made progress for the limit.
    pub(crate) async fn next(
        &self,
        path: &str,
        events: &mut Events,
    ) -> Result<Option<String>, ServerError> {
        let mut silent = Duration::ZERO;
        loop {
            match tokio::time::timeout(self.stall, events.next()).await {
                Ok(event) => {
                    self.beat();
                    return event;
                }
                Err(_) if self.is_paused() => silent = Duration::ZERO,
                Err(_) => silent += self.stall,
            }
            if self.is_dead(silent) {
                return Err(events.endpoint().stalled(path, silent));
            }
        }
    }

    /// Returns the longest time without a token.
    pub(crate) fn stall(&self) -> Duration {
        self.stall
    }

    fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// Returns `true` if a response that was silent for so long is lost.
    fn is_dead(&self, silent: Duration) -> bool {
        let last = Duration::from_millis(self.last.load(Ordering::Relaxed));
        let moves = self.start.elapsed().saturating_sub(last) < self.stall;
        silent >= self.stall * if moves { 10 } else { 1 }
    }
}
