//! The reward `exact`: answers that must match word for word.

use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};

use super::answer_in::{AnswerIn, targets};
use super::normal_form::NormalForm;

documented! {
    /// 1 if the answer of a response equals the ground truth, or one of several accepted answers, word for word; otherwise 0.
    ///
    /// Several accepted answers are written as a JSON list of texts, or as a JSON object whose field `target` is such a list or a single
    /// text. Runs of blanks count as one. The options select further differences to ignore, except in an answer of which nothing would
    /// remain. Labels: `outcome`, which is `right`, `wrong` or `no_answer`, and `answer`.
    #[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct Exact {
        /// The position of the answer: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response
        /// (`response`), or the first of these that is present (`auto`). Default: `auto`.
        pub answer: AnswerIn,
        /// A marker before the answer, such as `A:`. The answer is the text after the last marker; a response without a marker has no
        /// answer. Default: no marker.
        pub marker: Option<String>,
        /// `true` to ignore the difference between upper and lower case. Default: `false`.
        pub ignore_case: bool,
        /// `true` to ignore ASCII punctuation. Default: `false`.
        pub ignore_punctuation: bool,
        /// `true` to ignore the words `a`, `an` and `the`. Capitalized articles, such as `The`, are only ignored with `ignore_case`.
        /// Default: `false`.
        pub ignore_articles: bool,
        /// `true` to ignore all blanks. Default: `false`.
        pub ignore_blanks: bool,
    }
}

impl Reward for Exact {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let targets = targets(sample)?;
        let Some(answer) = self.find(&sample.response) else {
            return Ok(Score::from(false).label("outcome", "no_answer"));
        };
        let found = self.form().of(answer);
        // Texts that consist of ignored characters only, such as `+` and `-`, are compared as written.
        let form = if found.is_empty() { NormalForm::default() } else { self.form() };
        let found = form.of(answer);
        let right = targets.iter().any(|target| form.of(target) == found);
        let outcome = if right { "right" } else { "wrong" };
        Ok(Score::from(right).label("outcome", outcome).label("answer", answer))
    }
}

impl Exact {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "answers that must match word for word", "this project");

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
    fn ignored_differences_are_configured() {
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
        check(&with(|exact| exact.ignore_punctuation = true), "+", "-", 0.0);
        check(&with(|exact| exact.ignore_punctuation = true), "+", "+", 1.0);
        check(&with(|exact| exact.ignore_articles = true), "the Seine", "Seine", 1.0);
        check(&with(|exact| exact.ignore_articles = true), "a", "the", 0.0);
        check(&with(|exact| exact.ignore_blanks = true), "( 1, 2 )", "(1,2)", 1.0);
        check(&with(|exact| exact.answer = AnswerIn::Tag), "Paris", "Paris", 0.0);
        check(plain, "Rome", r#"["Paris", "Rome"]"#, 1.0);
    }

    /// The scoring of the built-in task: a truncated calculation that happens to end in the right digit is not an answer.
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
