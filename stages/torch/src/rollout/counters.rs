//! The counters of an engine instance, written by its thread and read by the engine.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::PolicyVersion;

use super::iterations::Iterations;
use super::statistics::InstanceStatistics;

/// The counters behind [`InstanceStatistics`]; one thread at a time writes them.
#[derive(Debug, Default)]
pub(super) struct Counters {
    decode_iterations: AtomicU64,
    slot_tokens: AtomicU64,
    prefill_tokens: AtomicU64,
    preemptions: AtomicU64,
    busy_ns: AtomicU64,
    running_slot_ns: AtomicU64,
    colocated_tokens: AtomicU64,
    colocated_ns: AtomicU64,
    /// The policy version that was loaded last, and the time of the load; `None` before the first load.
    loaded: Mutex<Option<(PolicyVersion, Nanos)>>,
    pub(super) iterations: Iterations,
}

impl Counters {
    pub(super) fn count_prefill(&self, tokens: usize) {
        add(&self.prefill_tokens, tokens as u64);
    }

    pub(super) fn count_preemptions(&self, responses: usize) {
        add(&self.preemptions, responses as u64);
    }

    pub(super) fn count_iteration(&self, rows: usize, time: Nanos) {
        add(&self.decode_iterations, 1);
        add(&self.slot_tokens, rows as u64);
        add(&self.busy_ns, time.0);
        add(&self.running_slot_ns, rows as u64 * time.0);
    }

    /// Adds `tokens` that colocated models processed, and the `time` that they took from the actor.
    pub(super) fn count_colocated(&self, tokens: usize, time: Nanos) {
        add(&self.colocated_tokens, tokens as u64);
        add(&self.colocated_ns, time.0);
    }

    /// Records that the weights of policy `version` have been in use since `at`.
    pub(super) fn record_load(&self, version: PolicyVersion, at: Nanos) {
        *self.loaded.lock().unwrap_or_else(PoisonError::into_inner) = Some((version, at));
    }

    /// Returns the time from which the weights of policy `version` have been in use; `None` if another version was loaded last, or no
    /// version was loaded.
    pub(super) fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        let loaded = *self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.filter(|(loaded, _)| *loaded == version).map(|(_, at)| at)
    }

    /// Returns a count that changes with every iteration of the actor, and with every iteration of a colocated model that processes tokens.
    pub(super) fn work(&self) -> u64 {
        let counters = [&self.decode_iterations, &self.prefill_tokens, &self.colocated_tokens];
        counters.map(|of| of.load(Ordering::Relaxed)).into_iter().fold(0, u64::wrapping_add)
    }

    pub(super) fn read(&self, slots: usize) -> InstanceStatistics {
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        InstanceStatistics {
            slots: slots as u64,
            decode_iterations: get(&self.decode_iterations),
            slot_tokens: get(&self.slot_tokens),
            prefill_tokens: get(&self.prefill_tokens),
            preemptions: get(&self.preemptions),
            busy_ns: get(&self.busy_ns),
            running_slot_ns: get(&self.running_slot_ns),
            colocated_tokens: get(&self.colocated_tokens),
            colocated_ns: get(&self.colocated_ns),
        }
    }
}

fn add(counter: &AtomicU64, amount: u64) {
    counter.fetch_add(amount, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn running_responses_are_weighted_by_time() {
        let counters = Counters::default();
        counters.count_iteration(4, Nanos(10));
        counters.count_iteration(1, Nanos(20));
        let expected = InstanceStatistics {
            slots: 4,
            decode_iterations: 2,
            slot_tokens: 5,
            busy_ns: 30,
            running_slot_ns: 60,
            ..InstanceStatistics::default()
        };
        assert_eq!(counters.read(4), expected);
    }
}
