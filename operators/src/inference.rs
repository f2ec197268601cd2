//! The inference operator: runs the trainer's models on complete groups, before advantages are estimated.
//!
//! Advantages depend on models if rewards have a KL penalty or a critic predicts returns. verl computes both between rollout and
//! advantages, for the whole batch. Here, each group passes through the trainer as soon as it is complete, during the rollout. Model
//! outputs that are not needed for advantages (the reference for a KL term in the loss, the old log-probabilities) are computed in
//! [`gradient`](crate::gradient), which processes the groups anyway.

use std::rc::Rc;

use arrow_array::types::Float32Type;
use arrow_array::{ArrayRef, RecordBatch};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::schema;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::generic::operator::empty;
use rollpacker_stages::train::Inferred;

use crate::group::Groups;
use crate::group_queue::{GroupCalls, HeldGroups};
use crate::needed_outputs::NeededOutputs;
use crate::trainer::TrainerThread;
use crate::wire::columns::owned_lists;

/// The name of the operator in metrics and faults.
const NAME: &str = "inference";

/// Runs the trainer's models on groups.
///
/// ```
/// # mod step {
/// #     include!(concat!(env!("CARGO_MANIFEST_DIR"), "/doc/step.rs"));
/// # }
/// # use step::{groups, lists, run, trainer};
/// use arrow_array::types::Float32Type;
/// use rollpacker_dataflow::schema::column;
/// use rollpacker_operators::InferenceExt;
///
/// // A trainer whose critic predicts 0.5 at each token.
/// let (trainer, _updates) = trainer();
/// let inferred = run(|scope, _| groups(scope).infer(&trainer).groups);
/// let values = lists::<Float32Type>(&inferred, column::VALUES);
/// assert_eq!(values, [vec![0.5], vec![0.5, 0.5], vec![0.5], vec![0.5, 0.5]]);
/// ```
pub trait InferenceExt {
    /// Adds the outputs of the models of `trainer` for each response as columns. The batches then have the schema [`schema::INFERRED`]. An
    /// output that the trainer does not return is an empty list. Groups are passed to the trainer when
    /// [`deliver_when`](Groups::deliver_when) and the placement allow it. Groups of a step wait for the update of the previous step.
    ///
    /// The run ends with an error if a call fails, or if the trainer does not return an output that
    /// [`with_kl_penalty`](Groups::with_kl_penalty) or [`with_values`](Groups::with_values) requires.
    #[must_use]
    fn infer(self, trainer: &Rc<TrainerThread>) -> Self;
}

impl InferenceExt for Groups<'_> {
    fn infer(self, trainer: &Rc<TrainerThread>) -> Self {
        let mut operator = Operator::new(NAME, self.groups.scope());
        // Without placements, the trainer always has a device.
        let devices = u32::from(self.streams.placements.is_none());
        let placements =
            self.streams.placements.clone().unwrap_or_else(|| empty(self.groups.scope()));
        let mut groups = operator.input(self.groups, Pipeline, &schema::SCORED);
        let mut placements = operator.input(placements, Pipeline, &schema::PLACEMENTS);
        let (mut inferred, stream) = operator.output(&schema::INFERRED, &[0]);
        let (mut errors, error_stream) = operator.output(&schema::ERRORS, &[0]);
        let stream = operator.end_spans_by(stream);
        let (wake, trainer) = (operator.waker(), trainer.clone());
        trainer.on_update(operator.waker());
        let mut calls = GroupCalls::new(&mut operator, self.delivery, devices);
        let needed =
            NeededOutputs { reward_kl: self.reward_kl.is_some(), values: self.needs_values };
        operator.build(move |_capabilities| {
            move |frontiers| {
                placements.for_each(|_, batch| {
                    calls.read_placements(&batch);
                });
                groups.for_each(|capability, batch| {
                    calls.push(HeldGroups {
                        output: capability.retain(inferred.index()),
                        errors: capability.retain(errors.index()),
                        batch,
                    });
                });
                if let Some((held, results)) = calls.poll_ended(NAME, &mut errors) {
                    inferred.give(&held.output, with_inferred(&held.batch, results));
                }
                if calls.first().is_some_and(|step| step <= trainer.next()) {
                    calls.begin(&frontiers[0], "the trainer to infer", |step, batch| {
                        trainer.infer(step, batch, needed, wake.clone())
                    });
                }
            }
        });
        let streams = self.streams.with_errors(error_stream);
        Self { groups: stream, streams, inferred: true, ..self }
    }
}

fn with_inferred(batch: &Batch, mut results: Vec<Inferred>) -> Batch {
    let mut column = |list: fn(&mut Inferred) -> &mut Vec<f32>| {
        owned_lists::<Float32Type>(results.iter_mut().map(|one| std::mem::take(list(one))))
    };
    let columns: [ArrayRef; 3] = [
        column(|one| &mut one.reward_kl),
        column(|one| &mut one.ref_logprobs),
        column(|one| &mut one.values),
    ];
    let rows = batch.rows().map(RecordBatch::columns).unwrap_or_default();
    Batch::from_columns(&schema::INFERRED, rows.iter().cloned().chain(columns).collect())
}
