//! The number of responses that are waiting for a score or being scored, over a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The number of responses of a step whose scoring has not begun, and of those that are being scored. Shared with the tasks that score.
#[derive(Debug, Default)]
pub(crate) struct ScoringLoad {
    queued: Level,
    running: Level,
}

/// A counter with its maximum.
#[derive(Debug, Default)]
struct Level {
    now: AtomicUsize,
    most: AtomicUsize,
}

impl Level {
    fn rise(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        if now > self.most.load(Ordering::Relaxed) {
            self.most.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn fall(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    fn most(&self) -> f64 {
        self.most.load(Ordering::Relaxed) as f64
    }
}

impl ScoringLoad {
    /// Adds a response to the queue. It is removed when the returned value is dropped.
    pub(crate) fn queue(self: &Arc<Self>) -> ScoringSlot {
        self.queued.rise();
        ScoringSlot { load: self.clone(), begun: false }
    }

    /// Returns the maximum number of queued responses and of responses being scored.
    pub(crate) fn most(&self) -> [f64; 2] {
        [self.queued.most(), self.running.most()]
    }
}

/// The entry of one response in the counters. Dropping it removes the response.
#[derive(Debug)]
pub(crate) struct ScoringSlot {
    load: Arc<ScoringLoad>,
    begun: bool,
}

impl ScoringSlot {
    /// Moves the response from the queue to those being scored. Later calls have no effect.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.load.queued.fall();
            self.load.running.rise();
        }
    }
}

impl Drop for ScoringSlot {
    fn drop(&mut self) {
        if self.begun { &self.load.running } else { &self.load.queued }.fall();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_maximum_concurrency_is_kept() {
        let load = Arc::new(ScoringLoad::default());
        let (mut a, mut b, c) = (load.queue(), load.queue(), load.queue());
        a.begin();
        b.begin();
        b.begin();
        drop((a, b, c));
        let mut d = load.queue();
        d.begin();
        assert_eq!(load.most(), [3.0, 2.0]);
        drop(d);
        assert_eq!(
            [&load.queued, &load.running].map(|level| level.now.load(Ordering::Relaxed)),
            [0, 0]
        );
    }
}
