//! The facts of a step, read from its batches and summed.

use std::collections::BTreeMap;

use arrow_array::types::{Float32Type, Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_stages::rollout::FinishReason;
use rustc_hash::{FxHashMap, FxHashSet};
use serde::{Deserialize, Serialize};

use super::bias::{WeightSums, units};
use super::pairs::{Member, ObservedGroup, Pair, Products};
use crate::wire::decision::{ADMIT, DEFER, PAUSE_DECISION, REJECT};
use crate::wire::finish_reason::finish_reason;
use crate::wire::finish_reason::is_returned_whole;

facts! {
    /// A fact about the length of a response, with a number of tokens. The ledger keeps the number of occurrences of each fact.
    Length {
        /// The response is observed only beyond this number of tokens (left truncation).
        Entered = "entered",
        /// The response ended by itself at this number of tokens.
        Ended = "ended",
        /// The response was aborted at this number of tokens, and its prompt was not admitted, for example because the round was full.
        Cut = "cut",
        /// The response was aborted at this number of tokens, and its prompt was admitted: the group was full.
        Surplus = "surplus",
        /// The response had this number of tokens and was trained on.
        Trained = "trained",
    }
}

/// Counts and sums over the responses to the prompts of a dataset row, or over all rows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Launches {
    /// The number of launched responses that have ended or were aborted.
    pub(super) launched: i64,
    /// The number of responses that ended by themselves, the sum of their tokens, and the sum of their squared numbers of tokens.
    pub(super) whole: [i64; 3],
    /// The number of responses trained on, and the sum of their scores in units of 2^-20.
    pub(super) scored: [i64; 2],
}

impl Launches {
    pub(super) fn add(&mut self, other: &Self) {
        let Self { launched, whole, scored } = self;
        let sums = std::iter::once(launched).chain(whole).chain(scored);
        sums.zip(other.sums()).for_each(|(sum, more)| *sum += more);
    }

    /// Returns the sums in the order of the fields.
    pub(super) fn sums(&self) -> [i64; 6] {
        let Self { launched, whole: [n, s, q], scored: [t, r] } = *self;
        [launched, n, s, q, t, r]
    }
}

/// The facts that a step adds to the ledger.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Facts {
    /// The number of occurrences of each fact about a length, and for trained responses the sums of their weights.
    pub(super) lengths: BTreeMap<Length, WeightSums>,
    /// For each fact about pairs, the sums over the pairs with this fact.
    pub(super) pairs: BTreeMap<Pair, Products>,
    /// The sums over the responses to each dataset row.
    pub(super) rows: FxHashMap<u64, Launches>,
    /// For each newly deferred prompt, the current step and 1. For each settled prompt, the step at which it was first deferred, and -1.
    pub(super) waiting: Vec<(Step, i64)>,
}

/// The data of an incomplete step, reduced to what the ledger needs.
#[derive(Debug, Default)]
pub(super) struct StepFacts {
    responses: Vec<ObservedResponse>,
    /// The responses that were trained on, by prompt.
    trained: FxHashMap<PromptId, Vec<Member>>,
    deferred: Vec<PromptId>,
    admitted: FxHashSet<PromptId>,
    rejected: Vec<PromptId>,
    /// The paused prompts. Their responses are kept, so their responses in a later round are continuations, not new draws.
    paused: FxHashSet<PromptId>,
    facts: Facts,
}

#[derive(Clone, Copy, Debug)]
struct ObservedResponse {
    prompt: PromptId,
    row: u64,
    tokens: u32,
    whole: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DeferredPrompt {
    /// The step at which the prompt was first deferred.
    pub(super) since: Step,
    /// The number of tokens of the longest response to the prompt that was observed.
    pub(super) longest: u32,
}

/// The deferred prompts. The ledger keeps state per prompt only for deferred prompts, and only until they are settled, so that the state
/// stays bounded.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct DeferredPrompts(pub(super) BTreeMap<PromptId, DeferredPrompt>);

impl StepFacts {
    pub(super) fn responses(&mut self, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let rows = batch.values::<UInt64Type>(column::ROW);
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
        let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH);
        let reasons = batch.text(column::FINISH_REASON);
        for at in 0..batch.num_rows() {
            let (reason, tokens) = (finish_reason(reasons.value(at)), tokens.value(at));
            // A paused response is observed when it ends. A response that ended before it was kept has been observed already.
            let is_observed = reason != FinishReason::Pause
                && !is_returned_whole(reason, tokens, resumed.value(at));
            if is_observed {
                self.responses.push(ObservedResponse {
                    prompt: PromptId(prompts.value(at)),
                    row: rows.value(at),
                    tokens,
                    whole: reason.is_whole(),
                });
            }
        }
    }

    pub(super) fn groups(&mut self, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let rows = batch.values::<UInt64Type>(column::ROW);
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
        let weights = batch.values::<Float32Type>(column::WEIGHT);
        let scores = batch.values::<Float64Type>(column::SCORE);
        for at in 0..batch.num_rows() {
            let trained = Length::Trained(tokens.value(at));
            self.facts.count(trained, WeightSums::one(weights.value(at)));
            let history = self.facts.rows.entry(rows.value(at)).or_default();
            history.scored[0] += 1;
            history.scored[1] += units(scores.value(at));
            let score_and_weight = Some((scores.value(at), weights.value(at)));
            let member =
                Member { tokens: tokens.value(at), whole: true, trained: score_and_weight };
            self.trained.entry(PromptId(prompts.value(at))).or_default().push(member);
        }
    }

