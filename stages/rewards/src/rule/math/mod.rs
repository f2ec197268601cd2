//! The reward `math`: extraction of a mathematical answer and comparison with the ground truth.
//!
//! An answer is extracted (`extract`), parsed from LaTeX or plain text (`parse`) into a tree (`expr`), and compared with the truth
//! (`equal`). The comparison is exact if both have a normal form (`normal`: quotients of polynomials over the rationals, π, e, i and square
//! roots). Otherwise they are evaluated at several points that a seed determines (`evaluate`; tolerance 1e-9). The number of steps, the
//! nesting depth and the sizes are bounded, so that any input takes at most a few hundred milliseconds.
//!
//! The modes of verl that compare strings are in [`verl`].

mod definition;
mod equal;
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
pub mod verl;
mod work;

use rollpacker_stages::reward::{Context, Reward, RewardError, Sample, Score};
use serde::{Deserialize, Serialize};

use self::expr::Expr;

pub use extract::Target;
pub(super) use extract::boxes;

/// 1 if the final answer of a response equals the ground truth, otherwise 0.
///
/// The answer is the one that the response marks, where the last marker wins: `\boxed{...}`, `#### ...`, `<answer>...</answer>`,
/// `Answer: ...`, `A:...`, "the final answer is". Without a marker, it is the last formula or number. Answers are compared by value:
/// numbers, fractions, percentages, sets, intervals, tuples, matrices, equations, inequalities and expressions with variables. Units are
/// ignored.
///
/// A dataset row can override these options in the object `math` of its `extra_info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Math {
    /// `true` (default) if the last formula or number of a response without a marker counts as its answer.
    pub last_number: bool,
    /// The accepted notations of answers; all by default.
    #[serde(alias = "match_types")]
    pub targets: Vec<Target>,
    /// Number of decimal places to which numbers with a decimal point are rounded before they are compared, at most 30; 6 by default.
    pub precision: u32,
    /// `true` (default) if the names of variables matter and sets differ from tuples.
    pub strict: bool,
    /// `true` if an inequality may answer a truth that is a set; `false` by default. A set may always answer an inequality.
    #[serde(alias = "allow_set_relation_comp")]
    pub relation_for_set: bool,
    /// Priority of boxes and other markers; 0 by default. 0 is that of "the final answer is ... I hope", 50 that of "the final answer is".
    /// Boxes are ignored if it is negative.
    #[serde(alias = "boxed_match_priority")]
    pub boxed_priority: i32,
    /// `true` (default) if `####`, `<answer>`, `Answer:` and `A:` mark answers.
    pub markers: bool,
}

impl Default for Math {
    fn default() -> Self {
        Self {
            last_number: true,
            targets: vec![Target::Latex, Target::Expr],
            precision: 6,
            strict: true,
            relation_for_set: false,
            boxed_priority: 0,
            markers: true,
        }
    }
}

impl Reward for Math {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let truth = sample.truth()?;
        let score = match sample.extra()?.remove("math") {
            None => self.is_correct(&sample.response, truth),
            Some(options) => self.with(options)?.is_correct(&sample.response, truth),
        };
        Ok(score.into())
    }
}

impl Math {
    /// Returns `true` if the answer of a response equals the truth.
    ///
    /// The truth is either an answer by itself or a text that contains one, like a response.
    #[must_use]
    pub fn is_correct(&self, response: &str, truth: &str) -> bool {
        let answer = extract::extract(response, &self.places(false));
        if answer.readings.is_empty() && answer.text.is_empty() {
            return false;
        }
        let rules = equal::Rules {
            precision: self.precision.min(30),
            strict: self.strict,
            relation_for_set: self.relation_for_set,
        };
        self.truths(truth).iter().any(|truth| {
            let same = !truth.text.is_empty() && truth.text == answer.text;
            let is_answered = |truth: &Expr| {
                answer.readings_for(truth).any(|answer| equal::equal(truth, answer, rules))
            };
            same || truth.readings.iter().any(is_answered)
        })
    }

    /// Returns the truth as written if it can be parsed as a whole, or if it is LaTeX that cannot be parsed; otherwise the answer extracted
    /// from it.
    fn truths(&self, truth: &str) -> Vec<extract::Answer> {
        let whole = extract::whole(truth);
        let within = ["$", "\\boxed", "\\(", "\\[", "####"].iter().any(|mark| truth.contains(mark));
        if !within && (!whole.readings.is_empty() || truth.contains('\\')) {
            return vec![whole];
        }
        let extracted = extract::extract(truth, &self.places(true));
        if extracted.readings.is_empty() { vec![whole, extracted] } else { vec![extracted] }
    }

    fn places(&self, truth: bool) -> extract::Places<'_> {
        extract::Places {
            targets: &self.targets,
            boxed: self.boxed_priority,
            markers: self.markers,
            unmarked: self.last_number || truth,
        }
    }

    /// Returns the options with the overrides of a dataset row.
    fn with(&self, options: serde_json::Value) -> Result<Self, RewardError> {
        let fault = |error: serde_json::Error| {
            RewardError::fatal(format_args!("field `extra_info.math`: {error}"))
        };
        let mut all = serde_json::to_value(self).map_err(fault)?;
        let own: Self = serde_json::from_value(options.clone()).map_err(fault)?;
        let own = serde_json::to_value(own).map_err(fault)?;
        if let (Some(all), Some(options)) = (all.as_object_mut(), options.as_object()) {
            for key in options.keys() {
                let key = renamed(key);
                all.insert(key.to_owned(), own[key].clone());
            }
        }
        serde_json::from_value(all).map_err(fault)
    }
}

/// Translates the names that Math-Verify uses for options.
fn renamed(option: &str) -> &str {
    match option {
        "match_types" => "targets",
        "allow_set_relation_comp" => "relation_for_set",
        "boxed_match_priority" => "boxed_priority",
        other => other,
    }
}
