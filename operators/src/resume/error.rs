//! The error of a run that cannot be resumed.

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::snapshot::SnapshotError;
use rollpacker_dataflow::step::Step;

/// The reason why a run cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The layout of a part differs from the layout that this version reads.
    #[error("snapshot after step {}, part `{part}`: expected {expected}, found {found}", step.ordinal())]
    Layout {
        /// The step of the snapshot.
        step: Step,
        /// The name of the part.
        part: &'static str,
        /// The layout that this version reads, in words.
        expected: String,
        /// The layout of the part in words, or the error of reading it.
        found: String,
    },
    /// The snapshot does not fit the run. The schedule, the placement policy or the trainer rejected its state, the trainer restored an
    /// unexpected policy, or the state of the trainer is missing. Another case is a snapshot with the state of a curriculum for a run
    /// without one.
    #[error("snapshot after step {}, part `{part}`: {reason}", step.ordinal())]
    Refused {
        /// The step of the snapshot.
        step: Step,
        /// The name of the part.
        part: &'static str,
        /// The error of the component that rejected the state, or the reason why the state is missing or unused.
        reason: BoxError,
    },
}

impl HasOrigin for ResumeError {
    fn origin(&self) -> Origin {
        match self {
            Self::Snapshot(error) => error.origin(),
            Self::Layout { .. } | Self::Refused { .. } => Origin::User,
        }
    }
}
