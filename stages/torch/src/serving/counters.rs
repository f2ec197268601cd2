//! The counters of an instance of a serving engine: written by its thread, read by others.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rollpacker_stages::serving::ServingStatistics;

/// The state of an instance that other threads read.
#[derive(Debug, Default)]
pub(super) struct ServingCounters {
    /// Number of responses that were assigned to the instance and have not ended.
    assigned: AtomicU64,
    /// `true` while the instance is paused: it does not generate, and requests wait.
    is_paused: AtomicBool,
    statistics: Mutex<ServingStatistics>,
    failure: Mutex<Option<String>>,
}

impl ServingCounters {
    pub(super) fn assigned(&self) -> u64 {
        self.assigned.load(Ordering::Relaxed)
    }

    /// Counts responses that are sent to the instance.
    pub(super) fn assign(&self, samples: u32) {
        self.assigned.fetch_add(u64::from(samples), Ordering::Relaxed);
    }

    /// Counts a response that has ended.
    pub(super) fn end(&self) {
        self.assigned.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn set_paused(&self, is_paused: bool) {
        self.is_paused.store(is_paused, Ordering::Release);
    }

    pub(super) fn is_paused(&self) -> bool {
        self.is_paused.load(Ordering::Acquire)
    }

    /// Calls `change` with the statistics while they are locked.
    pub(super) fn update(&self, change: impl FnOnce(&mut ServingStatistics)) {
        change(&mut self.statistics.lock().unwrap_or_else(PoisonError::into_inner));
    }

    pub(super) fn read(&self) -> ServingStatistics {
        *self.statistics.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn fail(&self, reason: &str) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert_with(|| reason.to_owned());
    }

    pub(super) fn failure(&self) -> Option<String> {
        self.failure.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}
