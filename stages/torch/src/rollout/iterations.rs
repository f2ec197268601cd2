//! Decode iterations of live instances, aggregated into rows that can be compared with a profile.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::clock::Nanos;

use rollpacker_stages::rollout::profile::{Phase, Row};

use super::Placement;

/// The key of similar iterations. They have the same number of running instances, the same number of devices per instance, the same batch
/// size, and contexts within one power of two.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct IterationKind {
    placement: Placement,
    batch_size: u32,
    /// Base-2 logarithm of the mean tokens per sequence, rounded down.
    context: u32,
}

/// Sums over similar iterations.
#[derive(Clone, Copy, Debug, Default)]
struct IterationSums {
    iterations: u64,
    /// Tokens of all sequences, summed over iterations.
    tokens: u64,
    time: Nanos,
}

/// The iterations of an instance since the last call of [`take`]. The thread of the instance counts each iteration that does not prefill;
/// the engine's caller takes the iterations once per step.
#[derive(Debug, Default)]
pub(super) struct Iterations(Mutex<BTreeMap<IterationKind, IterationSums>>);

impl Iterations {
    /// Counts an iteration of `batch_size` sequences with `tokens` tokens together, while the instances of `placement` ran. Iterations
    /// without sequences are not counted.
    pub(super) fn count(&self, placement: Placement, batch_size: u32, tokens: u64, time: Nanos) {
        let context = tokens.checked_div(batch_size.into()).and_then(u64::checked_ilog2);
        let Some(context) = context else { return };
        let mut tallies = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kind = IterationKind { placement, batch_size, context };
        tallies.entry(kind).or_default().add(IterationSums { iterations: 1, tokens, time });
    }

    fn take(&self) -> BTreeMap<IterationKind, IterationSums> {
        std::mem::take(&mut *self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl IterationSums {
    fn add(&mut self, other: Self) {
        self.iterations += other.iterations;
        self.tokens += other.tokens;
        self.time.0 += other.time.0;
    }

    fn row(self, kind: IterationKind) -> Row {
        let IterationKind {
            placement: Placement { instances, tensor_parallel }, batch_size, ..
        } = kind;
        let sequences = self.iterations * u64::from(batch_size);
        let count = |count: u64| u32::try_from(count).unwrap_or(u32::MAX);
        Row {
            phase: Phase::Decode,
            instances,
            tensor_parallel,
            batch_size,
            tokens: count(self.tokens / sequences),
            seconds: self.time.as_secs_f64() / self.iterations as f64,
            repeats: count(self.iterations),
        }
    }
}

/// Returns the iterations of `instances` since the last call: one row for each group of similar iterations, with their mean seconds.
pub(super) fn take<'a>(instances: impl Iterator<Item = &'a Iterations>) -> Vec<Row> {
    let mut sums: BTreeMap<IterationKind, IterationSums> = BTreeMap::new();
    for (kind, tally) in instances.flat_map(Iterations::take) {
        sums.entry(kind).or_default().add(tally);
    }
    sums.into_iter().map(|(kind, tally)| tally.row(kind)).collect()
}

/// The busy flag of an instance, and the number of busy instances. An instance is busy while it has responses.
#[derive(Debug)]
pub(super) struct BusyFlag {
    busy_instances: Arc<AtomicU32>,
    busy: bool,
}

impl BusyFlag {
    /// Creates the flag of an instance that is not busy. `busy_instances` is the number of busy instances.
    pub(super) fn new(busy_instances: &Arc<AtomicU32>) -> Self {
        Self { busy_instances: Arc::clone(busy_instances), busy: false }
    }

    pub(super) fn set(&mut self, busy: bool) {
        match (self.busy, busy) {
            (false, true) => self.busy_instances.fetch_add(1, Ordering::Relaxed),
            (true, false) => self.busy_instances.fetch_sub(1, Ordering::Relaxed),
            _ => return,
        };
        self.busy = busy;
    }

    /// Returns the number of busy instances.
    pub(super) fn count(&self) -> u32 {
        self.busy_instances.load(Ordering::Relaxed)
    }
}

impl Drop for BusyFlag {
    fn drop(&mut self) {
        self.set(false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_iterations_of_all_instances_are_one_row() {
        let [one, two] = [Iterations::default(), Iterations::default()];
        let running = |instances| Placement { instances, tensor_parallel: 1 };
        one.count(running(2), 4, 4 * 70, Nanos(1_000));
        two.count(running(2), 4, 4 * 90, Nanos(3_000));
        two.count(running(2), 4, 4 * 200, Nanos(9_000));
        two.count(running(1), 4, 4 * 70, Nanos(500));
        two.count(running(1), 0, 0, Nanos(500));
        let wide = Placement { instances: 1, tensor_parallel: 2 };
        two.count(wide, 4, 4 * 70, Nanos(300));
        let rows = take([&one, &two].into_iter());
        let nanos = |row: &Row| (row.seconds * 1e9).round();
        let brief: Vec<_> =
            rows.iter().map(|row| (row.instances, row.tokens, nanos(row), row.repeats)).collect();
        let expected =
            [(1, 70, 500.0, 1), (1, 70, 300.0, 1), (2, 80, 2000.0, 2), (2, 200, 9000.0, 1)];
        assert_eq!(brief, expected);
        assert_eq!(rows.iter().map(|row| row.tensor_parallel).collect::<Vec<_>>(), [1, 2, 1, 1]);
        assert!(rows.iter().all(|row| (row.phase, row.batch_size) == (Phase::Decode, 4)));
        assert_eq!(take([&one, &two].into_iter()), [], "each is taken once");
    }

    #[test]
    fn a_busy_instance_counts_once_and_not_after_it_is_dropped() {
        let busy_instances = Arc::default();
        let (mut one, mut two) = (BusyFlag::new(&busy_instances), BusyFlag::new(&busy_instances));
        one.set(true);
        one.set(true);
        two.set(true);
        assert_eq!(two.count(), 2);
        two.set(false);
        assert_eq!(two.count(), 1);
        drop(one);
        assert_eq!(two.count(), 0);
    }
}
