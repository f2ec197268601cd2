//! Verdicts: the instruction to the judge, and the parsing of its answer.

use rollpacker_stages::secret::quote;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The form in which a judge must write its verdict, and the conversion of the verdict to a reward.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(tag = "form", rename_all = "snake_case", deny_unknown_fields)]
pub enum VerdictForm {
    /// The last line is `Verdict: YES`, worth 1, or `Verdict: NO`, worth 0.
    #[default]
    YesNo,
    /// The last line is `Verdict: <number>`, with a number in the range of the scale.
    Score(Scale),
    /// The answer is a JSON object, or ends with one in a fenced block.
    Json {
        /// The field with the verdict: a number or a boolean. `true` counts as the maximum and `false` as the minimum.
        field: String,
        /// The minimum of the number; 0 by default. It must be finite and less than `max`.
        #[serde(default)]
        min: f64,
        /// The maximum of the number; 1 by default. It must be finite.
        #[serde(default = "one")]
        max: f64,
        /// `true` (default) if the number is scaled to the range 0 to 1.
        #[serde(default = "yes")]
        normalise: bool,
    },
}

/// The range of numeric verdicts, and the scale of the reward.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scale {
    /// The minimum of the number. It must be finite and less than `max`.
    pub min: f64,
    /// The maximum of the number. It must be finite.
    pub max: f64,
    /// `true` (default) if the number is scaled to the range 0 to 1.
    #[serde(default = "yes")]
    pub normalise: bool,
}

fn one() -> f64 {
    1.0
}

fn yes() -> bool {
    true
}

/// A parsed verdict.
#[derive(Clone, Debug, PartialEq)]
pub struct Verdict {
    /// The reward for the verdict: from 0 to 1, or the judge's number if `normalise` is `false`.
    pub value: f64,
    /// The verdict in a form in which equal verdicts are equal: a number without superfluous digits, `YES` or `NO`, `true` or `false`.
    pub text: String,
}

/// The error for an answer without a valid verdict at the expected position.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}, found `{found}`")]
pub struct Unreadable {
    /// A description of the expected verdict and its position.
    pub expected: String,
    /// The first 200 characters of the text at this position, without secrets.
    pub found: String,
}

const VERDICT_MARK: &str = "Verdict:";

impl VerdictForm {
    /// Returns the instruction to the judge, as the end of a sentence.
    #[must_use]
    pub fn instruction(&self) -> String {
        match self {
            Self::YesNo => {
                format!("end with a line of its own: `{VERDICT_MARK} YES` or `{VERDICT_MARK} NO`.")
            }
            Self::Score(Scale { min, max, .. }) => format!(
                "end with a line of its own: `{VERDICT_MARK} ` and a number from {min} to {max}, {max} for the best."
            ),
            Self::Json { field, min, max, .. } => format!(
                "end with a JSON object in a block fenced by ```json and ```, whose field `{field}` is a number from {min} to {max}, \
                 {max} for the best."
            ),
        }
    }

    /// Returns the reason why the form is invalid, or `None` if it is valid.
    #[must_use]
    pub fn invalid_reason(&self) -> Option<String> {
        let scale = self.scale();
        let ordered = scale.min < scale.max && scale.min.is_finite() && scale.max.is_finite();
        let fault = || format!("expected min < max, found {} and {}", scale.min, scale.max);
        (!ordered).then(fault)
    }

    /// Parses the verdict of an answer. Only the last line or the final JSON object counts, as the form requires. The judge's own thinking
    /// before the last `</think>` is ignored.
    ///
    /// # Errors
    /// If there is no verdict at this position, the verdict does not have this form, or its number is out of range.
    pub fn read(&self, answer: &str) -> Result<Verdict, Unreadable> {
        let answer = answer.rsplit("</think>").next().unwrap_or(answer).trim();
        match self {
            Self::Json { field, .. } => self.parse_json(answer, field),
            _ => self.parse_line(answer),
        }
    }

    fn parse_line(&self, answer: &str) -> Result<Verdict, Unreadable> {
        let last = answer.lines().next_back().unwrap_or_default();
        let unreadable = || self.unreadable(last);
        let text =
            strip_emphasis(strip_emphasis(last).strip_prefix(VERDICT_MARK).ok_or_else(unreadable)?);
        if let Self::YesNo = self {
            let value = match text {
                yes if yes.eq_ignore_ascii_case("yes") => 1.0,
                no if no.eq_ignore_ascii_case("no") => 0.0,
                _ => return Err(unreadable()),
            };
            return Ok(Verdict { value, text: text.to_ascii_uppercase() });
        }
        let number: f64 = text.parse().map_err(|_| unreadable())?;
        let value = self.scaled_value(number).ok_or_else(unreadable)?;
        Ok(Verdict { value, text: number.to_string() })
    }

    fn parse_json(&self, answer: &str, field: &str) -> Result<Verdict, Unreadable> {
        let object = fenced(answer).unwrap_or(answer).trim();
        let unreadable = || self.unreadable(object);
        let object: Value = serde_json::from_str(object).map_err(|_| unreadable())?;
        let scale = self.scale();
        let (number, text) = match &object[field] {
            Value::Bool(right) => (if *right { scale.max } else { scale.min }, right.to_string()),
            other => {
                let number = other.as_f64().ok_or_else(unreadable)?;
                (number, number.to_string())
            }
        };
        let value = self.scaled_value(number).ok_or_else(unreadable)?;
        Ok(Verdict { value, text })
    }

