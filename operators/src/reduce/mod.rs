//! The reduce operators: sum the gradients of the trainer's replicas, so that all replicas apply the same update.
//!
//! A worker splits its gradient of a step into chunks and sends each to the worker that owns it. Owners add the chunks of all workers and
//! send the sums to every worker (reduce-scatter, then all-gather). For `n` numbers and `w` workers, each worker sends `2 n (w - 1) / w`
//! numbers of 8 bytes. Floating-point numbers are added in the order of the workers; sums of fixed-point numbers do not depend on the
//! order.
//!
//! A worker may send its gradient of a step in several parts, but each part costs as much as the whole gradient. A worker therefore sends a
//! part before the end of the step only when it has no work left in the step as far as it knows (`share`). Its part of the reduction then
//! overlaps with the tail of the other workers' rollouts.
//!
//! On a single worker, nothing is reduced.

mod put;
mod share;
mod sum;
mod take;
mod wire;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::{route, schema};
use rollpacker_stages::train::Metrics;

use crate::gradient::Gradients;

/// The name of the operators in faults.
const NAME: &str = "reduce";

/// Sums gradients over workers.
pub trait ReduceExt {
    /// Delays the update of each step until every replica has the sum over all replicas. The `accumulated` stream of the result contains no
    /// groups; take the stream before calling this.
    #[must_use]
    fn reduce(self, clock: Arc<dyn Clock>) -> Self;
}

impl ReduceExt for Gradients<'_> {
    fn reduce(self, clock: Arc<dyn Clock>) -> Self {
        if self.accumulated.scope().peers() == 1 {
            return self;
        }
        let costs = Costs::new(clock);
        let taken = take::take(
            self.accumulated,
            self.decisions.clone(),
            self.trainer.clone(),
            self.generating.clone(),
            costs.clone(),
        );
        let chunks = route::exchange(
            "gradients_to_owners",
            taken.chunks,
            route::to_worker(schema::column::WORKER),
            &schema::GRADIENTS,
        );
        let summed = sum::sum(chunks, costs.clone());
        let sums = route::broadcast("gradients_to_all", summed.sums, &schema::GRADIENTS);
        let totals = route::broadcast("totals_to_all", taken.totals, &schema::TOTALS);
        let put = put::put(sums, totals, self.trainer.clone(), costs);
        let errors = self.errors.concat(taken.errors).concat(summed.errors).concat(put.errors);
        let metrics = self.metrics.concat(put.metrics);
        Self { accumulated: put.done, metrics, errors, ..self }
    }
}

/// The cost of the reductions in progress on this worker. Shared by the three operators.
#[derive(Clone)]
struct Costs {
    clock: Arc<dyn Clock>,
    steps: Rc<RefCell<BTreeMap<Step, Cost>>>,
}

#[derive(Clone, Copy, Default)]
struct Cost {
    /// Bytes sent to other workers.
    bytes: u64,
    /// The number of parts in which this worker sent its gradient.
    takes: u64,
    /// The time at which all workers had accumulated their groups of the step. From then on, the reduction delays the update.
    due: Option<Nanos>,
}

impl Costs {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, steps: Rc::default() }
    }

    /// Changes the cost of a step.
    fn change(&self, step: Step, change: impl FnOnce(&mut Cost)) {
        change(self.steps.borrow_mut().entry(step).or_default());
    }

    /// Records that all groups of the step are accumulated, at the first call.
    fn due(&self, step: Step) {
        let now = self.clock.now();
        self.change(step, |cost| cost.due = cost.due.or(Some(now)));
    }

    /// Removes the cost of a step and returns its metrics. Called when this worker has the sums of the step.
    fn metrics(&self, step: Step) -> Metrics {
        let cost = self.steps.borrow_mut().remove(&step).unwrap_or_default();
        let exposed = cost.due.map_or(Nanos(0), |due| self.clock.now().since(due));
        [
            ("reduce/bytes", cost.bytes as f64),
            ("reduce/takes", cost.takes as f64),
            ("timing_s/reduce", exposed.as_secs_f64()),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into()
    }
}
