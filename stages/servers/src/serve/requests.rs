//! The requests in flight, with the ids of their calls, which clients use to abort them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollpacker_stages::serving::{GenerationId, ServingEngine};

/// The requests that the engine works on, each with the id of its call.
pub(super) struct Requests {
    engine: Arc<dyn ServingEngine>,
    next: AtomicU64,
    running: Mutex<BTreeMap<GenerationId, Arc<str>>>,
}

/// A request in flight. Dropping the guard removes the request from [`Requests`] and aborts it in the engine, which has no effect if the
/// request has ended.
pub(super) struct RequestGuard {
    requests: Arc<Requests>,
    pub(super) id: GenerationId,
}

impl Requests {
    pub(super) fn new(engine: Arc<dyn ServingEngine>) -> Self {
        Self { engine, next: AtomicU64::new(1), running: Mutex::default() }
    }

    /// Registers a request of the call with the id `call`, before the engine gets the request.
    pub(super) fn register(self: &Arc<Self>, call: &Arc<str>) -> RequestGuard {
        let id = GenerationId(self.next.fetch_add(1, Ordering::Relaxed));
        self.lock().insert(id, Arc::clone(call));
        RequestGuard { requests: Arc::clone(self), id }
    }

    /// Aborts all requests. Returns the number of their calls, where calls with equal ids count once.
    pub(super) fn abort_all(&self) -> usize {
        self.abort(|_| true)
    }

    /// Aborts the requests of all calls for whose ids `wanted` returns `true`. Returns the number of these calls, where calls with equal
    /// ids count once.
    pub(super) fn abort(&self, wanted: impl Fn(&str) -> bool) -> usize {
        let running = self.lock();
        let (ids, calls): (Vec<GenerationId>, BTreeSet<Arc<str>>) = running
            .iter()
            .filter(|(_, call)| wanted(call))
            .map(|(id, call)| (*id, Arc::clone(call)))
            .unzip();
        drop(running);
        ids.into_iter().for_each(|id| self.engine.abort(id));
        calls.len()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<GenerationId, Arc<str>>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for RequestGuard {
    fn drop(&mut self) {
        self.requests.lock().remove(&self.id);
        self.requests.engine.abort(self.id);
    }
}
