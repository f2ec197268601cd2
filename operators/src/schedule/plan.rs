//! What a round is asked to do, and what it leaves for later ones.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, Step};
use serde::{Deserialize, Serialize};

use super::{Reason, Round};

/// What a round shall do.
#[derive(Clone, Debug)]
pub(super) struct Plan {
    /// What kind.
    pub(super) round: Round,
    /// Why this kind.
    pub(super) reason: Reason,
    /// The epoch of its prompts.
    pub(super) epoch: u32,
    /// Responses launched for each prompt, at least `responses`.
    pub(super) samples: u32,
    /// Responses that form a group.
    pub(super) responses: u32,
    /// Its prompts, in any order.
    pub(super) prompts: Vec<Planned>,
    /// Groups that are admitted of each lane, at most as many as it has prompts. What is launched of a lane without places is for later
    /// rounds.
    pub(super) places: BTreeMap<Arc<str>, usize>,
    /// How it goes about it.
    pub(super) rules: Rules,
}

/// How a round goes about its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Rules {
    /// Responses that run at a time; the others wait here.
    pub(super) slots: usize,
    /// Which of those that wait is launched first.
    pub(super) order: Order,
    /// Complete groups that are waited for before the shortest are admitted; none: each is admitted when it is complete.
    pub(super) harvest: Option<usize>,
    /// Whether what still runs when a lane has no place left is kept.
    pub(super) pauses: bool,
    /// Whether groups without variance of reward are rejected.
    pub(super) filters: bool,
}

impl Default for Rules {
    fn default() -> Self {
        let slots = usize::MAX;
        Self { slots, order: Order::Prompts, harvest: None, pauses: false, filters: false }
    }
}

/// In which order the requests of prompts of one priority are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Order {
    /// All of a prompt, then all of the next.
    Prompts,
    /// First those of the group that has the fewest responses left to end.
    Groups,
    /// The first of each prompt, then the second of each.
    Samples,
}

/// A prompt of a [`Plan`].
#[derive(Clone, Debug)]
pub(super) struct Planned {
    /// The prompt.
    pub(super) prompt: PromptId,
    /// What its quota goes by.
    pub(super) lane: Arc<str>,
    /// Why it is launched.
    pub(super) reason: Reason,
    /// Requests of lower priorities are launched first.
    pub(super) priority: u8,
    /// The step that launched it first, if it was launched before.
    pub(super) since: Option<Step>,
    /// Its responses that go on.
    pub(super) kept: Kept,
}

/// What is left of a prompt for later rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Leftover {
    /// The prompt.
    pub(super) prompt: PromptId,
    /// The step that launched it first; none: it was never launched.
    pub(super) since: Option<Step>,
    /// What is kept of its responses.
    pub(super) kept: Kept,
}

/// Samples of which tokens are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Kept {
    pub(super) samples: BTreeSet<u32>,
    /// Samples used so far, kept ones or not.
    pub(super) used: u32,
}

impl Leftover {
    /// A prompt that was never launched.
    pub(super) fn fresh(prompt: PromptId) -> Self {
        Self { prompt, since: None, kept: Kept::default() }
    }

    /// As a prompt of a round.
    pub(super) fn planned(self, lane: &Arc<str>, priority: u8) -> Planned {
        Planned {
            prompt: self.prompt,
            lane: Arc::clone(lane),
            reason: if self.since.is_some() { Reason::Queued } else { Reason::Fresh },
            priority,
            since: self.since,
            kept: self.kept,
        }
    }
}
