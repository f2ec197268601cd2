//! The responses to one prompt in one round.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Range;
use std::sync::Arc;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

use super::plan::{Kept, Leftover, Order, Planned};
use super::{Decision, Reason};

/// The responses to one prompt in one round.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Group {
    pub(super) lane: Arc<str>,
    pub(super) fate: Option<Fate>,
    /// Samples neither ended nor stopped.
    pub(super) live: BTreeSet<u32>,
    priority: u8,
    reason: Reason,
    /// The step that launched the prompt first.
    since: Option<Step>,
    is_launched: bool,
    /// Samples used so far; the next one has this number.
    samples: u32,
    /// Samples to be launched.
    waiting: BTreeSet<u32>,
    /// Samples that were told to stop, and have not answered.
    pausing: BTreeSet<u32>,
    /// Tokens of the samples that ended.
    ended: BTreeMap<u32, u32>,
    /// Rewards of samples that ended, as bits: a float written to a snapshot need not be read back the same.
    scores: BTreeMap<u32, u64>,
    /// Samples of which tokens are kept from an earlier launch, or will be for a later one.
    kept: BTreeSet<u32>,
}

/// What became of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Fate {
    Admitted,
    Deferred,
    Rejected,
}

impl Group {
    /// A group of `samples` responses, the kept ones among them.
    pub(super) fn new(planned: Planned, samples: u32) -> Self {
        let Kept { samples: kept, used } = planned.kept;
        let missing = samples.saturating_sub(u32::try_from(kept.len()).unwrap_or(u32::MAX));
        // With nothing kept the numbers start again: no response of this round can be mistaken for another.
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
            fate: None,
        }
    }

    /// When its next request is launched: requests of lower ranks go first. None: all of its requests are.
    pub(super) fn rank(&self, order: Order) -> Option<(u8, u32)> {
        let next = *self.waiting.first()?;
        let rank = match order {
            Order::Prompts => 0,
            Order::Groups => self.waiting.len() + self.live.len(),
            Order::Samples => next as usize,
        };
        Some((self.priority, u32::try_from(rank).unwrap_or(u32::MAX)))
    }

    /// Launches its next requests, at most `most` and consecutive ones.
    pub(super) fn launch(
        &mut self,
        step: Step,
        prompt: PromptId,
        most: usize,
        out: &mut VecDeque<Decision>,
    ) -> usize {
        let Some(&first) = self.waiting.first() else { return 0 };
        let run = (first..).zip(&self.waiting).take(most).take_while(|(a, b)| a == *b).count();
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

    /// Launches one more response if those left cannot fill the group: somebody else aborted one. Whether it did.
    pub(super) fn replace_lost(
        &mut self,
        step: Step,
        prompt: PromptId,
        responses: u32,
        out: &mut VecDeque<Decision>,
    ) -> bool {
        let left = self.ended.len() + self.live.len() + self.waiting.len();
        if left >= responses as usize {
            return false;
        }
        let samples = self.samples..self.samples + 1;
        self.samples = samples.end;
        self.run(step, samples.clone());
        out.push_back(Decision::Launch { prompt, samples, reason: Reason::Lost });
        true
    }

    /// Takes in that a response ended, whole.
    pub(super) fn end(&mut self, sample: u32, tokens: u32) {
        self.ended.insert(sample, tokens);
    }

    /// Takes in the reward of a response; that of one that is not in the group is ignored.
    pub(super) fn score(&mut self, sample: u32, score: f64) {
        if self.ended.contains_key(&sample) {
            // The sum makes one zero of two.
            self.scores.insert(sample, (score + 0.0).to_bits());
        }
    }

    /// Whether `responses` have ended.
    pub(super) fn is_complete(&self, responses: u32) -> bool {
        self.ended.len() >= responses as usize
    }

    /// Whether each response that ended is scored.
    pub(super) fn is_scored(&self) -> bool {
        self.scores.len() == self.ended.len()
    }

    /// Whether all rewards are the same.
    pub(super) fn has_zero_variance(&self) -> bool {
        let mut scores = self.scores.values();
        let first = scores.next();
        scores.all(|score| Some(score) == first)
    }

    /// The responses that form the group, ascending.
    pub(super) fn members(&self) -> Vec<u32> {
        self.ended.keys().copied().collect()
    }

    /// Tokens of the responses that ended.
    pub(super) fn tokens(&self) -> u64 {
        self.ended.values().map(|tokens| u64::from(*tokens)).sum()
    }

    /// Drops what runs and what waits; how many ran.
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

    /// Stops what runs, keeping its tokens, and keeps what has ended; how many ran.
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

    /// Takes in the answer to a pause, if it is one.
    pub(super) fn on_paused(&mut self, sample: u32, is_kept: bool) -> bool {
        let answers = self.pausing.remove(&sample);
        if answers && is_kept {
            self.kept.insert(sample);
        }
        answers
    }

    /// Whether something of it was launched in this round.
    pub(super) fn is_launched(&self) -> bool {
        self.is_launched
    }

    /// What later rounds need to know of it.
    pub(super) fn into_leftover(self, prompt: PromptId) -> Leftover {
        let kept = Kept { samples: self.kept, used: self.samples };
        Leftover { prompt, since: self.since, kept }
    }
}
