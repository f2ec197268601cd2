//! Gradients: trains on complete groups as they arrive, while later ones are still being generated.

use std::collections::VecDeque;
use std::rc::Rc;

use arrow::compute::concat_batches;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};

use crate::group::Groups;
use crate::trainer::TrainerThread;

/// Groups whose gradient is accumulated, and the trainer that holds it.
pub struct Gradients<'scope> {
    /// Batches of [`schema::GROUPS`], once their gradient is accumulated.
    pub accumulated: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`].
    pub decisions: BatchStream<'scope>,
    /// Errors so far.
    pub errors: BatchStream<'scope>,
    pub(crate) trainer: Rc<TrainerThread>,
}

/// Accumulates gradients.
pub trait GradientExt<'scope> {
    /// Hands complete groups to the trainer at once. What arrives while the trainer is busy goes with the next call.
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope>;
}

impl<'scope> GradientExt<'scope> for Groups<'scope> {
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope> {
        let (accumulated, errors) = accumulate(self.groups, trainer.clone());
        Gradients {
            accumulated,
            decisions: self.decisions,
            errors: self.errors.concat(errors),
            trainer,
        }
    }
}

/// Groups with the capabilities to pass them on, or to say what failed.
struct Held {
    capabilities: [Capability<Step>; 2],
    batch: Batch,
}

struct Running {
    held: Held,
    reply: Reply<Result<(), String>>,
}

fn accumulate<'scope>(
    groups: BatchStream<'scope>,
    trainer: Rc<TrainerThread>,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new("gradient", groups.scope());
    let mut groups = operator.input(groups, Pipeline, &schema::GROUPS);
    let (mut accumulated, stream) = operator.output(&schema::GROUPS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let stream = operator.spanned(stream);
    let wake = operator.waker();
    operator.build(move |_capabilities| {
        let mut waiting: VecDeque<Held> = VecDeque::new();
        let mut running: Option<Running> = None;
        let mut failed: Option<Held> = None;
        move |_frontiers| {
            groups.for_each(|capability, batch| {
                let capabilities =
                    [capability.retain(accumulated.index()), capability.retain(errors.index())];
                waiting.push_back(Held { capabilities, batch });
            });
            if let Some((held, outcome)) = take_reply(&mut running) {
                match outcome {
                    Ok(()) => accumulated.give(&held.capabilities[0], held.batch),
                    Err(message) => {
                        errors.give(
                            &held.capabilities[1],
                            faults_batch(&[Fault::new("gradient", message)]),
                        );
                        // Kept for ever: the step is not done, and no later group may be trained on.
                        failed = Some(held);
                    }
                }
            }
            if running.is_none() && failed.is_none() {
                running = next(&mut waiting).map(|held| {
                    let (step, batch) = (*held.capabilities[0].time(), held.batch.clone());
                    Running { held, reply: trainer.accumulate(step, batch, wake.clone()) }
                });
            }
        }
    });
    (stream, error_stream)
}

fn take_reply(running: &mut Option<Running>) -> Option<(Held, Result<(), String>)> {
    let outcome = running.as_ref()?.reply.poll_outcome()?;
    Some((running.take()?.held, outcome))
}

/// All that waits of the earliest step, as one.
fn next(waiting: &mut VecDeque<Held>) -> Option<Held> {
    let first = waiting.pop_front()?;
    let step = *first.capabilities[0].time();
    let (same, later): (VecDeque<Held>, VecDeque<Held>) =
        waiting.drain(..).partition(|held| *held.capabilities[0].time() == step);
    *waiting = later;
    if same.is_empty() {
        return Some(first);
    }
    let batches: Vec<_> =
        std::iter::once(&first).chain(&same).filter_map(|held| held.batch.rows()).collect();
    let batch =
        concat_batches(&schema::GROUPS, batches).expect("invariant: groups have one schema");
    Some(Held { capabilities: first.capabilities, batch: Batch::new(batch) })
}
