//! How busy an engine instance was.

use std::sync::atomic::{AtomicU64, Ordering};

use rollpacker_dataflow::clock::Nanos;

/// What an engine instance has done since it started. Differences of two readings describe what lies between them.
///
/// The bubble ratio of SortedRL (eq. 4) over a time `T` with `Q` slots, `sum_k (Q - r_k) * dt_k / (Q * T)`, is
/// `1 - running_slot_ns / (Q * T)`; [`bubble_ratio`](Self::bubble_ratio) computes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceStatistics {
    /// Responses that can run at once, `Q`.
    pub slots: u64,
    /// Decode iterations.
    pub decode_iterations: u64,
    /// Tokens sampled: running responses, summed over iterations.
    pub slot_tokens: u64,
    /// Tokens run through the model ahead of decoding.
    pub prefill_tokens: u64,
    /// Responses given up and computed again.
    pub preemptions: u64,
    /// Time, in nanoseconds, with at least one response running.
    pub busy_ns: u64,
    /// Running responses times the time that they ran, in nanoseconds: `sum_k r_k * dt_k`.
    pub running_slot_ns: u64,
}

impl InstanceStatistics {
    /// Share of slot time that nothing ran in, over the `time` between `earlier` and this; SortedRL, eq. 4. 0 if no time passed.
    #[must_use]
    pub fn bubble_ratio(&self, earlier: &Self, time: Nanos) -> f64 {
        let available = self.slots as f64 * time.0 as f64;
        if available == 0.0 {
            return 0.0;
        }
        1.0 - (self.running_slot_ns - earlier.running_slot_ns) as f64 / available
    }
}

/// The counters behind [`InstanceStatistics`]; written by one thread.
#[derive(Debug, Default)]
pub(super) struct Counters {
    decode_iterations: AtomicU64,
    slot_tokens: AtomicU64,
    prefill_tokens: AtomicU64,
    preemptions: AtomicU64,
    busy_ns: AtomicU64,
    running_slot_ns: AtomicU64,
}

impl Counters {
    pub(super) fn prefilled(&self, tokens: usize) {
        add(&self.prefill_tokens, tokens as u64);
    }

    pub(super) fn preempted(&self, responses: usize) {
        add(&self.preemptions, responses as u64);
    }

    pub(super) fn iterated(&self, rows: usize, time: Nanos) {
        add(&self.decode_iterations, 1);
        add(&self.slot_tokens, rows as u64);
        add(&self.busy_ns, time.0);
        add(&self.running_slot_ns, rows as u64 * time.0);
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
    fn the_bubble_ratio_weighs_empty_slots_by_time() {
        let counters = Counters::default();
        counters.iterated(4, Nanos(10));
        let before = counters.read(4);
        counters.iterated(4, Nanos(10));
        counters.iterated(1, Nanos(10));
        let after = counters.read(4);
        assert_eq!(after.bubble_ratio(&before, Nanos(20)), 3.0 / 8.0);
        assert_eq!(after.bubble_ratio(&before, Nanos(40)), 1.0 - 50.0 / 160.0);
        assert_eq!(after.bubble_ratio(&after, Nanos(0)), 0.0);
        assert_eq!((after.slot_tokens, after.busy_ns), (9, 30));
    }
}
