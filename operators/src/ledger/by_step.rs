//! Output of the ledger: at most one batch on each worker for each step in which something changed.

use std::collections::BTreeMap;

use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::differential_dataflow::consolidation::consolidate;
use rollpacker_dataflow::differential_dataflow::difference::Semigroup;
use rollpacker_dataflow::differential_dataflow::{Data, VecCollection};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::container::NoopBuilder;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_dataflow::timely::dataflow::operators::generic::Operator;

/// The changes of facts in a step, with the capability for the output of the step.
type Changes<D, R> = (Capability<Step>, Vec<(D, R)>);

/// Emits a batch for each step in which facts changed, once the step is complete. Steps up to `resumed` are left out; if `resumed` is
/// `None`, no step is left out. `batch` receives the facts that became true in the step (+1) and the facts that no longer hold (-1). Empty
/// batches are not emitted.
pub(super) fn by_step<'scope, D: Data, R: Semigroup + 'static>(
    facts: VecCollection<'scope, Step, D, R>,
    name: &str,
    resumed: Option<Step>,
    mut batch: impl FnMut(Step, &[(D, R)]) -> Batch + 'static,
) -> BatchStream<'scope> {
    facts.inner.unary_frontier::<NoopBuilder<Batch>, _, _, _>(
        Pipeline,
        name,
        |capability, _info| {
            drop(capability);
            let mut steps: BTreeMap<Step, Changes<D, R>> = BTreeMap::new();
            move |(input, frontier), output| {
                input.for_each(|capability, updates| {
                    for (fact, step, change) in updates.drain(..) {
                        let held = || (capability.delayed(&step, 0), Vec::new());
                        steps.entry(step).or_insert_with(held).1.push((fact, change));
                    }
                });
                let is_complete = |step: &Step| !frontier.less_equal(step);
                for (step, (capability, mut changes)) in
                    steps.extract_if(.., |step, _| is_complete(step))
                {
                    // Facts restored from a snapshot are not changes of a step.
                    if Some(step) <= resumed {
                        continue;
                    }
                    consolidate(&mut changes);
                    let mut batch = batch(step, &changes);
                    if batch.num_rows() > 0 {
                        output.session_with_builder(&capability).give_container(&mut batch);
                    }
                }
            }
        },
    )
}
