//! Verification of mathematical answers: does the final answer of a text equal the ground truth?
//!
//! ```
//! use rollpacker_math::Verifier;
//!
//! let verifier = Verifier::default();
//! let response = r"The probability is $1 - \frac{1}{4}$, that is $\boxed{\frac{3}{4}}$.";
//! assert!(verifier.is_correct(response, "0.75"));
//! assert!(verifier.is_correct(response, r"75\%"));
//! assert!(!verifier.is_correct(response, "0.25"));
//!
//! // Values are compared, not notations.
//! assert!(verifier.is_correct(r"so $x \in \boxed{(-\infty, -2] \cup [2, \infty)}$", r"$x^2 \geq 4$"));
//! assert!(verifier.is_correct("Answer: (x+1)^2", "x^2 + 2x + 1"));
//! ```
//!
//! [`Verifier`] has the options and can be read with serde. The crate needs no model, no Python and no network, and the same input always
//! has the same result. This crate depends on no other crate of its workspace.
//!
//! # Answers
//!
//! The answer of a text is the one that a marker announces: `\boxed{...}`, `#### ...`, `<answer>...</answer>`, `Answer: ...`, `A: ...` or
//! "the final answer is". Two of them are no markers in some places: `####` before the title or the number of a section, which is a heading
//! of Markdown, and `A:` after a word, as in `Team A: 3`. Without a marker, the answer is the last formula or number.
//!
//! LaTeX and plain text are read: numbers with separators and units, fractions, percentages, roots, powers, logarithms, trigonometric
//! functions, sets, intervals, tuples, matrices, equations, inequalities, expressions with variables, and the letters of multiple-choice
//! questions ([`choice`]).
//!
//! # Method
//!
//! An answer is extracted (`extract`), parsed from LaTeX or plain text (`parse`) into a tree (`expr`), and compared with the truth
//! (`equal`). If one of them is a decimal number, both are rounded to [`precision`](Verifier::precision) decimal places. Otherwise the
//! comparison is exact if both have a normal form (`normal`: quotients of polynomials over the rationals, π, e, i and square roots). All
//! other expressions are evaluated at several points that a seed determines (`evaluate`; tolerance 1e-9). The number of steps, the nesting
//! depth and the sizes are bounded, so that any input takes at most a few hundred milliseconds.
//!
//! Priorities of answers and names of options are those of Math-Verify (Kydlíček, 2025,
//! <https://github.com/huggingface/Math-Verify>).

pub mod choice;
mod definition;
mod equal;
mod error;
mod evaluate;
mod expr;
mod extract;
mod matrix;
mod names;
mod normal;
mod number;
mod parse;
mod relation;
mod set;
#[cfg(test)]
mod tests;
mod token;
mod units;
mod work;

use serde::{Deserialize, Serialize};

use self::expr::Expr;

pub use self::error::OptionsError;
pub use self::extract::Target;
pub use self::extract::boxes::contents as boxed;

/// The default of [`Verifier::precision`].
const DEFAULT_PRECISION: u32 = 6;

/// The part of a response that has the answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AnswerIn {
    /// The text after the last `</think>`, or the whole response if there is none or only blanks follow it.
    #[default]
    Auto,
    /// The last complete `<answer>...</answer>`. A tag without its counterpart is ignored.
    Tag,
    /// The text after the last `</think>`.
    AfterThink,
    /// The whole response.
    Response,
}

impl AnswerIn {
    /// Returns the part of a response, or `None` if the tags are missing.
    fn find(self, response: &str) -> Option<&str> {
        let after_think = || response.rsplit_once("</think>").map(|(_, after)| after);
        match self {
            Self::Auto => after_think().filter(|after| !after.trim().is_empty()).or(Some(response)),
            Self::Tag => extract::last_tag(response).map(|(begin, end)| &response[begin..end]),
            Self::AfterThink => after_think(),
            Self::Response => Some(response),
        }
    }
}

/// Compares the final answer of a text with the ground truth.
///
/// The answer is the one that a marker announces: `\boxed{...}`, `#### ...`, `<answer>...</answer>`, `Answer: ...`, `A: ...` or "the final
/// answer is". Of several markers with the same priority, the last one wins. Without a marker, the answer is the last formula or number.
/// Answers are compared by value: numbers, fractions, percentages, sets, intervals, tuples, matrices, equations, inequalities and
/// expressions with variables. Units are ignored, unless both answers have units and have none in common, as `5 cm` and `5 km`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Verifier {
    /// The part of a response that has the answer; by default, the text after the last `</think>` if there is any.
    pub answer: AnswerIn,
    /// `true` (default) if the last formula or number of a response without a marker counts as its answer.
    pub last_number: bool,
    /// The notations in which answers are searched; both by default. The text after a marker such as `####` is read in both notations.
    #[serde(alias = "match_types")]
    pub targets: Vec<Target>,
    /// Number of decimal places to which two numbers are rounded before they are compared, if one of them has a decimal point or an
    /// exponent; from 0 to 30, 6 by default. Larger values count as 30. A truth that would be rounded to 0 is compared at about as many
    /// significant digits instead. With the default, a truth of 0 is compared at 12 decimal places.
    pub precision: u32,
    /// `true` (default) if the names of variables matter and sets differ from tuples.
    pub strict: bool,
    /// `true` if an inequality may answer a truth that is a set; `false` by default. A set may always answer an inequality.
    #[serde(alias = "allow_set_relation_comp")]
    pub relation_for_set: bool,
    /// Priority of boxes and other markers; 0 by default. Smaller numbers are preferred. For comparison, "the final answer is ... I hope"
    /// has the priority 0, and "the final answer is" has the priority 50. If the value is negative, boxes are ignored, and the other
    /// markers have the priority 0.
    #[serde(alias = "boxed_match_priority")]
    pub boxed_priority: i32,
    /// `true` (default) if `####`, `<answer>`, `Answer:` and `A:` mark answers.
    pub markers: bool,
}

