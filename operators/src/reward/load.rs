//! The numbers of responses that wait for scoring and that are being scored, with their maximum over a step.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// The scoring load of one step: the number of responses that wait for scoring, and the number that are being scored. The operator shares
/// the counts with the tasks that score.
#[derive(Debug, Default)]
pub(crate) struct ScoringLoad {
    queued: Level,
    running: Level,
}

/// A counter, and the maximum that it has reached.
#[derive(Debug, Default)]
struct Level {
    now: AtomicUsize,
    max: AtomicUsize,
}

impl Level {
    fn increment(&self) {
        let now = self.now.fetch_add(1, Ordering::Relaxed) + 1;
        if now > self.max.load(Ordering::Relaxed) {
            self.max.fetch_max(now, Ordering::Relaxed);
        }
    }

    fn decrement(&self) {
        self.now.fetch_sub(1, Ordering::Relaxed);
    }

    fn max(&self) -> f64 {
        self.max.load(Ordering::Relaxed) as f64
    }
}

impl ScoringLoad {
    /// Adds a response to the queue. The response is removed when the returned value is dropped.
    pub(crate) fn queue(self: &Arc<Self>) -> ScoringSlot {
        self.queued.increment();
        ScoringSlot { load: self.clone(), begun: false }
    }

    /// Returns the maximum number of queued responses and the maximum number of responses being scored, over the step so far.
    pub(crate) fn max(&self) -> [f64; 2] {
        [self.queued.max(), self.running.max()]
    }
}

/// The entry of one response in the counters. Dropping it removes the response.
#[derive(Debug)]
pub(crate) struct ScoringSlot {
    load: Arc<ScoringLoad>,
    begun: bool,
}

impl ScoringSlot {
    /// Counts the response as being scored instead of queued. Later calls have no effect.
    pub(crate) fn begin(&mut self) {
        if !std::mem::replace(&mut self.begun, true) {
            self.load.queued.decrement();
            self.load.running.increment();
        }
    }
}

impl Drop for ScoringSlot {
    fn drop(&mut self) {
        if self.begun { &self.load.running } else { &self.load.queued }.decrement();
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
        assert_eq!(load.max(), [3.0, 2.0]);
        drop(d);
        assert_eq!(
            [&load.queued, &load.running].map(|level| level.now.load(Ordering::Relaxed)),
            [0, 0]
        );
    }
}
