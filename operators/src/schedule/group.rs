//! The responses to one prompt in one round.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

use super::plan::{KeptSamples, LeftoverPrompt, Order, PlannedPrompt};
use super::{Decision, Reason};

/// The responses to one prompt in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) lane: Arc<str>,
    /// The outcome; `None` while the group is neither admitted, deferred nor rejected.
    #[serde(rename = "fate")]
    pub(super) outcome: Option<GroupOutcome>,
    /// Samples that were launched and have neither ended nor been stopped.
    pub(super) live: BTreeSet<u32>,
    priority: u8,
    reason: Reason,
    /// The step that first launched the prompt; `None` if no step did.
    since: Option<Step>,
    is_launched: bool,
    /// The number of sample indices assigned so far, which is also the index of the next new sample.
    samples: u32,
    /// Samples that are still to be launched.
    waiting: BTreeSet<u32>,
    /// Samples that the schedule paused and whose ends are not reported yet.
    pausing: BTreeSet<u32>,
    /// The number of tokens of each sample that ended whole.
    ended: BTreeMap<u32, u32>,
    /// The rewards of samples that ended whole, as the bits of an `f64`: a decimal number in a snapshot may not be read back exactly.
    scores: BTreeMap<u32, u64>,
    /// Samples whose tokens are kept from an earlier launch, or will be kept for a later one.
    kept: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum GroupOutcome {
    Admitted,
    Deferred,
    Rejected,
}

impl Group {
    /// Creates a group of `samples` responses, including the kept ones. If more are kept, the group has only the kept ones.
    pub(super) fn new(planned: PlannedPrompt, samples: u32) -> Self {
        let KeptSamples { samples: kept, used } = planned.kept;
        let missing = samples.saturating_sub(u32::try_from(kept.len()).unwrap_or(u32::MAX));
        // With nothing kept, numbering starts at 0 again; ids stay unique because they contain the step.
        let first = if kept.is_empty() { 0 } else { used };
        Self {
            lane: planned.lane,
            priority: planned.priority,
            reason: planned.reason,
            since: planned.since,
            is_launched: false,
            samples: first + missing,
            waiting: kept.iter().copied().chain(first..first + missing).collect(),
            live: BTreeSet::new(),
            pausing: BTreeSet::new(),
            ended: BTreeMap::new(),
            scores: BTreeMap::new(),
            kept,
            outcome: None,
        }
    }

    /// Returns the rank of the group's next request; requests with lower ranks are launched first. `None` if no request waits: all are
    /// launched, or the group was stopped.
    pub(super) fn rank(&self, order: Order) -> Option<(u8, u32)> {
        let next = *self.waiting.first()?;
        let rank = match order {
            Order::Prompts => 0,
            Order::Groups => {
                u32::try_from(self.waiting.len() + self.live.len()).unwrap_or(u32::MAX)
            }
            Order::Samples => next,
            Order::LongestFirst => self.rank_by_length(),
        };
        Some((self.priority, rank))
    }

    /// Returns the rank for [`Order::LongestFirst`]: 0 if the group was not launched, 1 if no response has ended, and otherwise a rank that
    /// decreases with the length of the longest response that has ended.
    fn rank_by_length(&self) -> u32 {
        match self.ended.values().max() {
            _ if !self.is_launched => 0,
            None => 1,
            Some(longest) => u32::MAX - longest,
        }
    }

    /// Launches the next requests of the group: at most `max`, with consecutive samples. Returns the number of launched requests; 0 if no
    /// request waits.
    pub(super) fn launch(
        &mut self,
        step: Step,
        prompt: PromptId,
        max: usize,
        out: &mut VecDeque<Decision>,
    ) -> usize {
        let Some(&first) = self.waiting.first() else { return 0 };
        let run = (first..).zip(&self.waiting).take(max).take_while(|(a, b)| a == *b).count();
        let samples = first..first + u32::try_from(run).unwrap_or(u32::MAX);
        self.run(step, samples.clone());
        out.push_back(Decision::Launch { prompt, samples, reason: self.reason });
        run
    }

    fn run(&mut self, step: Step, samples: Range<u32>) {
        self.is_launched = true;
        self.since.get_or_insert(step);
        for sample in samples {
            self.waiting.remove(&sample);
            self.kept.remove(&sample);
            self.live.insert(sample);
        }
    }

