//! The error of a run without an inference server.

/// The error of a run that ended, or could not start, because no inference server was available. The run can be resumed from its last
/// snapshot, or started again if it has none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the run ended because no inference server was available; resume it when one is")]
pub struct ServersUnavailable;
