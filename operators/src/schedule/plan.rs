//! The plan of a round, and the prompts that it leaves for later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, Step};
use serde::{Deserialize, Serialize};

use super::{Reason, RoundKind};

/// The plan of a round.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// The kind of the round.
    pub(super) round: RoundKind,
    /// The reason for this kind of round.
    pub(super) reason: Reason,
    /// The epoch of the round's prompts.
    pub(super) epoch: u32,
    /// The number of responses launched for each prompt, at least `responses`.
    pub(super) samples: u32,
    /// The number of responses that form a group.
    pub(super) responses: u32,
    /// The prompts of the round, in any order.
    pub(super) prompts: Vec<PlannedPrompt>,
    /// The number of groups to admit by lane, at most the number of the lane's prompts. A lane without places launches for later rounds.
    pub(super) places: BTreeMap<Arc<str>, usize>,
    /// The rules by which the round runs.
    pub(super) rules: RoundRules,
}

/// The rules by which a round runs its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RoundRules {
    /// The maximum number of responses that run at a time; the others wait in the schedule.
    pub(super) slots: usize,
    /// The order in which waiting requests are launched.
    pub(super) order: Order,
    /// The number of complete groups to wait for before the shortest are admitted. If `None`, each group is admitted when it is complete.
    pub(super) harvest: Option<usize>,
    /// `true` to pause instead of abort the responses in flight when a lane has no place left.
    pub(super) pauses: bool,
    /// `true` to reject groups without reward variance.
    pub(super) filters: bool,
}

impl Default for RoundRules {
    fn default() -> Self {
        let slots = usize::MAX;
        Self { slots, order: Order::Prompts, harvest: None, pauses: false, filters: false }
    }
}

/// The order in which requests of equal priority are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// Prompt by prompt: all requests of one prompt, then all of the next.
    Prompts,
    /// Requests of the group with the fewest responses left to end first.
    Groups,
    /// The first request of each prompt, then the second of each.
    Samples,
}

/// A prompt of a [`Plan`].
#[derive(Clone, Debug)]
pub(super) struct PlannedPrompt {
    /// The prompt.
    pub(super) prompt: PromptId,
    /// The lane whose quota the prompt uses.
    pub(super) lane: Arc<str>,
    /// The reason for the launch.
    pub(super) reason: Reason,
    /// The priority; requests with lower values are launched first.
    pub(super) priority: u8,
    /// The step that first launched the prompt, or `None` if no step did.
    pub(super) since: Option<Step>,
    /// The responses that are resumed.
    pub(super) kept: KeptSamples,
}

/// The state of a prompt that is left for later rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct LeftoverPrompt {
    /// The prompt.
    pub(super) prompt: PromptId,
    /// The step that first launched the prompt, or `None` if no step did.
    pub(super) since: Option<Step>,
    /// The samples whose tokens are kept.
    pub(super) kept: KeptSamples,
}

/// Samples whose tokens are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct KeptSamples {
    pub(super) samples: BTreeSet<u32>,
    /// The number of samples used so far, kept or not.
    pub(super) used: u32,
}

impl LeftoverPrompt {
    /// Creates a prompt that was never launched.
    pub(super) fn fresh(prompt: PromptId) -> Self {
        Self { prompt, since: None, kept: KeptSamples::default() }
    }

    /// Converts the leftover prompt to a prompt of a round.
    pub(super) fn planned(self, lane: &Arc<str>, priority: u8) -> PlannedPrompt {
        PlannedPrompt {
            prompt: self.prompt,
            lane: Arc::clone(lane),
            reason: if self.since.is_some() { Reason::Queued } else { Reason::Fresh },
            priority,
            since: self.since,
            kept: self.kept,
        }
    }
}
