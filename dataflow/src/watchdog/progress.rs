//! The progress of one worker: rows and frontiers in its graph, and work outside of it.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use crate::clock::{Clock, Nanos};
use crate::step::Step;

type Count = Box<dyn Fn() -> u64>;

thread_local! {
    /// The counters of work done outside of the graph for this worker.
    static COUNTS: RefCell<Vec<Count>> = const { RefCell::new(Vec::new()) };
    /// A wrapping count of the batches that the operators of this worker received or emitted and of the changes of their frontiers.
    static EVENTS: Cell<u64> = const { Cell::new(0) };
    /// The latest step of which this worker has processed rows.
    static LATEST_STEP: Cell<Step> = const { Cell::new(Step(0)) };
    /// The clock for wait times, if a watchdog runs.
    static CLOCK: RefCell<Option<Arc<dyn Clock>>> = const { RefCell::new(None) };
}

pub(crate) fn record_event() {
    EVENTS.set(EVENTS.get().wrapping_add(1));
}

/// Counts one event of progress and records that rows of `step` have arrived, unless `step` is [`Step::END`].
pub(crate) fn record_rows(step: Step) {
    record_event();
    if step != Step::END {
        LATEST_STEP.set(LATEST_STEP.get().max(step));
    }
}

pub(crate) struct WorkerProgress {
    /// A wrapping count of progress on the worker and of reported work outside.
    pub(crate) count: u64,
    /// The latest step of which rows were processed.
    pub(crate) step: Step,
}

pub(crate) fn progress() -> WorkerProgress {
    WorkerProgress { count: total_progress(), step: LATEST_STEP.get() }
}

pub(crate) fn count_progress(count: impl Fn() -> u64 + 'static) {
    COUNTS.with_borrow_mut(|counts| counts.push(Box::new(count)));
}

pub(super) fn now() -> Option<Nanos> {
    CLOCK.with_borrow(|clock| clock.as_ref().map(|clock| clock.now()))
}

/// Returns the progress on this worker plus the reported work outside of the graph.
pub(super) fn total_progress() -> u64 {
    let outside =
        |counts: &Vec<Count>| counts.iter().map(|count| count()).fold(0, u64::wrapping_add);
    EVENTS.get().wrapping_add(COUNTS.with_borrow(outside))
}

/// Starts to count the progress of a new dataflow. Waits are measured by `clock`; `None` if no watchdog runs.
pub(super) fn begin(clock: Option<Arc<dyn Clock>>) {
    COUNTS.with_borrow_mut(Vec::clear);
    CLOCK.replace(clock);
    LATEST_STEP.set(Step(0));
}
