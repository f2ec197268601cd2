//! Reduction: adds up what the replicas of the trainer have accumulated, so that all apply the same update.
//!
//! A worker gives out its share of a step in chunks, each to the worker that owns it; owners add the chunks of all workers and send the
//! sums to everyone (reduce-scatter, then gather). For `n` numbers and `w` workers each worker sends `2 n (w - 1) / w` numbers of 8 bytes.
//! Sums are taken in the order of the workers, and fixed-point numbers have no order at all.
//!
//! A share may be given out in parts. What each part costs is the whole gradient once more, so a worker gives one ahead of the end of the
//! step only when it has nothing left to do in it as far as it knows (`share`): its part of the reduction then lies beside the tail of
//! the others' rollouts.
//!
//! On a single worker none of this is there.

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

/// The operators, in faults.
const NAME: &str = "reduce";

/// Adds gradients up over workers.
pub trait ReduceExt {
    /// Lets the update of each step wait until every replica has the sum over all of them. What follows is told of no groups any more:
    /// take `accumulated` before.
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
        let chunks = route::exchanged(
            "gradients_to_owners",
            taken.chunks,
            route::to_worker(schema::column::WORKER),
            &schema::GRADIENTS,
        );
        let summed = sum::sum(chunks, costs.clone());
        let sums = route::all("gradients_to_all", summed.sums, &schema::GRADIENTS);
        let totals = route::all("totals_to_all", taken.totals, &schema::TOTALS);
        let put = put::put(sums, totals, self.trainer.clone(), costs);
        let errors = self.errors.concat(taken.errors).concat(summed.errors).concat(put.errors);
        let metrics = self.metrics.concat(put.metrics);
        Self { accumulated: put.done, metrics, errors, ..self }
    }
}

/// What the reductions of steps under way cost this worker. Shared by the operators.
#[derive(Clone)]
struct Costs {
    clock: Arc<dyn Clock>,
    steps: Rc<RefCell<BTreeMap<Step, Cost>>>,
}

#[derive(Clone, Copy, Default)]
struct Cost {
    /// Sent to other workers.
    bytes: u64,
    /// Parts in which this worker gave out its share.
    takes: u64,
    /// When its groups were accumulated, and the others' too.
    due: Option<Nanos>,
}

impl Costs {
    fn new(clock: Arc<dyn Clock>) -> Self {
        Self { clock, steps: Rc::default() }
    }

    fn change(&self, step: Step, change: impl FnOnce(&mut Cost)) {
        change(self.steps.borrow_mut().entry(step).or_default());
    }

    fn due(&self, step: Step) {
        let now = self.clock.now();
        self.change(step, |cost| cost.due = cost.due.or(Some(now)));
    }

    /// Metrics of a step whose sums are there.
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
