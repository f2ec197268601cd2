//! The reward `math_dapo`: a line `Answer: ...` with Minerva's normalization (Lewkowycz et al., 2022, appendix D.1).

use std::sync::LazyLock;

use regex::Regex;
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

use super::{last_characters, through_closing_brace};
use crate::rule::regex;

documented! {
    /// +1 if the answer of a response equals the ground truth after normalizing both, otherwise -1. The answer is the text after the last
    /// `Answer:` or else, within the last 100 characters, the last `\boxed{...}`. Only the last 300 characters count. Component: `acc`, 1
    /// for a right answer and otherwise 0. Label: `prediction`, the answer.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    pub struct MathDapo {
        /// `true` if only a `\boxed{...}` within the last 100 characters counts, without normalization. Default: `false`.
        pub strict_box: bool,
    }
}

/// The result of [`MathDapo::grade`] for a response.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// 1 for a right answer, and otherwise -1.
    pub score: f64,
    /// `true` if the answer is right.
    pub correct: bool,
    /// The answer, normalized unless `strict_box` is set. If there is none, it is `None` with `strict_box` and `[INVALID]` otherwise.
    pub prediction: Option<String>,
}

const INVALID: &str = "[INVALID]";

impl MathDapo {
    /// The documentation of the reward in a catalog.
    pub const ABOUT: About =
        About::new(&[], "1 or -1 for the last answer, compared as text", "verl");

    /// Compares the answer of a response with the ground truth `truth`.
    #[must_use]
    pub fn grade(&self, response: &str, truth: &str) -> Verdict {
        let text = last_characters(response, 300);
        let boxed = last_box(last_characters(text, 100));
        if self.strict_box {
            return verdict(boxed.as_deref() == Some(truth), boxed);
        }
        let truth = normalised(truth);
        let line = ANSWER.captures_iter(text).last();
        let line = line.and_then(|line| line.get(1)).map_or(INVALID, |answer| answer.as_str());
        let lenient = normalised(line);
        let answer = match boxed.filter(|_| lenient == INVALID) {
            Some(boxed) => normalised(&boxed),
            None => lenient,
        };
        verdict(answer == truth, Some(answer))
    }
}

impl Reward for MathDapo {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let verdict = self.grade(&sample.response, sample.truth()?);
        let score = Score::from(verdict.score).component("acc", f64::from(verdict.correct));
        Ok(score.label("prediction", verdict.prediction.unwrap_or_default()))
    }
}

fn verdict(correct: bool, prediction: Option<String>) -> Verdict {
    Verdict { score: if correct { 1.0 } else { -1.0 }, correct, prediction }
}

fn last_box(text: &str) -> Option<String> {
    let boxed = through_closing_brace(text, text.rfind("\\boxed{")?)?;
    boxed.strip_prefix("\\boxed{")?.strip_suffix('}').map(str::to_owned)
}

/// `Answer:`, any blanks and line breaks, and the rest of the line after them. In Python, `\s` matches the blanks of Unicode and four
/// control characters.
static ANSWER: LazyLock<Regex> =
    LazyLock::new(|| regex(r"(?i)Answer[\s\x1c-\x1f]*:[\s\x1c-\x1f]*([^\n]+)"));

/// Patterns and their replacements, applied in this order after the removals of `REMOVED`.
static REWRITTEN: LazyLock<[(Regex, &str); 7]> = LazyLock::new(|| {
    [
        (r"(.*?)(\$)(.*?)(\$)(.*)", "$$${3}$$"),
        (r"(\\text\{)(.*?)(\})", "${2}"),
        (r"(\\textbf\{)(.*?)(\})", "${2}"),
        (r"(\\overline\{)(.*?)(\})", "${2}"),
        (r"(\\boxed\{)(.*)(\})", "${2}"),
        (r"(frac)([^{])(.)", "frac{${2}}{${3}}"),
        (r"(sqrt)([^{])", "sqrt{${2}}"),
    ]
    .map(|(pattern, new)| (regex(pattern), new))
});

/// Texts and their replacements, applied in this order.
const SUBSTITUTED: &[(&str, &str)] = &[
    ("an ", ""),
    ("a ", ""),
    (".$", "$"),
    ("\\$", ""),
    ("\\ ", ""),
    (" ", ""),
    ("mbox", "text"),
    (",\\text{and}", ","),
    ("\\text{and}", ","),
    ("\\text{m}", "\\text{}"),
];

