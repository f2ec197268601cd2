//! Why a run cannot be resumed.

use rollpacker_dataflow::snapshot::SnapshotError;
use rollpacker_dataflow::step::Step;

/// Why a run cannot be resumed.
#[derive(Debug, thiserror::Error)]
pub enum ResumeError {
    /// The snapshot cannot be read.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// A part is not of the layout that this program writes.
    #[error("snapshot behind step {}, part `{part}`: expected {expected}, found {found}", step.ordinal())]
    Layout {
        /// The step of the snapshot.
        step: Step,
        /// The part.
        part: &'static str,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// The schedule or the trainer does not go on from what it had written.
    #[error("snapshot behind step {}, part `{part}`: {reason}", step.ordinal())]
    Refused {
        /// The step of the snapshot.
        step: Step,
        /// The part.
        part: &'static str,
        /// What was said.
        reason: String,
    },
}
