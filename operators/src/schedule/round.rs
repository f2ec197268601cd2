//! One round, from its launches to its last admission.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::group::{Group, GroupOutcome};
use super::plan::{LeftoverPrompt, Plan, PlannedPrompt, RoundRules};
use super::{Decision, Reason, RoundKind};

/// A round that was launched and is not closed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OpenRound {
    step: Step,
    kind: RoundKind,
    epoch: u32,
    samples: u32,
    responses: u32,
    rules: RoundRules,
    lanes: BTreeMap<Arc<str>, LaneCounts>,
    groups: BTreeMap<PromptId, Group>,
    /// Groups with waiting requests, by rank.
    waiting: BTreeSet<((u8, u32), PromptId)>,
    /// The complete groups so far, by number of tokens; empty unless the rules have a [harvest](RoundRules::harvest).
    harvested: BTreeSet<(u64, PromptId)>,
    running: usize,
    /// The number of paused responses whose ends are not reported yet.
    pausing: usize,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct LaneCounts {
    /// The number of groups that can still be admitted.
    places: usize,
    /// The number of prompts of the lane in this round so far, including rejected prompts.
    prompts: usize,
    /// The number of prompts neither admitted nor rejected.
    undecided: usize,
    /// The number of rejected prompts whose replacement was neither launched nor skipped.
    vacancies: usize,
}

/// A prompt that was rejected and may be replaced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Vacancy {
    /// The epoch of the round.
    pub epoch: u32,
    /// The lane of the rejected prompt, and of its replacement.
    pub lane: Arc<str>,
    /// The number of prompts of the lane in this round so far, including rejected prompts.
    pub prompts: usize,
    /// `true` if the lane admits fewer groups than planned unless the prompt is replaced.
    pub is_needed: bool,
}

impl OpenRound {
    /// Returns `true` if the plan of the round had no prompt.
    pub(super) fn is_empty(&self) -> bool {
        self.groups.is_empty()
    }

    /// Opens a round and launches `plan`. Requests of one priority are launched in the order that the rules of the plan set; ties go to the
    /// prompt that was read first.
    pub(super) fn open(step: Step, plan: Plan, out: &mut VecDeque<Decision>) -> Self {
        out.push_back(Decision::Open { step, round: plan.round, reason: plan.reason });
        let lane = |places| LaneCounts { places, ..LaneCounts::default() };
        let mut round = Self {
            step,
            kind: plan.round,
            epoch: plan.epoch,
            samples: plan.samples,
            responses: plan.responses,
            rules: plan.rules,
            lanes: plan.places.into_iter().map(|(name, places)| (name, lane(places))).collect(),
            groups: BTreeMap::new(),
            waiting: BTreeSet::new(),
            harvested: BTreeSet::new(),
            running: 0,
            pausing: 0,
        };
        plan.prompts.into_iter().for_each(|planned| round.add(planned));
        round.launch(out);
        round
    }

    fn add(&mut self, planned: PlannedPrompt) {
        let prompt = planned.prompt;
        let lane = self.lanes.entry(Arc::clone(&planned.lane)).or_default();
        lane.prompts += 1;
        lane.undecided += 1;
        let group = Group::new(planned, self.samples);
        self.waiting.extend(group.rank(self.rules.order).map(|rank| (rank, prompt)));
        self.groups.insert(prompt, group);
    }

    /// Launches waiting requests while slots are free.
    fn launch(&mut self, out: &mut VecDeque<Decision>) {
        let (step, order) = (self.step, self.rules.order);
        while self.running < self.rules.slots
            && let Some((_, prompt)) = self.waiting.pop_first()
        {
            let free = self.rules.slots - self.running;
            let max = if order.takes_one() { 1 } else { free };
            let group = self.group(prompt);
            let launched = group.launch(step, prompt, max, out);
            let rank = group.rank(order);
            self.running += launched;
            self.waiting.extend(rank.map(|rank| (rank, prompt)));
        }
    }

    /// Changes a group and moves it to its new rank in the waiting set. The rank depends on the waiting and running responses of the group.
    /// Code that changes them without this function, as `launch` and `stop` do, must update the set itself; a stale entry would stay.
    fn change<R>(&mut self, prompt: PromptId, change: impl FnOnce(&mut Group) -> R) -> R {
        let order = self.rules.order;
        let group = self.groups.get_mut(&prompt).expect("invariant: the prompt is of this round");
        let before = group.rank(order);
        let result = change(group);
        let after = group.rank(order);
        if before != after {
            if let Some(rank) = before {
                self.waiting.remove(&(rank, prompt));
            }
            self.waiting.extend(after.map(|rank| (rank, prompt)));
        }
        result
    }

