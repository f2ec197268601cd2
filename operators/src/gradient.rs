//! Gradients: trains on complete groups as they arrive, while later ones are still being generated.

use std::collections::VecDeque;
use std::rc::Rc;

use arrow::compute::concat_batches;
use arrow::datatypes::{UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_dataflow::timely::dataflow::operators::{Capability, Concat};
use rollpacker_dataflow::timely::progress::frontier::MutableAntichain;

use crate::group::Groups;
use crate::overlap::Fetch;
use crate::trainer::TrainerThread;

/// Groups whose gradient is accumulated, and the trainer that holds it.
pub struct Gradients<'scope> {
    /// Batches of [`schema::GROUPS`], once their gradient is accumulated.
    pub accumulated: BatchStream<'scope>,
    /// Batches of [`schema::DECISIONS`].
    pub decisions: BatchStream<'scope>,
    /// Batches of [`schema::METRICS`] so far.
    pub metrics: BatchStream<'scope>,
    /// Errors so far.
    pub errors: BatchStream<'scope>,
    /// Batches of [`schema::ERRORS`] that end nothing, so far.
    pub warnings: BatchStream<'scope>,
    pub(crate) trainer: Rc<TrainerThread>,
}

/// Accumulates gradients.
pub trait GradientExt<'scope> {
    /// Hands complete groups to the trainer, when [`fetched`](Groups::fetched) and the placement say so. What arrives while the trainer is busy goes with a
    /// later call.
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope>;
}

impl<'scope> GradientExt<'scope> for Groups<'scope> {
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope> {
        let (accumulated, errors) =
            accumulate(self.groups, self.placements, trainer.clone(), self.fetch);
        Gradients {
            accumulated,
            decisions: self.decisions,
            metrics: self.metrics,
            errors: self.errors.concat(errors),
            warnings: self.warnings,
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
    placements: Option<BatchStream<'scope>>,
    trainer: Rc<TrainerThread>,
    fetch: Fetch,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new("gradient", groups.scope());
    // Where nothing places, something always trains.
    let devices = u32::from(placements.is_none());
    let placements = placements.unwrap_or_else(|| empty(groups.scope()));
    let mut groups = operator.input(groups, Pipeline, &schema::GROUPS);
    let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
    let (mut accumulated, stream) = operator.output(&schema::GROUPS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let stream = operator.spanned(stream);
    let wake = operator.waker();
    operator.build(move |_capabilities| {
        let mut waiting = Waiting::new(fetch, devices);
        let mut running: Option<Running> = None;
        let mut failed: Option<Held> = None;
        move |frontiers| {
            placements.for_each(|_, batch| {
                let devices = batch.values::<UInt32Type>(column::TRAINING_DEVICES).values();
                if let Some(&devices) = devices.last()
                    && std::mem::replace(&mut waiting.devices, devices) != devices
                {
                    trainer.place(devices);
                }
            });
            groups.for_each(|capability, batch| {
                let capabilities =
                    [capability.retain(accumulated.index()), capability.retain(errors.index())];
                waiting.groups.push_back(Held { capabilities, batch });
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
                running = waiting.next(&frontiers[0]).map(|held| {
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

/// Groups that the trainer has not been given.
struct Waiting {
    fetch: Fetch,
    groups: VecDeque<Held>,
    /// Devices that train.
    devices: u32,
    /// The step of which the trainer was given a part.
    begun: Option<Step>,
}

impl Waiting {
    fn new(fetch: Fetch, devices: u32) -> Self {
        Self { fetch, groups: VecDeque::new(), devices, begun: None }
    }

    /// What the trainer is to be given now, of the earliest step, as one.
    fn next(&mut self, frontier: &MutableAntichain<Step>) -> Option<Held> {
        let step = self.groups.iter().map(Held::step).min().filter(|_| self.devices > 0)?;
        let complete = !frontier.less_equal(&step);
        let most = match self.fetch {
            Fetch::Streamed { max_groups } => max_groups,
            Fetch::Once if complete || self.begun != Some(step) => None,
            Fetch::WholeStep if complete => None,
            Fetch::Once | Fetch::WholeStep => return None,
        };
        self.begun = Some(step);
        let (same, later): (VecDeque<Held>, VecDeque<Held>) =
            self.groups.drain(..).partition(|held| held.step() == step);
        self.groups = later;
        let (now, rest) = split(joined(same)?, most.unwrap_or(usize::MAX));
        self.groups.extend(rest);
        Some(now)
    }
}

impl Held {
    fn step(&self) -> Step {
        *self.capabilities[0].time()
    }
}

/// Groups of one step as one.
fn joined(mut same: VecDeque<Held>) -> Option<Held> {
    let first = same.pop_front()?;
    if same.is_empty() {
        return Some(first);
    }
    let batches: Vec<_> =
        std::iter::once(&first).chain(&same).filter_map(|held| held.batch.rows()).collect();
    let batch =
        concat_batches(&schema::GROUPS, batches).expect("invariant: groups have one schema");
    Some(Held { capabilities: first.capabilities, batch: Batch::new(batch) })
}

/// The first `most` groups, and the others.
fn split(held: Held, most: usize) -> (Held, Option<Held>) {
    let prompts = held.batch.values::<UInt64Type>(column::PROMPT_ID).values();
    let rows: usize =
        prompts.chunk_by(|one, next| one == next).take(most.max(1)).map(<[_]>::len).sum();
    let Some(batch) = held.batch.rows().filter(|batch| rows < batch.num_rows()) else {
        return (held, None);
    };
    let (now, rest) = (batch.slice(0, rows), batch.slice(rows, batch.num_rows() - rows));
    let rest = Held { capabilities: held.capabilities.clone(), batch: Batch::new(rest) };
    (Held { capabilities: held.capabilities, batch: Batch::new(now) }, Some(rest))
}
