//! The streams and handles of a step that each operator passes on to the next.

use rollpacker_dataflow::batch::BatchStream;
use rollpacker_dataflow::timely::dataflow::operators::Concat;

use crate::in_flight::InFlightResponses;
use crate::resume::Resumable;

/// The streams and handles that the outputs of the operators from [`rollout`](crate::rollout) to [`gradient`](crate::gradient) have in
/// common.
pub struct StepStreams<'scope> {
    /// Batches of [`DECISIONS`](rollpacker_dataflow::schema::DECISIONS): the decisions that concern this worker.
    pub decisions: BatchStream<'scope>,
    /// Batches of [`TEXTS`](rollpacker_dataflow::schema::TEXTS): the texts of the prompts that this worker holds.
    pub texts: BatchStream<'scope>,
    /// Batches of [`PLACEMENTS`](rollpacker_dataflow::schema::PLACEMENTS), if there is a placement policy.
    pub placements: Option<BatchStream<'scope>>,
    /// Batches of [`METRICS`](rollpacker_dataflow::schema::METRICS): the metrics of all operators so far.
    pub metrics: BatchStream<'scope>,
    /// Batches of [`ERRORS`](rollpacker_dataflow::schema::ERRORS): the errors of all operators so far, which end the run.
    pub errors: BatchStream<'scope>,
    /// Batches of [`ERRORS`](rollpacker_dataflow::schema::ERRORS): the warnings of all operators so far, which do not end the run.
    pub warnings: BatchStream<'scope>,
    pub(crate) in_flight: InFlightResponses,
    pub(crate) resumable: Resumable<'scope>,
}

impl<'scope> StepStreams<'scope> {
    pub(crate) fn with_metrics(self, metrics: BatchStream<'scope>) -> Self {
        Self { metrics: self.metrics.concat(metrics), ..self }
    }

    pub(crate) fn with_errors(self, errors: BatchStream<'scope>) -> Self {
        Self { errors: self.errors.concat(errors), ..self }
    }
}
