//! The section `[pipeline]`: the times at which responses are scored and groups are trained on.

use rollpacker_operators::overlap::Scoring;
use serde::{Deserialize, Serialize};

use crate::recipe::section::section;

section! {
    /// The section `[pipeline]`: how the stages of a step overlap.
    Pipeline {
        /// Scoring of responses: `streamed` scores each response as soon as it ends, `after_rollout` scores all responses of a step after
        /// the rollout. `after_rollout` is rejected with `placement.kind = "stream_trainer"` and with schedules that decide by scores.
        /// Default: `after_rollout` for the schedule `sync`, `streamed` for all others.
        reward: Option<Scoring> = None,
        /// Training on groups: `streamed` trains on groups as they become complete, `once` first on the groups that are complete when a
        /// device starts to train and then on the rest, `whole_step` on all groups of the step at once. `whole_step` is rejected with
        /// `placement.kind = "stream_trainer"`. Default: `whole_step` for the schedule `sync`, `streamed` for all others.
        gradient: Option<Gradient> = None,
        /// Maximum number of groups that the trainer receives at once while groups are streamed, at least 1. Rejected if groups are not
        /// streamed. Default: all complete groups.
        max_groups: Option<usize> [groups] = None,
    }
}

/// The time at which groups are trained on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gradient {
    /// Groups are trained on as soon as they are complete.
    Streamed,
    /// The groups that are complete when a device starts to train are trained on first, and then the rest.
    Once,
    /// All groups of the step are trained on at once.
    WholeStep,
}
