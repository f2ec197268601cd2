//! Sends the gradient that this worker's replica has accumulated.

use std::collections::BTreeMap;
use std::rc::Rc;

use arrow_array::types::UInt64Type;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::operator::{Operator, Output};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, InputCapability};
use rollpacker_stages::train::{Partial, TrainError};

use super::costs::{Costs, NAME};
use super::share::GradientProgress;
use super::wire;
use crate::in_flight::InFlightResponses;
use crate::trainer::{TrainerCallError, TrainerThread};
use crate::wire::decision::ADMIT;

/// The output streams of [`take`].
pub(super) struct Taken<'scope> {
    /// Batches of [`schema::GRADIENTS`] for the owners of the chunks.
    pub(super) chunks: BatchStream<'scope>,
    /// Batches of [`schema::TOTALS`] of this worker's responses, for all workers.
    pub(super) totals: BatchStream<'scope>,
    pub(super) errors: BatchStream<'scope>,
}

struct Capabilities {
    chunks: Capability<Step>,
    totals: Capability<Step>,
    errors: Capability<Step>,
}

/// Builds the operator that takes the gradient from the trainer and sends it. Steps are processed in order, each after the update of the
/// previous step: a replica accumulates one step at a time.
///
/// `in_flight` counts the responses in flight on this worker. It is `Some` only if all groups of this worker come from its own responses.
/// Only then may a gradient be sent before the frontier has passed its step.
pub(super) fn take<'scope>(
    accumulated: BatchStream<'scope>,
    decisions: BatchStream<'scope>,
    trainer: Rc<TrainerThread>,
    in_flight: Option<InFlightResponses>,
    costs: Costs,
) -> Taken<'scope> {
    let scope = accumulated.scope();
    let [worker, workers] = [scope.index(), scope.peers()]
        .map(|count| u32::try_from(count).expect("invariant: there are fewer than 2^32 workers"));
    let mut operator = Operator::new("reduce_take", scope);
    let mut accumulated = operator.input(accumulated, Pipeline, &schema::GROUPS);
    let mut decisions = operator.input(decisions, Pipeline, &schema::DECISIONS);
    let (mut chunks, chunk_stream) = operator.output(&schema::GRADIENTS, &[0, 1]);
    let (mut totals, total_stream) = operator.output(&schema::TOTALS, &[0, 1]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0, 1]);
    let wake = operator.waker();
    trainer.on_update(operator.waker());
    operator.build(move |_capabilities| {
        let mut taker = TakeState { open: BTreeMap::new(), pending: None, failed: false, costs };
        move |frontiers| {
            let retain = |capability: &InputCapability<Step>| Capabilities {
                chunks: capability.retain(chunks.index()),
                totals: capability.retain(totals.index()),
                errors: capability.retain(errors.index()),
            };
            accumulated.for_each(|capability, batch| {
                taker.share(&capability, retain).accumulated += groups(&batch);
            });
            decisions.for_each(|capability, batch| {
                taker.share(&capability, retain).admitted += admitted(&batch);
            });
            if let Some((step, outcome)) = taker.take_reply() {
                let capabilities = &taker.open[&step].capabilities;
                match outcome {
                    Ok(partial) => {
                        let outputs = [&mut chunks, &mut totals];
                        let sent = give(outputs, capabilities, partial, [worker, workers]);
                        taker.costs.change(step, |cost| cost.bytes += sent);
                    }
                    Err(error) => {
                        give_fault(&mut errors, &capabilities.errors, Fault::of(NAME, &error));
                        taker.failed = true;
                    }
                }
            }
            let passed = |step: Step| !may_arrive(frontiers, &step);
            let idle = in_flight.as_ref().is_some_and(InFlightResponses::is_none);
            taker.advance(passed, idle, &trainer, &wake);
        }
    });
    Taken { chunks: chunk_stream, totals: total_stream, errors: error_stream }
}

/// A step whose gradient has not been sent completely.
struct TakeStep {
    capabilities: Capabilities,
    share: GradientProgress,
}

/// A request to the trainer for the gradient of a step.
struct PendingTake {
    step: Step,
    reply: Reply<Result<Partial, TrainError>>,
}

struct TakeState {
    open: BTreeMap<Step, TakeStep>,
    pending: Option<PendingTake>,
    /// `true` after an error. All open steps then keep their capabilities: the step that failed must not complete.
    failed: bool,
    costs: Costs,
}

impl TakeState {
    fn share(
        &mut self,
        capability: &InputCapability<Step>,
        retain: impl FnOnce(&InputCapability<Step>) -> Capabilities,
    ) -> &mut GradientProgress {
        let open =
            || TakeStep { capabilities: retain(capability), share: GradientProgress::default() };
        &mut self.open.entry(*capability.time()).or_insert_with(open).share
    }

    /// Returns the reply to the pending request once it has arrived, with its step, which is open.
    fn take_reply(&mut self) -> Option<(Step, Result<Partial, TrainerCallError>)> {
        let outcome = self.pending.as_ref()?.reply.poll_outcome()?;
        Some((self.pending.take()?.step, outcome))
    }

    /// Drops the steps that are complete and sent, and requests the gradient of the first remaining step if it is due.
    ///
    /// A gradient is due when the frontier has passed the step, or earlier if the worker is idle ([`GradientProgress::is_due`]). The step
    /// must also be the next one that the trainer updates. At most one request is in flight. `taken` is set when the request is made:
    /// groups that are accumulated meanwhile belong to the next part. Dropping the capabilities of a step informs all workers that no part
    /// of this worker follows.
    fn advance(
        &mut self,
        passed: impl Fn(Step) -> bool,
        idle: bool,
        trainer: &TrainerThread,
        wake: &(impl Fn() + Clone + Send + Sync + 'static),
    ) {
        while self.pending.is_none()
            && !self.failed
            && let Some(mut first) = self.open.first_entry()
        {
            let (step, share) = (*first.key(), &mut first.get_mut().share);
            if passed(step) {
                self.costs.record_accumulated(step);
            }
            if passed(step) && !share.is_pending() {
                first.remove();
                continue;
            }
            if step == trainer.next() && share.is_pending() && (passed(step) || share.is_due(idle))
            {
                share.taken = share.accumulated;
                self.costs.change(step, |cost| cost.takes += 1);
                self.pending =
                    Some(PendingTake { step, reply: trainer.take_partial(step, wake.clone()) });
            }
            return;
        }
    }
}

/// Sends a partial gradient of this worker, which has the index `worker` among `workers` workers. Returns the number of bytes that go to
/// other workers, as if all chunks had the mean size.
fn give(
    [chunks, totals]: [&mut Output; 2],
    capabilities: &Capabilities,
    partial: Partial,
    [worker, workers]: [u32; 2],
) -> u64 {
    let mut sent = 0;
    let bytes = 8 * partial.gradient.len() as u64;
    let all = wire::chunks(partial.gradient, worker, workers);
    let count = all.len().max(1) as u64;
    for (owner, chunk) in all {
        sent += if owner == worker { 0 } else { bytes / count };
        chunks.give(&capabilities.chunks, chunk);
    }
    totals.give(&capabilities.totals, wire::totals(&partial.totals, worker));
    sent
}

fn groups(batch: &Batch) -> usize {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values();
    prompts.chunk_by(|one, next| one == next).count()
}

fn admitted(batch: &Batch) -> usize {
    batch.text(column::DECISION).iter().filter(|decision| *decision == Some(ADMIT)).count()
}
