//! Utilization statistics of an engine instance.

use rollpacker_dataflow::clock::Nanos;

/// Counters of an engine instance since it started. The difference of two readings describes the time between them.
///
/// The bubble ratio of SortedRL (eq. 4) over a time `T` with `Q` slots, `sum_k (Q - r_k) * dt_k / (Q * T)`, is
/// `1 - running_slot_ns / (Q * T)`; [`bubble_ratio`](Self::bubble_ratio) computes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct InstanceStatistics {
    /// Number of responses that can run at once, `Q`.
    pub slots: u64,
    /// Number of decode iterations.
    pub decode_iterations: u64,
    /// Number of tokens sampled: running responses, summed over iterations.
    pub slot_tokens: u64,
    /// Number of tokens prefilled.
    pub prefill_tokens: u64,
    /// Number of preemptions: responses whose cache was dropped and computed again.
    pub preemptions: u64,
    /// Time with at least one response running, in nanoseconds.
    pub busy_ns: u64,
    /// Running responses times the time that they ran, in nanoseconds: `sum_k r_k * dt_k`.
    pub running_slot_ns: u64,
    /// Number of tokens that colocated models decoded or prefilled.
    pub colocated_tokens: u64,
    /// Time that colocated models took between iterations with a response running, in nanoseconds; not part of `busy_ns`.
    pub colocated_ns: u64,
}

impl InstanceStatistics {
    /// Returns the idle share of slot time over the `time` between `earlier` and this reading (SortedRL, eq. 4); 0 if no time passed or
    /// there are no slots.
    #[must_use]
    pub fn bubble_ratio(&self, earlier: &Self, time: Nanos) -> f64 {
        let available = self.slots as f64 * time.0 as f64;
        if available == 0.0 {
            return 0.0;
        }
        1.0 - (self.running_slot_ns - earlier.running_slot_ns) as f64 / available
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bubble_ratio_weighs_empty_slots_by_time() {
        let at = |running_slot_ns| InstanceStatistics {
            slots: 4,
            running_slot_ns,
            ..InstanceStatistics::default()
        };
        assert_eq!(at(90).bubble_ratio(&at(40), Nanos(20)), 3.0 / 8.0);
        assert_eq!(at(90).bubble_ratio(&at(40), Nanos(40)), 1.0 - 50.0 / 160.0);
        assert_eq!(at(90).bubble_ratio(&at(90), Nanos(0)), 0.0);
    }
}