    fn group(&mut self, prompt: PromptId) -> &mut Group {
        self.groups.get_mut(&prompt).expect("invariant: the prompt is of this round")
    }

    fn lane(&mut self, name: &str) -> &mut LaneCounts {
        self.lanes.get_mut(name).expect("invariant: the lane has a prompt in this round")
    }

    /// Returns the step of the round.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Returns the kind of the round.
    #[must_use]
    pub fn kind(&self) -> RoundKind {
        self.kind
    }

    /// Returns the epoch of the round's prompts.
    #[must_use]
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Returns the prompts of the round, ascending.
    pub fn prompts(&self) -> impl Iterator<Item = PromptId> {
        self.groups.keys().copied()
    }

    /// Returns `true` if no lane admits a further group and the ends of all paused responses are reported.
    pub(super) fn is_decided(&self) -> bool {
        self.is_full() && self.pausing == 0
    }

    fn is_full(&self) -> bool {
        self.lanes.values().all(|lane| lane.places == 0)
    }

    /// Returns the prompts that were neither admitted nor rejected, ascending, each with its lane. The boolean is `true` if the round
    /// launched the prompt: the schedule must then decide [`Defer`](Decision::Defer) for the prompt.
    pub fn into_undecided(self) -> impl Iterator<Item = (Arc<str>, LeftoverPrompt, bool)> {
        let is_left = |group: &Group| matches!(group.outcome, None | Some(GroupOutcome::Deferred));
        let left = self.groups.into_iter().filter(move |(_, group)| is_left(group));
        left.map(|(prompt, group)| {
            let is_deferred = group.is_launched();
            (Arc::clone(&group.lane), group.into_leftover(prompt), is_deferred)
        })
    }

    /// Records that a response ended. Responses that were aborted, already recorded, or launched by another round are ignored.
    ///
    /// The order of the steps matters. The end of a paused response is handled first, since it is no longer live. A lost response is
    /// replaced before waiting requests are launched, so that the replacement takes the slot that was freed. A group is completed only by a
    /// whole response.
    pub(super) fn on_response(
        &mut self,
        id: SampleId,
        tokens: u32,
        reason: FinishReason,
        out: &mut VecDeque<Decision>,
    ) {
        let (step, responses) = (self.step, self.responses);
        let group = self.groups.get_mut(&id.prompt).filter(|_| id.step == step);
        let Some(group) = group else { return };
        if group.on_paused(id.sample, reason != FinishReason::Abort) {
            self.pausing -= 1;
            return;
        }
        if !group.live.contains(&id.sample) {
            return;
        }
        self.running -= 1;
        let is_complete = if reason.is_whole() {
            self.change(id.prompt, |group| {
                group.end(id.sample, tokens);
                group.is_complete(responses)
            })
        } else {
            let lose = |group: &mut Group| group.lose(id, responses, out);
            self.running += usize::from(self.change(id.prompt, lose));
            false
        };
        if is_complete {
            self.complete(id.prompt, out);
        }
        self.launch(out);
    }

    /// Records a reward. Rewards of responses that the round does not wait for are ignored.
    pub(super) fn on_score(&mut self, id: SampleId, score: f64, out: &mut VecDeque<Decision>) {
        let (step, responses) = (self.step, self.responses);
        let group = self.groups.get_mut(&id.prompt).filter(|group| group.outcome.is_none());
        let Some(group) = group.filter(|_| id.step == step) else { return };
        let was_scored = group.is_scored();
        group.score(id.sample, score);
        if !was_scored && group.is_scored() && group.is_complete(responses) {
            self.judge(id.prompt, out);
            self.launch(out);
        }
    }

    /// Handles a group that has all its responses. With a filter, the group is kept or rejected only once all of them are scored.
    fn complete(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        if !self.rules.filters {
            self.keep(prompt, out);
        } else if self.group(prompt).is_scored() {
            self.judge(prompt, out);
        }
        // A complete group needs no surplus responses, even if it is not admitted yet.
        self.drop_surplus(prompt, out);
    }

    /// Rejects a scored group without reward variance, or with a response that could not be scored, and keeps any other group.
    fn judge(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        if self.group(prompt).lacks_score() {
            self.reject(prompt, Reason::Unscored, out);
        } else if self.group(prompt).has_zero_variance() {
            self.reject(prompt, Reason::ZeroVariance, out);
        } else {
            self.keep(prompt, out);
        }
    }

