//! Answers that are to be said word for word.

use super::answer_in::{AnswerIn, targets};
use super::normal_form::NormalForm;
use crate::reward::{Context, Reward, RewardError, Sample, Score};

/// 1 if the answer of a response is the ground truth, or one of several, word for word; else 0.
///
/// Several are a JSON list of texts, as it is or as the field `target`. Runs of blanks count as one; what else does not count is said.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exact {
    /// Where the answer stands.
    pub answer: AnswerIn,
    /// The mark before the answer, such as `A:`. The answer is all that follows the last mark; a response without one has no answer.
    /// Default: no mark.
    pub marker: Option<String>,
    /// Whether upper case is lower case.
    pub ignore_case: bool,
    /// Whether ASCII punctuation does not count.
    pub ignore_punctuation: bool,
    /// Whether `a`, `an` and `the` do not count.
    pub ignore_articles: bool,
    /// Whether blanks do not count at all.
    pub ignore_blanks: bool,
}

impl Reward for Exact {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let targets = targets(sample)?;
        let Some(answer) = self.find(&sample.response) else {
            return Ok(Score::from(false).label("outcome", "no_answer"));
        };
        let form = self.form();
        let said = form.of(answer);
        let right = targets.iter().any(|target| form.of(target) == said);
        let outcome = if right { "right" } else { "wrong" };
        Ok(Score::from(right).label("outcome", outcome).label("answer", answer))
    }
}

impl Exact {
    fn find<'a>(&self, response: &'a str) -> Option<&'a str> {
        let answer = self.answer.find(response)?;
        match self.marker.as_deref() {
            None | Some("") => Some(answer),
            Some(marker) => answer.rsplit_once(marker).map(|(_, after)| after.trim()),
        }
    }

    fn form(&self) -> NormalForm {
        NormalForm {
            ignore_case: self.ignore_case,
            ignore_punctuation: self.ignore_punctuation,
            ignore_articles: self.ignore_articles,
            ignore_blanks: self.ignore_blanks,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn check(exact: &Exact, response: &str, truth: &str, expected: f64) {
        let sample = Sample::of("any", response, Some(truth));
        let score = block_on(exact.score(&sample, &Context::detached())).expect("scored");
        assert_eq!(score.value, expected, "{response:?} against {truth:?}");
    }

    #[test]
    fn what_does_not_count_is_said() {
        let plain = &Exact::default();
        let with = |change: fn(&mut Exact)| {
            let mut exact = Exact::default();
            change(&mut exact);
            exact
        };
        check(plain, "<think>x</think> Paris\n", "Paris", 1.0);
        check(plain, "New \n York", "New York", 1.0);
        check(plain, "paris", "Paris", 0.0);
        check(plain, "Paris.", "Paris", 0.0);
        check(plain, "It is Paris", "Paris", 0.0);
        check(&with(|exact| exact.ignore_case = true), "paris", "Paris", 1.0);
        check(&with(|exact| exact.ignore_punctuation = true), "Paris.", "Paris", 1.0);
        check(&with(|exact| exact.ignore_articles = true), "the Seine", "Seine", 1.0);
        check(&with(|exact| exact.ignore_blanks = true), "( 1, 2 )", "(1,2)", 1.0);
        check(&with(|exact| exact.answer = AnswerIn::Tag), "Paris", "Paris", 0.0);
        check(plain, "Rome", r#"["Paris", "Rome"]"#, 1.0);
    }

    /// As the built-in task is scored: a step that happens to end in the right digit is no answer.
    #[test]
    fn an_answer_may_have_a_marker() {
        let marked = &Exact { marker: Some("A:".to_owned()), ..Exact::default() };
        check(marked, "3+5=8,A:8", "8", 1.0);
        check(marked, "A:8", "8", 1.0);
        check(marked, "A:7,A:8", "8", 1.0);
        for response in ["8+6=", "8", "3+5=8", "A:", "A:8,", "A:8,8+6=4", "A:88", "A:8 A:", ""] {
            check(marked, response, "8", 0.0);
        }
    }
}
