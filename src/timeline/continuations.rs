//! Responses that a later step trains on.

use std::collections::BTreeMap;

use super::{TimelineResponse, TimelineStep};

/// Finds the score of responses that were paused, or kept whole, before the step that trained on them.
///
/// A step continues a response if it resumes as many tokens as the response had when it ended. A prompt may instead be sampled again from
/// the start, with the same prompt and sample numbers; then the earlier response was not trained on.
#[derive(Debug, Default)]
pub struct Continuations {
    /// The responses that the next step may continue, by prompt and sample.
    open: BTreeMap<(u64, u32), OpenResponse>,
    /// The scores of trained responses of which an earlier step sampled a part. The key is this earlier step, the prompt and the sample.
    scores: BTreeMap<(u64, u64, u32), Option<f64>>,
}

#[derive(Debug, Default)]
struct OpenResponse {
    /// The number of tokens when the response ended or was paused.
    tokens: u32,
    /// The shown steps that have a part of the response.
    steps: Vec<u64>,
}

impl Continuations {
    /// Adds the responses of a step. Steps must be added in order. `is_shown` is `false` for a step that is never passed to
    /// [`complete`](Self::complete); such a step only continues responses of other steps.
    pub fn observe(&mut self, step: u64, responses: &[TimelineResponse], is_shown: bool) {
        for response in responses {
            let id = (response.prompt, response.sample);
            let before = self.open.remove(&id);
            let is_continued = |open: &OpenResponse| open.tokens == response.resumed;
            let mut steps = before.filter(is_continued).map(|open| open.steps).unwrap_or_default();
            if response.trained {
                let parts = steps.into_iter().map(|step| (step, id.0, id.1));
                self.scores.extend(parts.map(|part| (part, response.score)));
                continue;
            }
            steps.extend(is_shown.then_some(step));
            // A response that was aborted is sampled again from the start.
            if !steps.is_empty() && response.finish_reason != "abort" {
                self.open.insert(id, OpenResponse { tokens: response.tokens, steps });
            }
        }
    }

    /// Returns `true` if a later step may train on a response of a step that is shown.
    #[must_use]
    pub fn has_open(&self) -> bool {
        !self.open.is_empty()
    }

    /// Marks the responses of a step that a later step trained on as trained, and sets their scores. Call this after all steps were
    /// [observed](Self::observe).
    pub fn complete(&self, step: &mut TimelineStep) {
        for response in &mut step.responses {
            let part = (step.step, response.prompt, response.sample);
            if let Some(&score) = self.scores.get(&part) {
                (response.trained, response.score) = (true, score);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn response(resumed: u32, tokens: u32, score: Option<f64>) -> TimelineResponse {
        TimelineResponse {
            resumed,
            tokens,
            trained: score.is_some(),
            score,
            ..TimelineResponse::default()
        }
    }

    /// Returns the scores of a response, which has a part in each step, after all steps. Only the first `shown` steps are completed.
    fn scores(shown: usize, parts: &[TimelineResponse]) -> Vec<Option<f64>> {
        let mut continuations = Continuations::default();
        for (step, part) in (1..).zip(parts) {
            continuations.observe(step, std::slice::from_ref(part), step <= shown as u64);
            assert!(!(part.trained && continuations.has_open()));
        }
        let completed = (1..).zip(&parts[..shown]).map(|(step, part)| {
            let responses = vec![part.clone()];
            let mut step = TimelineStep { step, responses, ..TimelineStep::default() };
            continuations.complete(&mut step);
            assert_eq!(step.responses[0].trained, step.responses[0].score.is_some());
            step.responses[0].score
        });
        completed.collect()
    }

    #[test]
    fn all_parts_of_a_trained_response_have_its_score() {
        let score = Some(0.5);
        let parts = [response(0, 4, None), response(4, 9, None), response(9, 9, score)];
        assert_eq!(scores(3, &parts), [score; 3]);
        assert_eq!(scores(1, &parts), [score], "later steps that are not shown count, too");
        assert_eq!(scores(2, &parts[..2]), [None, None]);
    }

    #[test]
    fn a_response_that_is_sampled_again_was_not_trained_on() {
        let score = Some(0.5);
        let parts = [response(0, 4, None), response(0, 7, None), response(7, 8, score)];
        assert_eq!(scores(3, &parts), [None, score, score]);
        assert_eq!(scores(2, &[response(0, 4, None), response(0, 4, score)]), [None, score]);
        let aborted = TimelineResponse { finish_reason: "abort".into(), ..response(0, 0, None) };
        assert_eq!(scores(2, &[aborted, response(0, 4, score)]), [None, score]);
    }
}
