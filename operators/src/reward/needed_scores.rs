//! Tracks which scores are still needed, given the decisions of the schedule.

use std::ops::RangeInclusive;

use arrow_array::types::{UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::PromptId;
use rustc_hash::FxHashMap;

use crate::wire::decision::{ADMIT, CLOSE, DEFER, REJECT};

/// The responses of one step whose scores are needed. By default, these are the admitted responses and, until the round closes, the
/// responses of undecided prompts.
///
/// The score of a paused response is needed until its prompt is decided or the round closes. A later round that completes the group
/// returns the response again and scores it then.
#[derive(Debug, Default)]
pub(super) struct NeededScores {
    /// The indices of the admitted samples of each decided prompt. Empty if the prompt is deferred or rejected.
    decided: FxHashMap<PromptId, Vec<u32>>,
    /// `true` once the round has closed.
    closed: bool,
    scope: ScoringScope,
}

/// The responses whose scores are needed in addition to the scores of admitted responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum ScoringScope {
    /// The responses of prompts that the schedule has not decided, until the round closes. The default.
    #[default]
    Undecided,
    /// All responses until the round closes, because the schedule decides by scores.
    UntilClosed,
    /// All responses.
    All,
}

impl NeededScores {
    pub(super) fn new(scope: ScoringScope) -> Self {
        Self { scope, ..Self::default() }
    }

    /// Applies decisions. Returns the prompts whose responses they concern.
    pub(super) fn decide(&mut self, batch: &Batch) -> Vec<RangeInclusive<PromptId>> {
        let mut concerned = Vec::new();
        let prompts = batch.values::<UInt64Type>(column::PROMPT_ID);
        let admitted = batch.lists::<UInt32Type>(column::ADMITTED);
        for (row, decision) in batch.text(column::DECISION).iter().enumerate() {
            let samples = match decision {
                Some(ADMIT) => admitted.get(row).to_vec(),
                Some(DEFER | REJECT) => Vec::new(),
                Some(CLOSE) => {
                    self.closed = true;
                    concerned.push(PromptId(0)..=PromptId(u64::MAX));
                    continue;
                }
                _ => continue,
            };
            let prompt = PromptId(prompts.value(row));
            self.decided.insert(prompt, samples);
            concerned.push(prompt..=prompt);
        }
        concerned
    }

    /// Returns `true` if the score of a response is needed.
    pub(super) fn wants(&self, prompt: PromptId, sample: u32) -> bool {
        let undecided = || {
            let decided = self.decided.get(&prompt);
            decided.map_or(!self.closed, |admitted| admitted.contains(&sample))
        };
        match self.scope {
            ScoringScope::Undecided => undecided(),
            ScoringScope::UntilClosed => !self.closed || undecided(),
            ScoringScope::All => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::encode::decisions;
    use crate::schedule::{Decision, Queue, Reason, RoundKind};
    use rollpacker_dataflow::step::Step;

    fn check(scope: ScoringScope, decided: &[Decision], expected: [bool; 4]) {
        let mut wanted = NeededScores::new(scope);
        wanted.decide(&decisions(decided, &vec![None; decided.len()], RoundKind::Short));
        let wants = [(1, 0), (1, 1), (2, 0), (3, 0)]
            .map(|(prompt, sample)| wanted.wants(PromptId(prompt), sample));
        assert_eq!(wants, expected, "{decided:?}");
    }

    fn admit() -> Decision {
        let (prompt, samples) = (PromptId(1), vec![1]);
        Decision::Admit { prompt, samples, weights: Vec::new(), reason: Reason::Finished }
    }

    fn defer() -> Decision {
        Decision::Defer { prompt: PromptId(2), reason: Reason::RoundFull }
    }

    fn reject() -> Decision {
        Decision::Reject { prompt: PromptId(2), reason: Reason::NoQuota }
    }

    fn close() -> Decision {
        Decision::Close { step: Step(0), queue: Queue::default() }
    }

    #[test]
    fn scores_of_admitted_and_undecided_responses_are_needed() {
        check(ScoringScope::Undecided, &[], [true; 4]);
        check(ScoringScope::Undecided, &[admit()], [false, true, true, true]);
        check(ScoringScope::Undecided, &[defer()], [true, true, false, true]);
        check(ScoringScope::Undecided, &[reject()], [true, true, false, true]);
        check(ScoringScope::Undecided, &[admit(), close()], [false, true, false, false]);
    }

    #[test]
    fn a_schedule_that_decides_by_scores_needs_all_until_its_round_closes() {
        check(ScoringScope::UntilClosed, &[admit(), defer()], [true; 4]);
        check(ScoringScope::UntilClosed, &[admit(), defer(), close()], [false, true, false, false]);
    }
}
