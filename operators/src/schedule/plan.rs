//! The plan of a round, and the prompts that rounds leave for later rounds.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, Step};
use serde::{Deserialize, Serialize};

use super::{Reason, RoundKind};

/// The prompts of a round, the number of groups to admit, and the rules for launching requests.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The kind of the round.
    pub round: RoundKind,
    /// The reason for this kind of round.
    pub reason: Reason,
    /// The epoch of the round's prompts.
    pub epoch: u32,
    /// The number of responses launched for each prompt, at least `responses`. A prompt with more kept samples launches all of them.
    pub samples: u32,
    /// The number of responses that form a group.
    pub responses: u32,
    /// The prompts of the round, in any order.
    pub prompts: Vec<PlannedPrompt>,
    /// The number of groups to admit in each lane, at most the number of prompts in the lane. A lane without an entry admits no group; its
    /// prompts are deferred when all other lanes are full.
    pub places: BTreeMap<Arc<str>, usize>,
    /// The rules by which the round runs.
    pub rules: RoundRules,
}

impl Plan {
    /// Returns the plan of a round that launches `responses` responses to each of `prompts`, which belong to `epoch`. The round admits the
    /// first `places` prompts whose responses have all ended, or all prompts if there are fewer.
    ///
    /// All prompts share one lane. The round is [short](RoundKind::Short) if it launches more prompts than it admits, and
    /// [full](RoundKind::Full) otherwise. Its reason is [`Reason::EpochEnd`] if there are fewer prompts than `places`, and
    /// [`Reason::Fresh`] otherwise.
    #[must_use]
    pub fn new(epoch: u32, prompts: Vec<LeftoverPrompt>, places: usize, responses: u32) -> Self {
        let (lane, launched) = (Arc::default(), prompts.len());
        Self {
            round: if launched > places { RoundKind::Short } else { RoundKind::Full },
            reason: if launched < places { Reason::EpochEnd } else { Reason::Fresh },
            epoch,
            samples: responses,
            responses,
            prompts: prompts.into_iter().map(|left| left.planned(&lane, 0)).collect(),
            places: BTreeMap::from([(Arc::clone(&lane), launched.min(places))]),
            rules: RoundRules::default(),
        }
    }
}

/// The rules by which a round runs its plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoundRules {
    /// The maximum number of responses that run at a time, at least 1; the others wait in the schedule. Default: no limit.
    pub slots: usize,
    /// The order in which waiting requests are launched. Default: [`Order::Prompts`].
    pub order: Order,
    /// The number of complete groups to wait for before the groups with the fewest tokens are admitted. If `None` (the default), each group
    /// is admitted when it is complete. A number requires that exactly one lane admits groups, and must lie between the
    /// [places](Plan::places) and the prompts of this lane.
    pub harvest: Option<usize>,
    /// `true` to pause the responses in flight, instead of aborting them, when a lane admits no further group. The ended responses of the
    /// same groups are then kept. Requires that [`RoundPolicy::pauses`](super::round_policy::RoundPolicy::pauses) returns `true`. Default:
    /// `false`.
    pub pauses: bool,
    /// `true` to reject groups without reward variance, and groups with a response that could not be scored. Requires a
    /// [`RoundPolicy::filter`](super::round_policy::RoundPolicy::filter). Default: `false`.
    pub filters: bool,
}

impl Default for RoundRules {
    fn default() -> Self {
        let slots = usize::MAX;
        Self { slots, order: Order::Prompts, harvest: None, pauses: false, filters: false }
    }
}

/// The order in which requests of equal priority are launched. Among equals, the prompt that was read first comes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Prompt by prompt: all requests of one prompt, then all requests of the next prompt.
    Prompts,
    /// First the requests of the group with the fewest unfinished responses, waiting or in flight.
    Groups,
    /// The first request of each prompt, then the second request of each prompt, and so on.
    Samples,
    /// The first request of each prompt, then requests of the group with the longest response so far. A group without an ended response
    /// comes before the groups that have one.
    LongestFirst,
}

impl Order {
    /// Returns `true` if a launch can change the rank of its group, so that requests must be launched one at a time.
    pub(super) fn takes_one(self) -> bool {
        matches!(self, Self::Samples | Self::LongestFirst)
    }
}

/// A prompt of a [`Plan`].
#[derive(Clone, Debug)]
pub struct PlannedPrompt {
    /// The id of the prompt.
    pub prompt: PromptId,
    /// The lane whose places the prompt may take.
    pub lane: Arc<str>,
    /// The reason for the launch.
    pub reason: Reason,
    /// The priority; requests with lower values are launched first.
    pub priority: u8,
    /// The step that first launched the prompt, or `None` if no step did.
    pub since: Option<Step>,
    /// The samples of earlier rounds whose tokens are kept. A launch resumes them.
    pub kept: KeptSamples,
}

/// The state of a prompt that is left for later rounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftoverPrompt {
    /// The id of the prompt.
    pub prompt: PromptId,
    /// The step that first launched the prompt, or `None` if no step did.
    pub since: Option<Step>,
    /// The samples whose tokens are kept.
    pub kept: KeptSamples,
}

/// Samples whose tokens are kept.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptSamples {
    pub(super) samples: BTreeSet<u32>,
    /// The number of sample indices assigned so far, including indices of samples that are not kept.
    pub(super) used: u32,
}

impl LeftoverPrompt {
    /// Creates a prompt that was never launched.
    #[must_use]
    pub fn fresh(prompt: PromptId) -> Self {
        Self { prompt, since: None, kept: KeptSamples::default() }
    }

    /// Converts the leftover prompt to a prompt of a round, with the [lane](PlannedPrompt::lane) and the
    /// [priority](PlannedPrompt::priority). The reason is [`Reason::Queued`] if an earlier step launched the prompt, and [`Reason::Fresh`]
    /// otherwise.
    #[must_use]
    pub fn planned(self, lane: &Arc<str>, priority: u8) -> PlannedPrompt {
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
