//! Orders scores after the ends of their responses, and drops scores that the schedule does not wait for.
//!
//! If several workers generate, ends and scores reach the schedule on separate streams, and a score may arrive first. In lockstep the
//! [sequencer](super::sequencer) orders both.

use std::collections::{BTreeMap, BTreeSet};

use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::Decision;

/// A filter of scores. It holds each score until the end of its response is reported, and passes only scores of responses of the open
/// round and of responses that closed rounds admitted.
#[derive(Debug, Default)]
pub(super) struct OrderedScores {
    open: Option<Step>,
    /// Responses that the open round launched and whose ends were not reported yet.
    running: BTreeSet<SampleId>,
    /// Scores that arrived before the ends of their responses.
    early: BTreeMap<SampleId, f64>,
    /// Responses whose scores were not reported: all responses of the open round, and admitted responses of closed rounds.
    wanted: BTreeSet<SampleId>,
    /// Responses that the open round admitted.
    admitted: BTreeSet<SampleId>,
}

impl OrderedScores {
    pub(super) fn on_decision(&mut self, decision: &Decision) {
        match decision {
            Decision::Open { step, .. } => self.open = Some(*step),
            Decision::Launch { prompt, samples, .. } => {
                let ids: Vec<SampleId> = self.ids(*prompt, samples.clone()).collect();
                self.running.extend(&ids);
                self.wanted.extend(ids);
            }
            Decision::Admit { prompt, samples, .. } => {
                let ids: Vec<SampleId> = self.ids(*prompt, samples.iter().copied()).collect();
                self.admitted.extend(ids);
            }
            Decision::Close { .. } => {
                // Admitted responses have ended. Running responses and early scores of the round are no longer needed.
                let admitted = std::mem::take(&mut self.admitted);
                self.wanted.retain(|id| admitted.contains(id) || Some(id.step) != self.open);
                self.running.clear();
                self.early.clear();
                self.open = None;
            }
            _ => {}
        }
    }

    /// Records that the end of a response was reported. Returns the score of the response if the score arrived before the end.
    pub(super) fn on_end(&mut self, id: SampleId) -> Option<f64> {
        self.running.remove(&id);
        let score = self.early.remove(&id)?;
        self.on_score(id, score)
    }

    /// Records a score. Returns the score if it can be reported now, and `None` if the response has not ended or its score is not wanted.
    pub(super) fn on_score(&mut self, id: SampleId, score: f64) -> Option<f64> {
        if self.running.contains(&id) {
            self.early.insert(id, score);
            return None;
        }
        self.wanted.remove(&id).then_some(score)
    }

    /// Returns the ids of the open round's samples of a prompt.
    fn ids(
        &self,
        prompt: PromptId,
        samples: impl Iterator<Item = u32>,
    ) -> impl Iterator<Item = SampleId> {
        let step = self.open.expect("invariant: a round is open while it launches and admits");
        samples.map(move |sample| SampleId { step, prompt, sample })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schedule::{Queue, Reason, RoundKind};

    const PROMPT: PromptId = PromptId(5);

    fn id(step: u64, sample: u32) -> SampleId {
        SampleId { step: Step(step), prompt: PROMPT, sample }
    }

    /// Opens a round that launches three responses.
    fn open(scores: &mut OrderedScores, step: u64) {
        let (round, reason) = (RoundKind::Short, Reason::Fresh);
        scores.on_decision(&Decision::Open { step: Step(step), round, reason });
        scores.on_decision(&Decision::Launch { prompt: PROMPT, samples: 0..3, reason });
    }

    fn admit(scores: &mut OrderedScores, samples: Vec<u32>) {
        let (weights, reason) = (Vec::new(), Reason::Finished);
        scores.on_decision(&Decision::Admit { prompt: PROMPT, samples, weights, reason });
    }

    fn close(scores: &mut OrderedScores, step: u64) {
        scores.on_decision(&Decision::Close { step: Step(step), queue: Queue::default() });
    }

    #[test]
    fn a_score_that_comes_before_the_end_of_its_response_waits_for_it() {
        let mut scores = OrderedScores::default();
        open(&mut scores, 0);
        assert_eq!(scores.on_end(id(0, 0)), None);
        assert_eq!(scores.on_score(id(0, 0), 1.0), Some(1.0));
        assert_eq!(scores.on_score(id(0, 1), 0.5), None);
        assert_eq!(scores.on_end(id(0, 1)), Some(0.5));
        assert_eq!(scores.on_end(id(0, 1)), None, "once");
    }

    #[test]
    fn a_closed_round_delivers_only_scores_of_admitted_responses() {
        let mut scores = OrderedScores::default();
        open(&mut scores, 0);
        for sample in [0, 1] {
            assert_eq!(scores.on_end(id(0, sample)), None);
        }
        assert_eq!(scores.on_score(id(0, 2), 1.0), None, "its response runs");
        admit(&mut scores, vec![0]);
        close(&mut scores, 0);
        assert_eq!(scores.on_end(id(0, 2)), None);
        assert_eq!(scores.on_score(id(0, 1), 1.0), None);
        open(&mut scores, 1);
        close(&mut scores, 1);
        assert_eq!(scores.on_score(id(0, 0), 1.0), Some(1.0));
        assert_eq!(scores.on_score(id(0, 0), 1.0), None, "once");
        assert!(scores.wanted.is_empty() && scores.running.is_empty() && scores.early.is_empty());
    }
}
