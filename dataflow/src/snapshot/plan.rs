//! The snapshot plan of a graph.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::cadence::Cadence;
use super::store::SnapshotStore;
use crate::step::Step;

/// The reaction to a snapshot that cannot be written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Ends the run, because after a crash no progress since the last snapshot could be resumed. The default.
    #[default]
    Fail,
    /// Warns and retries at the end of the next step or, if workers run in several processes, at the next step of the cadence. The run
    /// still ends if a newer process has opened the folder, an operator reports no part, or the writer thread panics.
    Warn,
}

/// The plan by which a graph takes snapshots. Every worker of the process gets a clone.
#[derive(Clone)]
pub struct SnapshotPlan {
    /// The store of the snapshots.
    pub store: Arc<SnapshotStore>,
    /// The steps after which snapshots are taken.
    pub cadence: Cadence,
    /// The reaction to a snapshot that cannot be written.
    pub on_error: OnError,
    /// The step of the snapshot from which the run was resumed; the run begins with the next step. `None` for a new run.
    pub resumed: Option<Step>,
}
