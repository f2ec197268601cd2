//! Hands the sums over all workers to this worker's replica.

use std::collections::BTreeMap;
use std::rc::Rc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, InputCapability};
use rollpacker_stages::train::{Numbers, Partial, PartialError, Total};

use super::wire::{self, Chunk};
use super::{Costs, NAME};
use crate::policy::metrics_batch;
use crate::trainer::TrainerThread;

/// What the operator gives.
pub(super) struct Put<'scope> {
    /// Nothing, at steps whose sums this worker's replica does not have yet.
    pub(super) done: BatchStream<'scope>,
    pub(super) metrics: BatchStream<'scope>,
    pub(super) errors: BatchStream<'scope>,
}

/// For what follows, metrics and errors.
type Capabilities = [Capability<Step>; 3];

/// Installs the operator.
pub(super) fn put<'scope>(
    sums: BatchStream<'scope>,
    totals: BatchStream<'scope>,
    trainer: Rc<TrainerThread>,
    costs: Costs,
) -> Put<'scope> {
    let mut operator = Operator::new("reduce_put", sums.scope());
    let mut sums = operator.input(sums, Pipeline, &schema::GRADIENTS);
    let mut totals = operator.input(totals, Pipeline, &schema::TOTALS);
    let (done, done_stream) = operator.output(&schema::GROUPS, &[0, 1]);
    let (mut metrics, metric_stream) = operator.output(&schema::METRICS, &[0, 1]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0, 1]);
    let wake = operator.waker();
    operator.build(move |_capabilities| {
        let mut open: BTreeMap<Step, (Capabilities, Gathered)> = BTreeMap::new();
        let mut putting: Vec<(Capabilities, Reply<Result<(), String>>)> = Vec::new();
        let mut failed = Vec::new();
        move |frontiers| {
            let held = |capability: &InputCapability<Step>| {
                let ports = [done.index(), metrics.index(), errors.index()];
                (ports.map(|port| capability.retain(port)), Gathered::default())
            };
            sums.for_each(|capability, batch| {
                let step = open.entry(*capability.time()).or_insert_with(|| held(&capability));
                let chunks = wire::read_chunks(&batch);
                step.1.chunks.extend(chunks.map(|Chunk { index, numbers, .. }| (index, numbers)));
            });
            totals.for_each(|capability, batch| {
                let step = open.entry(*capability.time()).or_insert_with(|| held(&capability));
                for (source, total) in wire::read_totals(&batch) {
                    step.1.totals.entry(source).or_default().push(total);
                }
            });
            let passed = |step: &Step| !frontiers.iter().any(|frontier| frontier.less_equal(step));
            for (step, (capabilities, gathered)) in open.extract_if(.., |step, _| passed(step)) {
                match gathered.partial() {
                    Ok(sum) => {
                        putting.push((capabilities, trainer.put_sum(step, sum, wake.clone())));
                    }
                    Err(error) => {
                        let fault = Fault::new(NAME, error.to_string());
                        errors.give(&capabilities[2], faults_batch(&[fault]));
                        failed.push(capabilities);
                    }
                }
            }
            for (capabilities, reply) in std::mem::take(&mut putting) {
                match reply.poll_outcome() {
                    None => putting.push((capabilities, reply)),
                    Some(Ok(())) => {
                        let measured = costs.metrics(*capabilities[1].time());
                        metrics.give(&capabilities[1], metrics_batch(&measured));
                    }
                    Some(Err(message)) => {
                        let fault = Fault::new(NAME, message);
                        errors.give(&capabilities[2], faults_batch(&[fault]));
                        // Kept for ever: the step is not done.
                        failed.push(capabilities);
                    }
                }
            }
        }
    });
    Put { done: done_stream, metrics: metric_stream, errors: error_stream }
}

/// The sums of a step, so far.
#[derive(Default)]
struct Gathered {
    chunks: BTreeMap<u32, Numbers>,
    /// By the worker that they are from.
    totals: BTreeMap<u32, Vec<Total>>,
}

impl Gathered {
    fn partial(self) -> Result<Partial, PartialError> {
        let mut chunks = self.chunks.into_values();
        let mut gradient = chunks.next().unwrap_or_default();
        chunks.try_for_each(|chunk| gradient.append(chunk))?;
        Ok(Partial { gradient, totals: self.totals.into_values().flatten().collect() })
    }
}
