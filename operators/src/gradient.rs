//! The gradient operator: trains on complete groups as they arrive, while later groups are still being generated.

use std::rc::Rc;

use arrow_array::types::UInt32Type;
use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::bridge::Reply;
use rollpacker_dataflow::fault::{Fault, faults_batch};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_dataflow::watchdog::WaitGuard;
use rollpacker_stages::train::TrainError;

use crate::group::Groups;
use crate::group_queue::{DeviceWait, GroupQueue, HeldGroups};
use crate::overlap::GroupDelivery;
use crate::streams::StepStreams;
use crate::trainer::{TrainerCallError, TrainerThread};

/// Groups whose gradients are accumulated, and the trainer that accumulated them.
pub struct Gradients<'scope> {
    /// Batches of [`schema::GROUPS`], emitted once their gradient is accumulated.
    pub accumulated: BatchStream<'scope>,
    /// The streams that the next operators pass on.
    pub streams: StepStreams<'scope>,
    pub(crate) trainer: Rc<TrainerThread>,
}

/// Accumulates gradients.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{groups, numbers, run, trainer};
/// use arrow_array::types::UInt64Type;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::advantage::Grpo;
/// use rollpacker_operators::{AdvantageExt, GradientExt};
///
/// let (trainer, updates) = trainer();
/// let accumulated = run(|scope, _| {
///     groups(scope).advantage(Grpo::default()).gradient(trainer).accumulated
/// });
/// assert_eq!(numbers::<UInt64Type>(&accumulated, column::PROMPT_ID), [0, 0, 1, 1]);
/// assert!(updates.try_recv().is_err(), "the update is a separate operator");
/// ```
pub trait GradientExt<'scope> {
    /// Passes complete groups to the trainer when [`deliver_when`](Groups::deliver_when) and the placement allow it. Groups that arrive
    /// while the trainer is busy are passed with a later call.
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope>;
}

impl<'scope> GradientExt<'scope> for Groups<'scope> {
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope> {
        let streams = self.streams;
        let (accumulated, errors) =
            accumulate(self.groups, streams.placements.clone(), trainer.clone(), self.fetch);
        Gradients { accumulated, streams: streams.with_errors(errors), trainer }
    }
}

/// The accumulation that the trainer is working on.
struct RunningAccumulation {
    held: HeldGroups,
    reply: Reply<Result<(), TrainError>>,
    _awaited: WaitGuard,
}

fn accumulate<'scope>(
    groups: BatchStream<'scope>,
    placements: Option<BatchStream<'scope>>,
    trainer: Rc<TrainerThread>,
    fetch: GroupDelivery,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new("gradient", groups.scope());
    // Without placements, the trainer always has a device.
    let devices = u32::from(placements.is_none());
    let placements = placements.unwrap_or_else(|| empty(groups.scope()));
    let mut groups = operator.input(groups, Pipeline, &schema::GROUPS);
    let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
    let (mut accumulated, stream) = operator.output(&schema::GROUPS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let stream = operator.end_spans_by(stream);
    let (wake, awaits) = (operator.waker(), operator.wait_handle());
    let mut unplaced = DeviceWait::new(operator.wait_handle());
    operator.build(move |_capabilities| {
        let mut waiting = GroupQueue::new(fetch, devices);
        let mut running: Option<RunningAccumulation> = None;
        let mut failed: Option<HeldGroups> = None;
        move |frontiers| {
            placements.for_each(|_, batch| {
                let devices = batch.values::<UInt32Type>(column::TRAINING_DEVICES).values();
                if let Some(&devices) = devices.last()
                    && waiting.place(devices)
                {
                    trainer.place(devices);
                }
            });
            groups.for_each(|capability, batch| {
                waiting.push(HeldGroups {
                    output: capability.retain(accumulated.index()),
                    errors: capability.retain(errors.index()),
                    batch,
                });
            });
            unplaced.update(&waiting);
            if let Some((held, outcome)) = take_reply(&mut running) {
                match outcome {
                    Ok(()) => accumulated.give(&held.output, held.batch),
                    Err(error) => {
                        let fault = Fault::of("gradient", &error);
                        errors.give(&held.errors, faults_batch(&[fault]));
                        // Keep the capabilities: the step must not complete, and no later group may be trained on.
                        failed = Some(held);
                    }
                }
            }
            if running.is_none() && failed.is_none() {
                running = waiting.next(&frontiers[0]).map(|held| {
                    let (step, batch) = (held.step(), held.batch.clone());
                    let _awaited = awaits.hold(step, || "the trainer to accumulate groups");
                    RunningAccumulation {
                        held,
                        reply: trainer.accumulate(step, batch, wake.clone()),
                        _awaited,
                    }
                });
            }
        }
    });
    (stream, error_stream)
}

fn take_reply(
    running: &mut Option<RunningAccumulation>,
) -> Option<(HeldGroups, Result<(), TrainerCallError>)> {
    let outcome = running.as_ref()?.reply.poll_outcome()?;
    Some((running.take()?.held, outcome))
}
