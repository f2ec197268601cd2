//! The cadence of snapshots: the steps after which they are taken.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use crate::step::Step;

/// The rule by which snapshots are taken: after every n-th step, on request, and at the end of the run. All workers of a process share it.
#[derive(Clone, Debug)]
pub struct Cadence {
    every: u64,
    holds_states: bool,
    state: Arc<Mutex<CadenceState>>,
}

#[derive(Debug, Default)]
struct CadenceState {
    /// The last step for which an operator has called `is_due`, or from which the run was resumed; `None` before that.
    last_queried: Option<Step>,
    /// The steps of which a snapshot was requested. They are kept, because some operators query them late.
    requested: BTreeSet<Step>,
    /// `true` if a snapshot was requested while not all workers of the graph were registered.
    requested_early: bool,
    /// The number of workers of this process that have called `join` and not `leave`.
    workers: usize,
    /// The number of workers of the graph.
    peers: usize,
    /// The last step whose snapshot was committed, skipped or given up with a warning, or from which the run was resumed.
    settled: Option<Step>,
    wakes: Wakes,
}

impl CadenceState {
    fn has_all_workers(&self) -> bool {
        self.workers > 0 && self.workers >= self.peers
    }

    /// Requests a snapshot of the first step that no operator has closed yet, and returns that step. If the snapshot is already requested,
    /// the requests share it.
    fn request_next(&mut self) -> Step {
        let next = self.last_queried.map_or(Step(0), Step::next);
        self.requested.insert(next);
        next
    }
}

/// A function that activates an operator.
pub(crate) type Wake = Arc<dyn Fn() + Send + Sync>;

/// Functions that activate the operators which hold the state of their last step.
#[derive(Clone, Default)]
struct Wakes(Vec<Wake>);

impl fmt::Debug for Wakes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Wakes").field(&self.0.len()).finish()
    }
}

impl Wakes {
    fn call(&self) {
        self.0.iter().for_each(|wake| wake());
    }
}

impl Cadence {
    /// Creates a cadence that takes a snapshot after every `steps`-th step, counted from the start of the run. With 0, snapshots are taken
    /// only on request and at the end of the run.
    #[must_use]
    pub fn every(steps: u64) -> Self {
        Self { every: steps, holds_states: false, state: Arc::default() }
    }

    /// Lets every operator hold its state at the end of the last step in memory. [`Parts::save_held`](super::Parts::save_held) can then
    /// take a snapshot of that step after the next step has begun. Use it for runs whose steps may fail for a temporary reason.
    #[must_use]
    pub fn with_held_states(self) -> Self {
        Self { holds_states: true, ..self }
    }

    /// Returns a handle that requests additional snapshots.
    #[must_use]
    pub fn request(&self) -> SnapshotRequest {
        SnapshotRequest(self.clone())
    }

    /// Registers a worker of a graph with `peers` workers. The graph begins after the step `resumed`, or with the first step if it is
    /// `None`. An early request takes effect when the last worker registers.
    pub(crate) fn join(&self, peers: usize, resumed: Option<Step>) {
        let mut state = self.lock();
        state.workers += 1;
        state.peers = peers;
        state.last_queried = state.last_queried.max(resumed);
        state.settled = state.settled.max(resumed);
        if state.has_all_workers() && std::mem::take(&mut state.requested_early) {
            state.request_next();
        }
    }

    pub(crate) fn leave(&self) {
        self.lock().workers -= 1;
    }

    /// Returns `true` if a snapshot is taken at the end of `step`, and records the query, so that later requests apply to a later step. The
    /// answer changes at most once, from `false` to `true`, when [`is_settled`](Self::is_settled) requests a snapshot of a step that
    /// operators hold.
    pub(crate) fn is_due(&self, step: Step) -> bool {
        let mut state = self.lock();
        state.last_queried = state.last_queried.max(Some(step));
        let regular = self.every > 0 && step.next().0.is_multiple_of(self.every);
        regular || state.requested.contains(&step)
    }

    pub(crate) fn holds_states(&self) -> bool {
        self.holds_states
    }

    /// Registers the function that wakes an operator which holds its state.
    pub(crate) fn wake_by(&self, wake: Wake) {
        self.lock().wakes.0.push(wake);
    }

    pub(crate) fn is_requested(&self, step: Step) -> bool {
        self.lock().requested.contains(&step)
    }