    /// Records that a running response ended whole.
    pub(super) fn end(&mut self, sample: u32, tokens: u32) {
        self.live.remove(&sample);
        self.ended.insert(sample, tokens);
    }

    /// Records that a running response was lost. Launches one more response if the remaining ones cannot fill the group, and returns `true`
    /// if it did.
    pub(super) fn lose(
        &mut self,
        lost: SampleId,
        responses: u32,
        out: &mut VecDeque<Decision>,
    ) -> bool {
        self.live.remove(&lost.sample);
        let left = self.ended.len() + self.live.len() + self.waiting.len();
        if left >= responses as usize {
            return false;
        }
        let samples = self.samples..self.samples + 1;
        self.samples = samples.end;
        self.run(lost.step, samples.clone());
        out.push_back(Decision::Launch { prompt: lost.prompt, samples, reason: Reason::Lost });
        true
    }

    /// Records the reward of a response. Rewards of responses that have not ended whole are ignored.
    pub(super) fn score(&mut self, sample: u32, score: f64) {
        if self.ended.contains_key(&sample) {
            // Adding zero turns -0.0 into 0.0, so that equal scores have equal bits.
            self.scores.insert(sample, (score + 0.0).to_bits());
        }
    }

    /// Returns `true` if at least `responses` responses have ended.
    pub(super) fn is_complete(&self, responses: u32) -> bool {
        self.ended.len() >= responses as usize
    }

    /// Returns `true` if each response that ended is scored.
    pub(super) fn is_scored(&self) -> bool {
        self.scores.len() == self.ended.len()
    }

    /// Returns `true` if a response that ended could not be scored.
    pub(super) fn lacks_score(&self) -> bool {
        self.scores.values().any(|score| f64::from_bits(*score).is_nan())
    }

    /// Returns `true` if all recorded rewards are equal, or none is recorded.
    pub(super) fn has_zero_variance(&self) -> bool {
        let mut scores = self.scores.values();
        let first = scores.next();
        scores.all(|score| Some(score) == first)
    }

    /// Returns the samples that form the group, in ascending order. These are all samples that ended whole.
    pub(super) fn members(&self) -> Vec<u32> {
        self.ended.keys().copied().collect()
    }

    /// Returns the total number of tokens of the responses that ended whole.
    pub(super) fn tokens(&self) -> u64 {
        self.ended.values().map(|tokens| u64::from(*tokens)).sum()
    }

    /// Aborts running responses and drops waiting requests. Returns the number of aborted responses.
    pub(super) fn abort(
        &mut self,
        step: Step,
        prompt: PromptId,
        reason: Reason,
        out: &mut VecDeque<Decision>,
    ) -> usize {
        self.waiting.clear();
        let live = std::mem::take(&mut self.live);
        let stopped = live.len();
        let id = |sample| SampleId { step, prompt, sample };
        out.extend(live.into_iter().map(|sample| Decision::Abort { id: id(sample), reason }));
        stopped
    }

    /// Pauses running responses, keeping their tokens, keeps the responses that have ended, and drops waiting requests. Returns the number
    /// of responses that were running.
    pub(super) fn pause(
        &mut self,
        step: Step,
        prompt: PromptId,
        reason: Reason,
        out: &mut VecDeque<Decision>,
    ) -> usize {
        self.waiting.clear();
        self.pausing = std::mem::take(&mut self.live);
        self.kept.extend(self.ended.keys());
        let all: BTreeSet<u32> = self.pausing.iter().chain(self.ended.keys()).copied().collect();
        let id = |sample| SampleId { step, prompt, sample };
        out.extend(all.into_iter().map(|sample| Decision::Pause { id: id(sample), reason }));
        self.pausing.len()
    }

    /// Records that a paused response has ended; its tokens are kept if `is_kept`. Returns `false`, and records nothing, if the response
    /// was not being paused.
    pub(super) fn on_paused(&mut self, sample: u32, is_kept: bool) -> bool {
        let answers = self.pausing.remove(&sample);
        if answers && is_kept {
            self.kept.insert(sample);
        }
        answers
    }

    /// Returns `true` if some response was launched in this round.
    pub(super) fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// Returns the state that later rounds need.
    pub(super) fn into_leftover(self, prompt: PromptId) -> LeftoverPrompt {
        let kept = KeptSamples { samples: self.kept, used: self.samples };
        LeftoverPrompt { prompt, since: self.since, kept }
    }
}
