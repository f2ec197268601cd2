//! The output of the engine for its caller: events, the waker, counters and measurements.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::{RolloutEvent, Waker};

use super::measurements::Measurements;

/// The state that the caller of the engine shares with the engine's tasks.
#[derive(Default)]
pub(super) struct SharedState {
    waker: Mutex<Option<Waker>>,
    /// The last version that was recorded as loaded by all servers in rotation, and the time of the record; `None` before the first.
    loaded: Mutex<Option<(PolicyVersion, Nanos)>>,
    /// A counter that increases with every token and event.
    work: AtomicU64,
    pub(super) measurements: Measurements,
}

impl SharedState {
    pub(super) fn set_waker(&self, waker: Waker) {
        *lock(&self.waker) = Some(waker);
    }

    pub(super) fn wake(&self) {
        // The waker may call back into the engine, so it runs without the lock.
        let waker = lock(&self.waker).clone();
        if let Some(waker) = waker {
            waker();
        }
    }

    pub(super) fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        lock(&self.loaded).filter(|(loaded, _)| *loaded == version).map(|(_, time)| time)
    }

    /// Records `now` as the time from which all servers in rotation have `version`. Further calls with the same version have no effect.
    pub(super) fn set_loaded(&self, version: PolicyVersion, now: Nanos) {
        let mut loaded = lock(&self.loaded);
        if loaded.is_none_or(|(known, _)| known != version) {
            *loaded = Some((version, now));
        }
    }

    pub(super) fn work(&self) -> u64 {
        self.work.load(Ordering::Relaxed)
    }

    pub(super) fn count_work(&self, work: usize) {
        self.work.fetch_add(work as u64, Ordering::Relaxed);
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Sends events to the caller.
#[derive(Clone)]
pub(super) struct Output {
    pub(super) shared: Arc<SharedState>,
    pub(super) events: Sender<RolloutEvent>,
}

impl Output {
    pub(super) fn send(&self, event: RolloutEvent) {
        // The receiver is gone once the engine is dropped.
        let _gone = self.events.send(event);
        self.shared.count_work(1);
        self.shared.wake();
    }
}