/// Texts that are removed, in this order, after the replacements of `SUBSTITUTED`.
const REMOVED: &[&str] = &[
    "square",
    "ways",
    "integers",
    "dollars",
    "mph",
    "inches",
    "hours",
    "km",
    "units",
    "\\ldots",
    "sue",
    "points",
    "feet",
    "minutes",
    "digits",
    "cents",
    "degrees",
    "cm",
    "gm",
    "pounds",
    "meters",
    "meals",
    "edges",
    "students",
    "childrentickets",
    "multiples",
    "\\text{s}",
    "\\text{.}",
    "\\text{\ns}",
    "\\text{}^2",
    "\\text{}^3",
    "\\text{\n}",
    "\\text{}",
    "\\mathrm{th}",
    "^\\circ",
    "^{\\circ}",
    "\\;",
    ",\\!",
    "{,}",
    "\"",
    "\\dots",
];

fn normalised(answer: &str) -> String {
    let mut answer = answer.rsplit('=').next().unwrap_or(answer).to_owned();
    for &(old, new) in SUBSTITUTED {
        answer = answer.replace(old, new);
    }
    for removed in REMOVED {
        answer = answer.replace(removed, "");
    }
    for (pattern, new) in REWRITTEN.iter() {
        answer = pattern.replace_all(&answer, *new).into_owned();
    }
    answer = answer.replace('$', "");
    let digits = answer.replace(',', "");
    if !digits.is_empty() && digits.chars().all(is_digit) {
        answer = digits;
    }
    answer
        .trim_matches(|c: char| c.is_whitespace() || ('\u{1c}'..='\u{1f}').contains(&c))
        .to_owned()
}

/// Returns `true` for the characters that Python's `str.isdigit` accepts: decimal digits in any script, superscripts, subscripts, and
/// digits in circles, in parentheses or with a period.
fn is_digit(character: char) -> bool {
    static DIGIT: LazyLock<Regex> =
        LazyLock::new(|| regex(r"^[\p{Nd}²³¹⁰⁴-⁹₀-₉①-⑨⑴-⑼⒈-⒐⓪⓵-⓽⓿❶-❾➀-➈➊-➒]$"));
    character.is_ascii_digit() || DIGIT.is_match(character.encode_utf8(&mut [0; 4]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grade(response: &str, truth: &str) -> (f64, Option<String>) {
        let verdict = MathDapo::default().grade(response, truth);
        assert_eq!(verdict.correct, verdict.score > 0.0);
        (verdict.score, verdict.prediction)
    }

    fn some(text: &str) -> Option<String> {
        Some(text.to_owned())
    }

    #[test]
    fn normalises_the_last_answer_line() {
        assert_eq!(grade("Answer: 5\nanswer :  $x = 2{,}500$", "2500"), (1.0, some("2500")));
        assert_eq!(grade("ANSWER: \\frac37 cm", "\\frac{3}{7}"), (1.0, some("\\frac{3}{7}")));
        assert_eq!(grade("Answer: 7.", "7"), (-1.0, some("7.")));
        assert_eq!(grade("Answer: \\boxed{\\text{(A)}}", "(A)"), (1.0, some("(A)")));
        assert_eq!(grade("Answer:\n\n8", "8"), (1.0, some("8")));
        assert_eq!(grade("Answer: $1$ or $2$", "1"), (1.0, some("1")));
    }

    #[test]
    fn falls_back_to_a_box() {
        assert_eq!(grade("so \\boxed{1,234}", "1234"), (1.0, some("1234")));
        assert_eq!(grade("nothing", "3"), (-1.0, some(INVALID)));
        let far = format!("\\boxed{{9}}{}", " ".repeat(100));
        assert_eq!(grade(&far, "9"), (-1.0, some(INVALID)));
    }

    #[test]
    fn strict_boxes_are_not_normalised() {
        let strict = MathDapo { strict_box: true };
        assert_eq!(strict.grade("\\boxed{1,234}", "1234").score, -1.0);
        assert_eq!(strict.grade("\\boxed{1,234}", "1,234").score, 1.0);
        assert_eq!(strict.grade("Answer: 5", "5").prediction, None);
    }
}