    /// Returns the reward for the judge's `number`, scaled to the range 0 to 1 if `normalise` is set. Returns `None` if `number` is out of
    /// range.
    fn scaled_value(&self, number: f64) -> Option<f64> {
        let Scale { min, max, normalise } = self.scale();
        let worth = if normalise { (number - min) / (max - min) } else { number };
        (min..=max).contains(&number).then_some(worth)
    }

    fn scale(&self) -> Scale {
        match *self {
            Self::YesNo => Scale { min: 0.0, max: 1.0, normalise: true },
            Self::Score(scale) => scale,
            Self::Json { min, max, normalise, .. } => Scale { min, max, normalise },
        }
    }

    fn unreadable(&self, found: &str) -> Unreadable {
        let expected = match self {
            Self::YesNo => format!("a last line `{VERDICT_MARK} YES` or `{VERDICT_MARK} NO`"),
            Self::Score(Scale { min, max, .. }) => {
                format!("a last line `{VERDICT_MARK} <number from {min} to {max}>`")
            }
            Self::Json { field, min, max, .. } => {
                format!("a JSON object whose `{field}` is a number from {min} to {max}")
            }
        };
        Unreadable { expected, found: quote(found, 200) }
    }
}

/// Returns the contents of the fenced block that ends the text, without the info string `json`. Returns `None` if there is no such block.
fn fenced(text: &str) -> Option<&str> {
    let body = text.strip_suffix("```")?;
    let begin = body.rfind("```")? + "```".len();
    let block = &body[begin..];
    Some(block.strip_prefix("json").unwrap_or(block))
}

/// Returns the text without surrounding blanks and emphasis marks.
fn strip_emphasis(text: &str) -> &str {
    text.trim_matches(|c: char| c.is_whitespace() || matches!(c, '*' | '_' | '`'))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn score() -> VerdictForm {
        VerdictForm::Score(Scale { min: 1.0, max: 5.0, normalise: true })
    }

    fn json() -> VerdictForm {
        serde_json::from_str(r#"{"form": "json", "field": "score"}"#).expect("a form")
    }

    fn value(form: &VerdictForm, answer: &str) -> Option<f64> {
        form.read(answer).ok().map(|verdict| verdict.value)
    }

    #[test]
    fn the_last_verdict_line_counts() {
        let check = |answer, expected| {
            assert_eq!(value(&VerdictForm::YesNo, answer), expected, "{answer}");
        };
        check("It agrees.\nVerdict: YES", Some(1.0));
        check("**Verdict: no**\n\n", Some(0.0));
        check("Verdict: **NO**", Some(0.0));
        check("<think>Verdict: NO</think>\nVerdict: YES", Some(1.0));
        check("The response says\nVerdict: YES\nVerdict: NO", Some(0.0));
        for unreadable in [
            "",
            "YES",
            "Verdict: YES\nI am sure.",
            "Verdict: YES or NO",
            "Verdict: MAYBE",
            "Verdict:",
            "The verdict is Verdict: YES",
            "Verdict: YES <think>",
            "Verdict: YES</think>",
        ] {
            check(unreadable, None);
        }
    }

    #[test]
    fn a_number_is_within_its_range_and_scaled() {
        let check = |answer, expected| assert_eq!(value(&score(), answer), expected, "{answer}");
        check("Verdict: 5", Some(1.0));
        check("Verdict: 2.0", Some(0.25));
        for unreadable in
            ["Verdict: 0", "Verdict: 5.1", "Verdict: NaN", "Verdict: 4/5", "Verdict: inf"]
        {
            check(unreadable, None);
        }
        let texts = ["Verdict: 4", "Verdict: 4.0", "Verdict: **4.00**"]
            .map(|answer| score().read(answer).expect("a verdict").text);
        assert_eq!(texts, ["4", "4", "4"], "equal verdicts count together");
        let raw = VerdictForm::Score(Scale { min: 1.0, max: 5.0, normalise: false });
        assert_eq!(value(&raw, "Verdict: 2"), Some(2.0));
    }

    #[test]
    fn an_object_is_the_answer_or_its_last_block() {
        let check = |answer, expected| assert_eq!(value(&json(), answer), expected, "{answer}");
        check(r#"{"score": 0.5}"#, Some(0.5));
        check("Think.\n```json\n{\"score\": true}\n```", Some(1.0));
        check("```json\n{\"score\": 1}\n```\nno:\n```\n{\"score\": 0}\n```", Some(0.0));
        for unreadable in [
            r#"{"score": 2}"#,
            r#"{"score": "1"}"#,
            r#"{"other": 1}"#,
            r#"It is {"score": 1}"#,
            "```json\n{\"score\": 1}\n```\nthat is all",
            "[1]",
        ] {
            check(unreadable, None);
        }
    }

    #[test]
    fn an_unreadable_answer_is_quoted() {
        let error = score().read("Well.\nVerdict: 9").expect_err("out of range");
        let expected = "expected a last line `Verdict: <number from 1 to 5>`, found `Verdict: 9`";
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn a_secret_at_the_cut_is_replaced() {
        let secret = "sk-0123456789abcdefghij";
        rollpacker_stages::secret::register(secret);
        let answer = format!("{}{secret}", "x".repeat(190));
        let error = score().read(&answer).expect_err("no verdict");
        assert!(!error.found.contains("sk-0"), "{error}");
    }

    #[test]
    fn a_scale_is_ordered() {
        let form = VerdictForm::Score(Scale { min: 5.0, max: 1.0, normalise: true });
        assert_eq!(form.invalid_reason().as_deref(), Some("expected min < max, found 5 and 1"));
        assert_eq!(score().invalid_reason(), None);
    }
}
