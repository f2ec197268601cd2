//! How a graph takes snapshots.

use std::sync::Arc;

use super::cadence::Cadence;
use super::store::SnapshotStore;
use crate::step::Step;

/// What a snapshot that cannot be written means.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnError {
    /// The run ends: what it would do from here on could not be resumed.
    #[default]
    Fail,
    /// A warning, and another try at the end of the next step; where the workers are in several processes, at that of the next step of
    /// the cadence. That a newer process has opened the folder ends the run none the less.
    Warn,
}

/// How a graph takes snapshots; every worker of the process gets a clone.
#[derive(Clone)]
pub struct SnapshotPlan {
    /// Where they are kept.
    pub store: Arc<SnapshotStore>,
    /// When they are taken.
    pub cadence: Cadence,
    /// What becomes of a run that cannot write one.
    pub on_error: OnError,
    /// The step of the snapshot that the run was resumed from; it begins with the next.
    pub resumed: Option<Step>,
}
