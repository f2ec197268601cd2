//! Answers that are to be said word for word.

use super::answer_in::{AnswerIn, targets};
use super::normal_form::NormalForm;
use crate::reward::{Context, Reward, RewardError, Sample, Score};

/// 1 if the answer of a response is the ground truth, or one of several, word for word; else 0.
///
/// Several are a JSON list of texts, as it is or as the field `target`. Runs of blanks count as one; what else does not count is said.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Exact {
    /// Where the answer stands.
    pub answer: AnswerIn,
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
        let Some(answer) = self.answer.find(&sample.response) else {
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
    fn form(&self) -> NormalForm {
        let Self { ignore_case, ignore_punctuation, ignore_articles, ignore_blanks, .. } = *self;
        NormalForm { ignore_case, ignore_punctuation, ignore_articles, ignore_blanks }
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn check(exact: Exact, response: &str, truth: &str, expected: f64) {
        let sample = Sample::of("any", response, Some(truth));
        let score = block_on(exact.score(&sample, &Context::detached())).expect("scored");
        assert_eq!(score.value, expected, "{response:?} against {truth:?}");
    }

    #[test]
    fn what_does_not_count_is_said() {
        let plain = Exact::default();
        check(plain, "<think>x</think> Paris\n", "Paris", 1.0);
        check(plain, "New \n York", "New York", 1.0);
        check(plain, "paris", "Paris", 0.0);
        check(plain, "Paris.", "Paris", 0.0);
        check(plain, "It is Paris", "Paris", 0.0);
        check(Exact { ignore_case: true, ..plain }, "paris", "Paris", 1.0);
        check(Exact { ignore_punctuation: true, ..plain }, "Paris.", "Paris", 1.0);
        check(Exact { ignore_articles: true, ..plain }, "the Seine", "Seine", 1.0);
        check(Exact { ignore_blanks: true, ..plain }, "( 1, 2 )", "(1,2)", 1.0);
        check(Exact { answer: AnswerIn::Tag, ..plain }, "Paris", "Paris", 0.0);
        check(plain, "Rome", r#"["Paris", "Rome"]"#, 1.0);
    }
}
