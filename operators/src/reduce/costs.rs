//! The cost of reductions, for metrics.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::{Metrics, named_metrics};

/// The name of the operators in faults.
pub(super) const NAME: &str = "reduce";

/// The costs of this worker's part of the reductions in progress, by step. The three reduce operators share them.
#[derive(Clone)]
pub(super) struct Costs {
    clock: Arc<dyn Clock>,
    steps: Rc<RefCell<BTreeMap<Step, Cost>>>,
}

/// The cost of this worker's part of the reduction of one step.
#[derive(Clone, Copy, Default)]
pub(super) struct Cost {
    /// The number of bytes sent to other workers.
    pub(super) bytes: u64,
    /// The number of parts in which this worker sent its gradient.
    pub(super) takes: u64,
    /// The time at which all workers had accumulated their groups of the step; `None` until then. From then on, the reduction delays the
    /// update.
    due: Option<Nanos>,
}

impl Costs {
    pub(super) fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, steps: Rc::default() }
    }

    pub(super) fn change(&self, step: Step, change: impl FnOnce(&mut Cost)) {
        change(self.steps.borrow_mut().entry(step).or_default());
    }

    /// Records the time at which all groups of the step are accumulated. Later calls have no effect.
    pub(super) fn record_accumulated(&self, step: Step) {
        let now = self.clock.now();
        self.change(step, |cost| cost.due = cost.due.or(Some(now)));
    }

    /// Removes the cost of a step and returns it as metrics. Must be called once per step, when this worker's replica has the sums of the
    /// step.
    pub(super) fn metrics(&self, step: Step) -> Metrics {
        let cost = self.steps.borrow_mut().remove(&step).unwrap_or_default();
        let exposed = cost.due.map_or(Nanos(0), |due| self.clock.now().since(due));
        named_metrics([
            ("reduce/bytes", cost.bytes as f64),
            ("reduce/takes", cost.takes as f64),
            ("timing_s/reduce", exposed.as_secs_f64()),
        ])
    }
}
