//! The reward `regex`: a match with a regular expression.

use regex::{Regex, RegexBuilder};
use rollpacker_stages::catalog::{About, CatalogError};
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

use super::answer_in::AnswerIn;

/// 1 if the answer of a response matches a regular expression, otherwise 0. A response without an answer gets 0.
#[derive(Clone, Debug)]
pub struct Pattern {
    regex: Regex,
    answer: AnswerIn,
}

documented! {
    /// Options of a [`Pattern`].
    #[derive(Clone, Debug, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub struct PatternOptions {
        /// The expression, in the syntax of the crate `regex`: linear in time, without look-around.
        pub pattern: String,
        /// `true` if the whole text must match, `false` if a part is enough. Default: `false`.
        #[serde(default)]
        pub full: bool,
        /// `true` to ignore the difference between upper and lower case. Default: `false`.
        #[serde(default)]
        pub ignore_case: bool,
        /// `true` if `.` also matches line breaks. Default: `true`.
        #[serde(default = "yes")]
        pub dot_all: bool,
        /// The text to match: the last `<answer>` (`tag`), the text after the last `</think>` (`after_think`), the whole response
        /// (`response`), or the first of these that is present (`auto`). Default: `response`.
        #[serde(default = "response")]
        pub answer: AnswerIn,
    }
}

fn yes() -> bool {
    true
}

fn response() -> AnswerIn {
    AnswerIn::Response
}

impl Pattern {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About = About::new(&[], "a match with a regular expression", "this project");

    /// Compiles the expression.
    ///
    /// # Errors
    /// If the expression is invalid.
    pub fn new(options: PatternOptions) -> Result<Self, CatalogError> {
        let PatternOptions { pattern, full, ignore_case, dot_all, answer } = options;
        let compile = |pattern: &str| {
            let mut regex = RegexBuilder::new(pattern);
            regex.case_insensitive(ignore_case).dot_matches_new_line(dot_all).build()
        };
        let mut compiled = compile(&pattern);
        if full && compiled.is_ok() {
            // A comment at the end of a verbose expression would hide the parenthesis on the same line.
            let of = |end: &str| compile(&format!(r"\A(?:{pattern}{end})\z"));
            compiled = of("").or_else(|_| of("\n"));
        }
        let regex = compiled.map_err(|error| CatalogError::Option {
            key: "pattern".to_owned(),
            reason: error.to_string(),
        })?;
        Ok(Self { regex, answer })
    }
}

impl Reward for Pattern {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let text = self.answer.find(&sample.response);
        Ok(text.is_some_and(|text| self.regex.is_match(text)).into())
    }
}

#[cfg(test)]
mod tests {
    use futures::executor::block_on;

    use super::*;

    fn check(options: &str, response: &str, expected: f64) {
        let pattern = serde_json::from_str(options).expect("options");
        let pattern = Pattern::new(pattern).expect("a pattern");
        let sample = Sample::of("any", response, None);
        let score = block_on(pattern.score(&sample, &Context::detached())).expect("scored");
        assert_eq!(score.value, expected, "{options} on {response:?}");
    }

    #[test]
    fn a_part_or_the_whole_matches() {
        check(r#"{"pattern": "b.d"}"#, "a b\nd e", 1.0);
        check(r#"{"pattern": "b.d", "dot_all": false}"#, "a b\nd e", 0.0);
        check(r#"{"pattern": "b|c", "full": true}"#, "bc", 0.0);
        check(r#"{"pattern": "b|c", "full": true}"#, "c", 1.0);
        check(r#"{"pattern": "(?x) b # letter", "full": true}"#, "b", 1.0);
        check(r#"{"pattern": "(?x) b # letter", "full": true}"#, "bb", 0.0);
        check(r#"{"pattern": "B", "ignore_case": true}"#, "b", 1.0);
        check(r#"{"pattern": "b", "answer": "tag"}"#, "b <answer>c</answer>", 0.0);
    }

    #[test]
    fn an_invalid_expression_is_refused() {
        for options in [r#"{"pattern": "("}"#, r#"{"pattern": "a)|(b", "full": true}"#] {
            let options = serde_json::from_str(options).expect("options");
            let error = Pattern::new(options).expect_err("no expression").to_string();
            assert!(error.starts_with("`pattern`: regex parse error"), "{error}");
        }
    }
}
