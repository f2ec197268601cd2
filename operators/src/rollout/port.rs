//! The outputs of the rollout operator.

use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

/// An output of the rollout operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Port {
    /// Batches of [`schema::RESPONSES`](rollpacker_dataflow::schema::RESPONSES).
    Responses,
    /// Batches of [`schema::ERRORS`](rollpacker_dataflow::schema::ERRORS).
    Errors,
    /// Batches of [`schema::METRICS`](rollpacker_dataflow::schema::METRICS).
    Metrics,
    /// Batches of [`schema::NOTICES`](rollpacker_dataflow::schema::NOTICES).
    Notices,
}

impl Port {
    /// Every output, in the order of [`RolloutCapabilities`].
    pub(crate) const ALL: [Self; 4] = [Self::Responses, Self::Errors, Self::Metrics, Self::Notices];
}

/// The capabilities of a step, one for each [`Port`].
pub(crate) type RolloutCapabilities = [Capability<Step>; Port::ALL.len()];
