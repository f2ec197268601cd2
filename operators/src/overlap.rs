//! Settings for the overlap of the stages of a step.

use serde::{Deserialize, Serialize};

/// The time at which responses are scored. The default is [`Streamed`](Self::Streamed).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scoring {
    /// Each response is scored as it ends, during the rollout (RLHFuse, ROLL, RollPacker).
    #[default]
    Streamed,
    /// All responses of a step are scored after its rollout has ended (veRL).
    AfterRollout,
}

/// The rule by which groups are passed to the trainer. No group is passed while no device trains. The default is
/// [`Streamed`](Self::Streamed) without a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupDelivery {
    /// Groups are passed as they become complete.
    Streamed {
        /// The maximum number of groups per call; 0 counts as 1. `None` passes all groups that are waiting.
        max_groups: Option<usize>,
    },
    /// The first call for a step passes the groups of the step that are complete at that time. The other groups are passed when the step is
    /// complete.
    Once,
    /// All groups are passed when the step is complete.
    WholeStep,
}

impl Default for GroupDelivery {
    fn default() -> Self {
        Self::Streamed { max_groups: None }
    }
}
