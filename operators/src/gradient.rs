//! The gradient operator: trains on complete groups as they arrive, while later groups are still being generated.

use std::rc::Rc;

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;

use crate::group::Groups;
use crate::group_queue::{GroupCalls, HeldGroups};
use crate::overlap::GroupDelivery;
use crate::streams::StepStreams;
use crate::trainer::TrainerThread;

/// The name of the operator in metrics and faults.
const NAME: &str = "gradient";

/// The output of the gradient operator: the stream of the groups that the trainer has received, the streams of the preceding operators, and
/// the trainer.
pub struct Gradients<'scope> {
    /// Batches of [`schema::GROUPS`]. A batch is emitted once the trainer has accumulated its gradient, or has stored the batch because the
    /// update of an earlier step is still to come. On several workers, the stream has no rows after [`reduce`](crate::ReduceExt::reduce).
    pub accumulated: BatchStream<'scope>,
    /// The streams that the next operators pass on.
    pub streams: StepStreams<'scope>,
    pub(crate) trainer: Rc<TrainerThread>,
    /// `true` if groups were distributed to the workers by prompt id; see [`Groups`].
    pub(crate) redistributed: bool,
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
    /// while the trainer is busy are passed with a later call. If a call fails, the run ends with an error.
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope>;
}

impl<'scope> GradientExt<'scope> for Groups<'scope> {
    fn gradient(self, trainer: Rc<TrainerThread>) -> Gradients<'scope> {
        let (streams, redistributed) = (self.streams, self.redistributed);
        let (accumulated, errors) =
            accumulate(self.groups, streams.placements.clone(), trainer.clone(), self.delivery);
        Gradients { accumulated, streams: streams.with_errors(errors), trainer, redistributed }
    }
}

fn accumulate<'scope>(
    groups: BatchStream<'scope>,
    placements: Option<BatchStream<'scope>>,
    trainer: Rc<TrainerThread>,
    delivery: GroupDelivery,
) -> (BatchStream<'scope>, BatchStream<'scope>) {
    let mut operator = Operator::new(NAME, groups.scope());
    // Without placements, the trainer always has a device.
    let devices = u32::from(placements.is_none());
    let placements = placements.unwrap_or_else(|| empty(groups.scope()));
    let mut groups = operator.input(groups, Pipeline, &schema::GROUPS);
    let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
    let (mut accumulated, stream) = operator.output(&schema::GROUPS, &[0]);
    let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
    let stream = operator.end_spans_by(stream);
    let wake = operator.waker();
    let mut calls = GroupCalls::new(&mut operator, delivery, devices);
    operator.build(move |_capabilities| {
        move |frontiers| {
            placements.for_each(|_, batch| {
                if let Some(devices) = calls.read_placements(&batch) {
                    trainer.set_devices(devices);
                }
            });
            groups.for_each(|capability, batch| {
                calls.push(HeldGroups {
                    output: capability.retain(accumulated.index()),
                    errors: capability.retain(errors.index()),
                    batch,
                });
            });
            if let Some((held, ())) = calls.poll_ended(NAME, &mut errors) {
                accumulated.give(&held.output, held.batch);
            }
            calls.begin(&frontiers[0], "the trainer to accumulate groups", |step, batch| {
                trainer.accumulate(step, batch, wake.clone())
            });
        }
    });
    (stream, error_stream)
}
