//! How the stages of a step overlap.

use serde::{Deserialize, Serialize};

/// When responses are scored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Each as it ends, beside the rollout (RLHFuse, ROLL, RollPacker).
    #[default]
    Streamed,
    /// All of a step once its rollout has ended (veRL).
    AfterRollout,
}

/// When groups are handed to the trainer; never while no device trains.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fetch {
    /// As they become complete: those that wait, at most so many at once; none: all of them.
    Streamed {
        /// Groups of a call.
        max_groups: Option<usize>,
    },
    /// Once what is there when a device begins to train, the others when all of the step are there.
    Once,
    /// When all of the step are there.
    WholeStep,
}

impl Default for Fetch {
    fn default() -> Self {
        Self::Streamed { max_groups: None }
    }
}