    /// Returns `true` if the snapshot of `step` or of a later step is committed or was given up. Otherwise requests the snapshot of `step`,
    /// a completed step, and returns `false`. The registered operators are woken at the first request for `step`, and when the snapshot is
    /// committed or given up.
    pub(crate) fn is_settled(&self, step: Step) -> bool {
        let mut state = self.lock();
        if state.settled >= Some(step) {
            return true;
        }
        let wakes = state.requested.insert(step).then(|| state.wakes.clone());
        drop(state);
        wakes.unwrap_or_default().call();
        false
    }

    /// Records that the snapshot of `step` is committed, or that the run continues without it.
    pub(crate) fn settle(&self, step: Step) {
        let mut state = self.lock();
        state.settled = state.settled.max(Some(step));
        let wakes = state.wakes.clone();
        drop(state);
        wakes.call();
    }

    fn lock(&self) -> MutexGuard<'_, CadenceState> {
        // No code panics while it holds the lock, so a poisoned lock is still usable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A handle that requests snapshots from any thread, for example on a signal or when a time budget is exhausted.
#[derive(Clone, Debug)]
pub struct SnapshotRequest(Cadence);

impl SnapshotRequest {
    /// Requests a snapshot at the end of the first step that no operator has closed yet, and returns that step.
    ///
    /// Returns `None` if some workers of the graph are not registered with this cadence, because they have not started yet or have ended.
    /// If they have not started yet, the request applies to the first step that is open when all workers are registered. If some
    /// workers run in other processes, it never takes effect, because these workers do not receive it. Such runs take snapshots only by the
    /// cadence and at the end of the run.
    #[must_use]
    pub fn now(&self) -> Option<Step> {
        let mut state = self.0.lock();
        if state.has_all_workers() {
            return Some(state.request_next());
        }
        state.requested_early = true;
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(cadence: &Cadence, steps: u64) -> Vec<u64> {
        (0..steps).filter(|&step| cadence.is_due(Step(step))).collect()
    }

    #[test]
    fn a_snapshot_is_due_every_third_step() {
        assert_eq!(due(&Cadence::every(3), 10), [2, 5, 8]);
        assert!(due(&Cadence::every(0), 10).is_empty());
    }

    #[test]
    fn a_request_applies_to_the_first_open_step() {
        let cadence = Cadence::every(0);
        cadence.join(1, Some(Step(3)));
        assert_eq!(cadence.request().now(), Some(Step(4)));
        assert_eq!(cadence.request().now(), Some(Step(4)), "the step is still open");
        assert!(cadence.is_due(Step(4)) && !cadence.is_due(Step(6)));
        assert!(cadence.is_due(Step(4)), "the answer is the same for late callers");
        assert_eq!(cadence.request().now(), Some(Step(7)));
        assert!(cadence.is_due(Step(4)), "another request does not withdraw it");
    }

    #[test]
    fn an_early_request_applies_to_the_first_step_that_is_open_when_all_workers_have_joined() {
        for (resumed, first) in [(None, 0), (Some(Step(3)), 4)] {
            let cadence = Cadence::every(0);
            assert_eq!(cadence.request().now(), None, "before the first worker");
            cadence.join(2, resumed);
            assert!(!cadence.is_requested(Step(first)), "a worker is missing");
            assert_eq!(cadence.request().now(), None);
            cadence.join(2, resumed);
            assert_eq!(due(&cadence, first + 3), [first], "resumed from {resumed:?}");
            assert_eq!(cadence.request().now(), Some(Step(first + 3)));
        }
    }

    #[test]
    fn an_early_request_of_one_of_several_processes_has_no_effect() {
        let cadence = Cadence::every(0);
        assert_eq!(cadence.request().now(), None);
        cadence.join(2, None);
        assert!(due(&cadence, 4).is_empty(), "the other process does not receive the request");
    }

    #[test]
    fn a_completed_step_settles_with_its_snapshot() {
        let cadence = Cadence::every(0).with_held_states();
        cadence.join(1, Some(Step(3)));
        let (sender, woken) = std::sync::mpsc::channel();
        cadence.wake_by(Arc::new(move || sender.send(()).expect("a receiver")));
        assert!(cadence.is_settled(Step(3)), "the run was resumed from it");
        assert!(!cadence.is_requested(Step(4)) && !cadence.is_settled(Step(4)));
        assert!(!cadence.is_settled(Step(4)) && cadence.is_requested(Step(4)));
        assert_eq!(woken.try_iter().count(), 1, "a second request wakes nobody");
        assert!(cadence.is_due(Step(4)), "for operators that have not closed the step");
        cadence.settle(Step(4));
        assert!(cadence.is_settled(Step(4)) && woken.try_iter().count() == 1);
    }
}