impl Default for Verifier {
    fn default() -> Self {
        Self {
            answer: AnswerIn::Auto,
            last_number: true,
            targets: vec![Target::Latex, Target::Expr],
            precision: DEFAULT_PRECISION,
            strict: true,
            relation_for_set: false,
            boxed_priority: 0,
            markers: true,
        }
    }
}

impl Verifier {
    /// Returns `true` if the answer of a response equals the truth, by value or as written apart from blanks. Only the last 64 KiB of the
    /// part that [`answer`](Self::answer) selects are searched. Returns `false` if the response has no answer.
    ///
    /// `truth` is either an answer alone or a text that contains an answer, as a response does.
    #[must_use]
    pub fn is_correct(&self, response: &str, truth: &str) -> bool {
        let Some(response) = self.answer.find(response) else { return false };
        let answer = extract::extract(response, &self.search_options(false));
        if answer.readings.is_empty() && answer.text.is_empty() {
            return false;
        }
        let rules = equal::Rules {
            precision: self.precision.min(30),
            strict: self.strict,
            relation_for_set: self.relation_for_set,
        };
        self.truths(truth).iter().any(|truth| {
            if truth.differs_in_units(&answer) {
                return false;
            }
            let same = !truth.text.is_empty() && truth.text == answer.text;
            let is_answered = |truth: &Expr| {
                answer.readings_for(truth).any(|answer| equal::equal(truth, answer, rules))
            };
            let is_zero_or_one = |value: &Expr| {
                let found = value.number().map(|number| &number.value);
                found.is_some_and(|found| [0, 1].map(number::integer).contains(found))
            };
            // If only one side has a percent sign, the other one may have left it out. A truth of 0 or 1 may be a probability.
            let without_sign = || match (&truth.percentage, &answer.percentage) {
                (Some(truth), None) => is_answered(truth),
                (None, Some(answer)) if !is_zero_or_one(answer) => {
                    truth.readings.iter().any(|truth| equal::equal(truth, answer, rules))
                }
                _ => false,
            };
            let have_units = !(truth.units.is_empty() && answer.units.is_empty());
            same || truth.readings.iter().any(is_answered) || (!have_units && without_sign())
        })
    }

    /// Returns the answers that count as the truth. A text without delimiters, boxes and `####` is the answer itself if it can be parsed or
    /// contains a backslash. Otherwise the answer is extracted from the text. If no answer can be extracted, the whole text is also
    /// returned.
    fn truths(&self, truth: &str) -> Vec<extract::Answer> {
        let whole = extract::parse_whole(truth);
        let within = ["$", "\\boxed", "\\(", "\\[", "####"].iter().any(|mark| truth.contains(mark));
        if !within && (!whole.readings.is_empty() || truth.contains('\\')) {
            return vec![whole];
        }
        let extracted = extract::extract(truth, &self.search_options(true));
        if extracted.readings.is_empty() { vec![whole, extracted] } else { vec![extracted] }
    }

    fn search_options(&self, truth: bool) -> extract::SearchOptions<'_> {
        extract::SearchOptions {
            targets: &self.targets,
            boxed: self.boxed_priority,
            markers: self.markers,
            unmarked: self.last_number || truth,
        }
    }

    /// Returns a copy in which the options of a JSON object replace the options of `self`. The keys are the names of the fields, or the
    /// names that Math-Verify uses: `match_types`, `allow_set_relation_comp` and `boxed_match_priority`.
    ///
    /// ```
    /// use rollpacker_math::Verifier;
    ///
    /// let options = serde_json::json!({ "precision": 2 });
    /// let rounded = Verifier::default().with(&options)?;
    /// assert!(rounded.is_correct("Answer: 3.14159", "3.14"));
    /// # Ok::<(), rollpacker_math::OptionsError>(())
    /// ```
    ///
    /// # Errors
    /// If `options` is not an object, or has an unknown key or a value of the wrong type.
    pub fn with(&self, options: &serde_json::Value) -> Result<Self, OptionsError> {
        // Otherwise, an array would be read as the values of all fields.
        let Some(keys) = options.as_object().map(serde_json::Map::keys) else {
            let found = format!("expected an object of options, found {options}");
            return Err(OptionsError(serde::de::Error::custom(found)));
        };
        let mut all = serde_json::to_value(self).map_err(OptionsError)?;
        let own = Self::deserialize(options).map_err(OptionsError)?;
        let own = serde_json::to_value(own).map_err(OptionsError)?;
        if let Some(all) = all.as_object_mut() {
            for key in keys {
                let key = renamed(key);
                all.insert(key.to_owned(), own[key].clone());
            }
        }
        serde_json::from_value(all).map_err(OptionsError)
    }
}

/// Returns the name of an option for the name that Math-Verify uses. Returns any other name unchanged.
fn renamed(option: &str) -> &str {
    match option {
        "match_types" => "targets",
        "allow_set_relation_comp" => "relation_for_set",
        "boxed_match_priority" => "boxed_priority",
        other => other,
    }
}

fn regex(pattern: &str) -> regex::Regex {
    let pattern = regex::RegexBuilder::new(pattern).size_limit(64 << 20).build();
    pattern.expect("invariant: the pattern is a constant that a test compiles")
}