    fn drop_surplus(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        let step = self.step;
        let abort = |group: &mut Group| group.abort(step, prompt, Reason::GroupFull, out);
        self.running -= self.change(prompt, abort);
    }

    fn reject(&mut self, prompt: PromptId, reason: Reason, out: &mut VecDeque<Decision>) {
        let group = self.group(prompt);
        group.outcome = Some(GroupOutcome::Rejected);
        let lane = Arc::clone(&group.lane);
        out.push_back(Decision::Reject { prompt, reason });
        let lane = self.lane(&lane);
        lane.undecided -= 1;
        lane.vacancies += 1;
    }

    /// Admits a complete group, or holds it until enough groups are complete. A group of a lane without places waits for a later round.
    fn keep(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        let group = self.group(prompt);
        let (lane, tokens) = (Arc::clone(&group.lane), group.tokens());
        if self.lane(&lane).places == 0 {
            return;
        }
        let Some(harvest) = self.rules.harvest else { return self.admit(prompt, out) };
        self.harvested.insert((tokens, prompt));
        if self.harvested.len() == harvest {
            let places = self.lane(&lane).places;
            let shortest: Vec<_> = self.harvested.iter().take(places).copied().collect();
            shortest.into_iter().for_each(|(_, prompt)| self.admit(prompt, out));
        }
    }

    /// Admits a group, aborts its surplus responses, and stops the rest of its lane if the lane has no place left.
    fn admit(&mut self, prompt: PromptId, out: &mut VecDeque<Decision>) {
        let group = self.group(prompt);
        group.outcome = Some(GroupOutcome::Admitted);
        let (lane, samples) = (Arc::clone(&group.lane), group.members());
        let (weights, reason) = (Vec::new(), Reason::Finished);
        out.push_back(Decision::Admit { prompt, samples, weights, reason });
        self.drop_surplus(prompt, out);
        let counts = self.lane(&lane);
        counts.undecided -= 1;
        counts.places -= 1;
        if counts.places == 0 {
            self.stop(&lane, out);
        }
    }

    /// Stops the undecided groups of a lane that admits no further group, or of the whole round if no lane does. Marks the groups as
    /// deferred; the deferrals are reported when the round closes, so that they are in the order of prompt ids.
    fn stop(&mut self, lane: &str, out: &mut VecDeque<Decision>) {
        let all = self.is_full();
        self.lane(lane).vacancies = 0;
        let (step, pauses) = (self.step, self.rules.pauses);
        for (&prompt, group) in &mut self.groups {
            if group.outcome.is_some() || !(all || *group.lane == *lane) {
                continue;
            }
            if let Some(rank) = group.rank(self.rules.order) {
                self.waiting.remove(&(rank, prompt));
            }
            group.outcome = Some(GroupOutcome::Deferred);
            let stopped = if pauses {
                let paused = group.pause(step, prompt, Reason::RoundFull, out);
                self.pausing += paused;
                paused
            } else {
                group.abort(step, prompt, Reason::RoundFull, out)
            };
            self.running -= stopped;
        }
    }

    /// Returns the first vacancy, in the order of lane names, that was neither filled nor [skipped](Self::skip_replacement); `None` if
    /// there is none.
    pub(super) fn vacancy(&self) -> Option<Vacancy> {
        let (name, lane) = self.lanes.iter().find(|(_, lane)| lane.vacancies > 0)?;
        Some(Vacancy {
            epoch: self.epoch,
            lane: Arc::clone(name),
            prompts: lane.prompts,
            is_needed: lane.undecided < lane.places,
        })
    }

    /// Launches a prompt in place of a rejected prompt of its lane.
    pub(super) fn replace(&mut self, planned: PlannedPrompt, out: &mut VecDeque<Decision>) {
        self.lane(&planned.lane).vacancies -= 1;
        self.add(planned);
        self.launch(out);
    }

    /// Continues without replacing a rejected prompt of a lane. The lane admits fewer groups if fewer candidates than places are left.
    pub(super) fn skip_replacement(&mut self, lane: &str, out: &mut VecDeque<Decision>) {
        let counts = self.lane(lane);
        counts.vacancies -= 1;
        counts.places = counts.places.min(counts.undecided);
        if counts.places == 0 {
            self.stop(lane, out);
        }
    }
}
