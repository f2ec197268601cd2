//! Passes the sums over all workers to this worker's replica of the trainer.

use std::collections::BTreeMap;
use std::rc::Rc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, give_fault};
use rollpacker_dataflow::frontier::may_arrive;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, InputCapability};
use rollpacker_stages::train::{Numbers, Partial, PartialError, Total, TrainError};

use super::costs::{Costs, NAME};
use super::wire::{self, Chunk};
use crate::policy::metrics_batch;
use crate::trainer::TrainerThread;

/// The output streams of [`deliver`].
pub(super) struct Delivered<'scope> {
    /// A stream without data. Its frontier passes a step once the replicas of all workers have the sums of the step.
    pub(super) done: BatchStream<'scope>,
    pub(super) metrics: BatchStream<'scope>,
    pub(super) errors: BatchStream<'scope>,
}

struct Capabilities {
    /// Dropped when the replica has the sums.
    _done: Capability<Step>,
    metrics: Capability<Step>,
    errors: Capability<Step>,
}

/// Builds the operator that passes the sums to the trainer. Steps are processed in order, each after the update of the previous step: with
/// staleness, the sums of a step may arrive before that update.
pub(super) fn deliver<'scope>(
    sums: BatchStream<'scope>,
    totals: BatchStream<'scope>,
    trainer: Rc<TrainerThread>,
    costs: Costs,
) -> Delivered<'scope> {
    let mut operator = Operator::new("reduce_put", sums.scope());
    let mut sums = operator.input(sums, Pipeline, &schema::GRADIENTS);
    let mut totals = operator.input(totals, Pipeline, &schema::TOTALS);
    let (done, done_stream) = operator.output(&schema::GROUPS, &[0, 1]);
    let (mut metrics, metric_stream) = operator.output(&schema::METRICS, &[0, 1]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0, 1]);
    let wake = operator.waker();
    trainer.on_update(operator.waker());
    operator.build(move |_capabilities| {
        let mut open: BTreeMap<Step, (Capabilities, StepSums)> = BTreeMap::new();
        let mut putting: Vec<(Capabilities, Reply<Result<(), TrainError>>)> = Vec::new();
        let mut failed = Vec::new();
        move |frontiers| {
            let held = |capability: &InputCapability<Step>| {
                let capabilities = Capabilities {
                    _done: capability.retain(done.index()),
                    metrics: capability.retain(metrics.index()),
                    errors: capability.retain(errors.index()),
                };
                (capabilities, StepSums::default())
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
            let passed = |step: &Step| !may_arrive(frontiers, step);
            let is_due = |step: &Step| passed(step) && *step == trainer.next();
            for (step, (capabilities, gathered)) in open.extract_if(.., |step, _| is_due(step)) {
                match gathered.partial() {
                    Ok(sum) => {
                        putting.push((capabilities, trainer.put_sum(step, sum, wake.clone())));
                    }
                    Err(error) => {
                        give_fault(&mut errors, &capabilities.errors, Fault::of(NAME, &error));
                        failed.push(capabilities);
                    }
                }
            }
            for (capabilities, reply) in std::mem::take(&mut putting) {
                match reply.poll_outcome() {
                    None => putting.push((capabilities, reply)),
                    Some(Ok(())) => {
                        let measured = costs.metrics(*capabilities.metrics.time());
                        metrics.give(&capabilities.metrics, metrics_batch(&measured));
                    }
                    Some(Err(error)) => {
                        give_fault(&mut errors, &capabilities.errors, Fault::of(NAME, &error));
                        // Keep the capabilities: the step must not complete.
                        failed.push(capabilities);
                    }
                }
            }
        }
    });
    Delivered { done: done_stream, metrics: metric_stream, errors: error_stream }
}

/// The sums of a step received so far.
#[derive(Default)]
struct StepSums {
    /// The summed chunks of the gradient by their index.
    chunks: BTreeMap<u32, Numbers>,
    /// The totals by the worker that sent them.
    totals: BTreeMap<u32, Vec<Total>>,
}

