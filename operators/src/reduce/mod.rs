//! The reduce operators: sum the gradients of the trainer's replicas, so that all replicas apply the same update.
//!
//! A worker splits its gradient of a step into chunks and sends each to the worker that owns it. Owners add the chunks of all workers and
//! send the sums to every worker (reduce-scatter, then all-gather). For `n` numbers and `w` workers, each worker sends `2 n (w - 1) / w`
//! numbers of 8 bytes. Floating-point numbers are added in the order of the workers. Sums of fixed-point numbers do not depend on the
//! order.
//!
//! A worker may send its gradient of a step in several parts, but each part costs as much as the whole gradient. A worker therefore sends a
//! part before the end of the step only when it has no known work left in the step (module `share`). Its part of the reduction then
//! overlaps with the tail of the other workers' rollouts. If groups are gathered on one worker for their advantages and distributed again,
//! a worker does not know its work in advance. Each worker then sends its gradient at the end of the step.
//!
//! On a single worker, nothing is reduced.

mod costs;
mod deliver;
mod share;
mod sum;
mod take;
mod wire;

use std::sync::Arc;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::timely::dataflow::operators::Concat;
use rollpacker_dataflow::{route, schema};

use self::costs::Costs;
use crate::gradient::Gradients;

/// Sums gradients over workers.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{Engine, clock, lengths, policies, prompts, rounds, trainer};
/// use rollpacker_dataflow::bridge::Executor;
/// use rollpacker_dataflow::cluster::{Cluster, RunFacts};
/// use rollpacker_dataflow::fault::raise;
/// use rollpacker_operators::advantage::Grpo;
/// use rollpacker_operators::*;
/// use rollpacker_stages::reward::Limits;
///
/// // Two workers, each with a replica of the trainer, share a round of two prompts with two responses each.
/// let replicas = Cluster::with_threads(2).run(&RunFacts::new(), "", |worker| {
///     let (trainer, gradients) = trainer();
///     worker.run(None, |scope, faults| {
///         let updates = prompts(scope, 2)
///             .schedule(rounds())
///             .rollout(Engine::default(), &policies(scope), clock())
///             .reward(lengths(), Limits::default(), Executor::Inline, clock())
///             .group()
///             .advantage(Grpo::default())
///             .gradient(trainer)
///             .reduce(clock())
///             .update();
///         raise(updates.errors, faults);
///     })?;
///     Ok(gradients.iter().sum::<i64>())
/// });
/// assert_eq!(replicas.expect("no fault"), [4, 4], "each replica updates with all four responses");
/// ```
pub trait ReduceExt {
    /// Sums the gradients of each step over all replicas, and delays the update of the step until every replica has the sum. `clock`
    /// measures the time that the reduction takes. On a single worker, returns `self` unchanged.
    ///
    /// On several workers, the `accumulated` stream of the result contains no groups. A caller that needs the groups clones the stream
    /// before the call. If a reduction fails, the run ends with an error.
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
            self.streams.decisions.clone(),
            self.trainer.clone(),
            // The end of the responses of a worker says nothing about groups that others send it.
            (!self.redistributed).then(|| self.streams.in_flight.clone()),
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
        let delivered = deliver::deliver(sums, totals, self.trainer.clone(), costs);
        let errors = taken.errors.concat(summed.errors).concat(delivered.errors);
        let streams = self.streams.with_errors(errors).with_metrics(delivered.metrics);
        Self { accumulated: delivered.done, streams, ..self }
    }
}