    pub(super) fn decisions(&mut self, batch: &Batch) {
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        for (at, decision) in batch.text(column::DECISION).iter().enumerate() {
            let prompt = PromptId(prompts.value(at));
            match decision {
                Some(DEFER) => self.deferred.push(prompt),
                Some(ADMIT) => {
                    self.admitted.insert(prompt);
                }
                Some(REJECT) => self.rejected.push(prompt),
                Some(PAUSE_DECISION) => drop(self.paused.insert(prompt)),
                _ => {}
            }
        }
    }

    /// Returns the facts of `step`, which must be complete, and updates the deferred prompts. Steps must be closed in order.
    ///
    /// The order inside the function matters. Pairs and responses are counted first: new draws of a prompt enter at the largest length at
    /// which earlier steps observed it. Only then do the decisions of this step change the deferred prompts.
    pub(super) fn close(mut self, step: Step, waits: &mut DeferredPrompts) -> Facts {
        self.count_pairs(waits);
        let mut longest: FxHashMap<PromptId, u32> = FxHashMap::default();
        for response in std::mem::take(&mut self.responses) {
            let entry = waits.0.get(&response.prompt).map(|waiting| waiting.longest);
            self.facts.observe(response, entry, self.admitted.contains(&response.prompt));
            if !self.paused.contains(&response.prompt) {
                let seen = longest.entry(response.prompt).or_default();
                *seen = response.tokens.max(*seen);
            }
        }
        for prompt in self.admitted.into_iter().chain(self.rejected) {
            waits.settle(prompt, &mut self.facts);
        }
        for prompt in self.deferred {
            waits.defer(prompt, step, longest.get(&prompt).copied().unwrap_or(0), &mut self.facts);
        }
        self.facts
    }

    /// Counts the pairs of each prompt.
    ///
    /// A group that was trained on counts as whole, even if some of its responses ended in earlier steps. A prompt with kept responses is
    /// counted when it is trained on. Rejected prompts are never counted.
    fn count_pairs(&mut self, waits: &DeferredPrompts) {
        let mut groups = std::mem::take(&mut self.trained);
        let is_trained: FxHashSet<PromptId> = groups.keys().copied().collect();
        for response in &self.responses {
            let ObservedResponse { prompt, tokens, whole, .. } = *response;
            let is_left_out = self.paused.contains(&prompt) || self.rejected.contains(&prompt);
            if !(is_left_out || whole && is_trained.contains(&prompt)) {
                let member = Member { tokens, whole, trained: None };
                groups.entry(prompt).or_default().push(member);
            }
        }
        for (prompt, members) in groups {
            let entry = waits.0.get(&prompt).map(|waiting| waiting.longest);
            let is_admitted = self.admitted.contains(&prompt);
            ObservedGroup { members, entry, is_admitted }.count(&mut self.facts.pairs);
        }
    }
}

impl Facts {
    /// Returns only the facts about deferred prompts. In a warm-up step, only these facts are counted.
    pub(super) fn of_waits(self) -> Self {
        Self { waiting: self.waiting, ..Self::default() }
    }

    fn count(&mut self, length: Length, weighed: WeightSums) {
        self.lengths.entry(length).or_default().add(weighed);
    }

    /// Counts a response in the history of its row and in the lengths. If its prompt was observed at `entry` tokens before, the response is
    /// a new draw, and the lengths count it only beyond `entry`.
    fn observe(&mut self, response: ObservedResponse, entry: Option<u32>, is_admitted: bool) {
        let ObservedResponse { row, tokens, whole, .. } = response;
        let history = self.rows.entry(row).or_default();
        history.launched += 1;
        if whole {
            let length = i64::from(tokens);
            history
                .whole
                .iter_mut()
                .zip([1, length, length * length])
                .for_each(|(sum, more)| *sum += more);
        }
        let once = WeightSums { count: 1, ..WeightSums::default() };
        if let Some(entry) = entry {
            if tokens <= entry {
                return;
            }
            self.count(Length::Entered(entry), once);
        }
        let end = match (whole, is_admitted) {
            (true, _) => Length::Ended(tokens),
            (false, true) => Length::Surplus(tokens),
            (false, false) => Length::Cut(tokens),
        };
        self.count(end, once);
    }
}

impl DeferredPrompts {
    fn settle(&mut self, prompt: PromptId, facts: &mut Facts) {
        if let Some(waiting) = self.0.remove(&prompt) {
            facts.waiting.push((waiting.since, -1));
        }
    }

    /// Marks a prompt as deferred. A prompt that was deferred before keeps its first step and the longer of its two maximum lengths.
    fn defer(&mut self, prompt: PromptId, step: Step, longest: u32, facts: &mut Facts) {
        let waiting = self.0.entry(prompt).or_insert_with(|| {
            facts.waiting.push((step, 1));
            DeferredPrompt { since: step, longest }
        });
        waiting.longest = waiting.longest.max(longest);
    }
}
