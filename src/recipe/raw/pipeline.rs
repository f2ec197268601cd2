//! The section `[pipeline]`.

use rollpacker_operators::overlap::Scoring;
use serde::{Deserialize, Serialize};

use crate::recipe::section::section;

section! {
    /// The section `[pipeline]`: how the stages of a step overlap.
    Pipeline {
        /// Scoring of responses: `streamed` scores each response as soon as it ends, `after_rollout` scores all of a step after its
        /// rollout. Default: as the schedule requires.
        reward: Option<Scoring> = None,
        /// Training on groups: `streamed` trains on groups as they become complete, `once` on those that are complete when a device starts
        /// to train and then on the rest, `whole_step` on all groups of the step at once. Default: as the schedule requires.
        gradient: Option<Gradient> = None,
        /// Maximum number of groups that the trainer receives at once while they are streamed, at least 1. Default: all that are complete.
        max_groups: Option<usize> [groups] = None,
    }
}

/// The time at which groups are trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradient {
    /// As soon as they are complete.
    Streamed,
    /// Those that are complete when a device starts to train, and then the rest.
    Once,
    /// All groups of the step at once.
    WholeStep,
}
