//! One round, from its launches to its last admission.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::{Decision, Reason, Round};

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
    /// Groups that are admitted of each lane, at most as many as it has prompts.
    pub(super) places: BTreeMap<Arc<str>, usize>,
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
}

/// A round that was launched and not closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OpenRound {
    step: Step,
    epoch: u32,
    responses: u32,
    /// Groups still to be admitted, by lane.
    places: BTreeMap<Arc<str>, usize>,
    groups: BTreeMap<PromptId, Group>,
}

/// The responses of one prompt in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Group {
    lane: Arc<str>,
    /// Samples launched so far.
    launched: u32,
    /// Samples neither ended nor aborted.
    live: BTreeSet<u32>,
    /// Samples that ended.
    ended: BTreeSet<u32>,
    fate: Option<Fate>,
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Fate {
    Admitted,
    Deferred,
}

impl OpenRound {
    /// Launches `plan`, its prompts in ascending order: that in which they were read.
    pub(super) fn open(step: Step, mut plan: Plan, out: &mut VecDeque<Decision>) -> Self {
        plan.prompts.sort_unstable_by_key(|planned| planned.prompt);
        out.push_back(Decision::Open { step, round: plan.round, reason: plan.reason });
        out.extend(plan.prompts.iter().map(|planned| Decision::Launch {
            prompt: planned.prompt,
            samples: 0..plan.samples,
            reason: planned.reason,
        }));
        let groups = plan
            .prompts
            .into_iter()
            .map(|planned| (planned.prompt, Group::new(planned.lane, plan.samples)));
        Self {
            step,
            epoch: plan.epoch,
            responses: plan.responses,
            places: plan.places,
            groups: groups.collect(),
        }
    }

    /// The step of the round.
    pub(super) fn step(&self) -> Step {
        self.step
    }

    /// The epoch of its prompts.
    pub(super) fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Its prompts, ascending.
    pub(super) fn prompts(&self) -> impl Iterator<Item = PromptId> {
        self.groups.keys().copied()
    }

    /// Whether every group was admitted or deferred.
    pub(super) fn is_decided(&self) -> bool {
        self.places.is_empty()
    }

    /// The deferred prompts with their lanes, ascending.
    pub(super) fn into_deferred(self) -> impl Iterator<Item = (PromptId, Arc<str>)> {
        let deferred =
            self.groups.into_iter().filter(|(_, group)| group.fate == Some(Fate::Deferred));
        deferred.map(|(prompt, group)| (prompt, group.lane))
    }

    /// Takes in that a response ended. What was aborted, told before, or launched by another round is ignored.
    pub(super) fn on_response(
        &mut self,
        id: SampleId,
        reason: FinishReason,
        out: &mut VecDeque<Decision>,
    ) {
        if id.step != self.step {
            return;
        }
        let Some(group) = self.groups.get_mut(&id.prompt) else { return };
        if !group.live.remove(&id.sample) {
            return;
        }
        if !reason.is_whole() {
            group.replace_lost(id.prompt, self.responses, out);
            return;
        }
        group.ended.insert(id.sample);
        if group.ended.len() == self.responses as usize {
            self.admit(id.prompt, out);
        }
    }

    /// Admits a finished prompt, drops its surplus, and that of its lane if the lane has no place left.
    fn admit(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        let group =
            self.groups.get_mut(&prompt).expect("invariant: only prompts of the round finish");
        group.fate = Some(Fate::Admitted);
        let samples = group.ended.iter().copied().collect();
        out.push_back(Decision::Admit {
            prompt,
            samples,
            weights: Vec::new(),
            reason: Reason::Finished,
        });
        group.abort(self.step, prompt, Reason::GroupFull, out);
        let lane = Arc::clone(&group.lane);
        let places = self
            .places
            .get_mut(&lane)
            .expect("invariant: a lane without places has no undecided group");
        *places -= 1;
        if *places == 0 {
            self.places.remove(&lane);
            self.defer_rest(&lane, out);
        }
    }

    /// Drops what still runs of a lane; the deferrals are told when the round closes, so that they come in launch order.
    fn defer_rest(&mut self, lane: &str, out: &mut VecDeque<Decision>) {
        let rest = self
            .groups
            .iter_mut()
            .filter(|(_, group)| group.fate.is_none() && *group.lane == *lane);
        for (&prompt, group) in rest {
            group.fate = Some(Fate::Deferred);
            group.abort(self.step, prompt, Reason::RoundFull, out);
        }
    }
}

impl Group {
    fn new(lane: Arc<str>, samples: u32) -> Self {
        Self {
            lane,
            launched: samples,
            live: (0..samples).collect(),
            ended: BTreeSet::new(),
            fate: None,
        }
    }

    /// Drops all live responses.
    fn abort(
        &mut self,
        step: Step,
        prompt: PromptId,
        reason: Reason,
        out: &mut VecDeque<Decision>,
    ) {
        let live = std::mem::take(&mut self.live);
        out.extend(
            live.into_iter()
                .map(|sample| Decision::Abort { id: SampleId { step, prompt, sample }, reason }),
        );
    }

    /// Launches one more response if those left cannot fill the group: somebody else aborted one.
    fn replace_lost(&mut self, prompt: PromptId, responses: u32, out: &mut VecDeque<Decision>) {
        if self.ended.len() + self.live.len() < responses as usize {
            let sample = self.launched;
            self.launched += 1;
            self.live.insert(sample);
            out.push_back(Decision::Launch {
                prompt,
                samples: sample..sample + 1,
                reason: Reason::Lost,
            });
        }
    }
}