impl StepSums {
    fn partial(self) -> Result<Partial, PartialError> {
        let mut chunks = self.chunks.into_values();
        let mut gradient = chunks.next().unwrap_or_default();
        chunks.try_for_each(|chunk| gradient.append(chunk))?;
        Ok(Partial { gradient, totals: self.totals.into_values().flatten().collect() })
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;
    use std::path::Path;
    use std::sync::{Arc, Mutex};

    use rollpacker_dataflow::batch::Batch;
    use rollpacker_dataflow::clock::WallClock;
    use rollpacker_dataflow::runtime::run;
    use rollpacker_dataflow::step::{PolicyVersion, PromptId};
    use rollpacker_stages::rollout::Policy;
    use rollpacker_stages::train::{Metrics, Sequence, TrainError, Trainer};

    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    enum Call {
        Delivered(Step),
        Update(Step),
    }

    struct Logging(Arc<Mutex<Vec<Call>>>);

    impl Logging {
        fn log(&self, call: Call) {
            self.0.lock().expect("unpoisoned").push(call);
        }
    }

    impl Trainer for Logging {
        fn publish(&mut self, version: PolicyVersion) -> Result<Policy, TrainError> {
            Ok(Policy { version, location: "nowhere".into(), digest: 0 })
        }

        fn accumulate(&mut self, _: Step, _: &[Sequence<'_>]) -> Result<(), TrainError> {
            Ok(())
        }

        fn put_sum(&mut self, step: Step, _: Partial) -> Result<(), TrainError> {
            self.log(Call::Delivered(step));
            Ok(())
        }

        fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
            self.log(Call::Update(step));
            Ok((self.publish(PolicyVersion(step.next().0))?, Metrics::new()))
        }

        fn save(&mut self, _: &Path) -> Result<(), TrainError> {
            Ok(())
        }
    }

    fn total() -> Batch {
        let (prompt, name) = (PromptId(0), "tokens".into());
        wire::totals(&[Total { prompt, sample: 0, name, value: 1.0 }], 0)
    }

    #[test]
    fn early_sums_wait_for_the_update_of_the_previous_step() {
        let (log, costs) =
            (Arc::<Mutex<Vec<Call>>>::default(), Costs::new(Arc::new(WallClock::start())));
        let logging = Logging(log.clone());
        run(|scope, _| {
            let trainer = TrainerThread::spawn(Arc::new(WallClock::start()), move || {
                Ok::<_, Infallible>(Box::new(logging) as Box<dyn Trainer>)
            });
            let trainer = Rc::new(trainer.expect("made"));
            let mut source = Operator::new("source", scope);
            let (_, sums) = source.output(&schema::GRADIENTS, &[]);
            let (mut totals, totals_stream) = source.output(&schema::TOTALS, &[]);
            source.build(move |mut capabilities| {
                let mut capability = capabilities.pop();
                move |_| {
                    if let Some(first) = capability.take() {
                        totals.give(&first, total());
                        totals.give(&first.delayed(&Step(1)), total());
                    }
                }
            });
            let delivered = deliver(sums, totals_stream, trainer.clone(), costs);
            let mut sink = Operator::new("sink", scope);
            let _done = sink.input(delivered.done, Pipeline, &schema::GROUPS);
            sink.notify_always();
            sink.build(move |_| {
                move |frontiers| {
                    let next = trainer.next();
                    if next < Step(2) && !frontiers[0].less_equal(&next) {
                        drop(trainer.update(next, || {}));
                        trainer.record_update(next);
                    }
                }
            });
        })
        .expect("no fault");
        let steps = [Step(0), Step(1)];
        let expected = steps.map(|step| [Call::Delivered(step), Call::Update(step)]).concat();
        assert_eq!(*log.lock().expect("unpoisoned"), expected);
    }
}
