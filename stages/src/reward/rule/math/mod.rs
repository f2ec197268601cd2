//! Answers in mathematics: which part of a response is its answer, and whether that equals the truth.
//!
//! An answer is extracted (`extract`), read as LaTeX or plain text (`parse`) into a tree (`expr`), and compared to the truth
//! (`equal`): exactly where there is a normal form (`normal`: quotients of polynomials over the rationals, π, e, i and square roots),
//! else at several points that a seed determines (`evaluate`; tolerance 1e-9). Work is counted in steps and bounded, nesting and sizes
//! are limited: any input costs some hundred milliseconds at most.
//!
//! The named modes of veRL, which compare strings, are in [`verl`].

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

use serde::{Deserialize, Serialize};

use self::expr::Expr;
use crate::reward::{Context, Reward, RewardError, Sample, Score};

pub use extract::Target;
pub(super) use extract::boxes;

/// One point if the final answer of a response equals the ground truth, else none.
///
/// The answer is what the response marks as such, the last marker winning: `\boxed{...}`, `#### ...`, `<answer>...</answer>`,
/// `Answer: ...`, `A:...`, "the final answer is"; else the last formula or number. Equality is that of values: of numbers, fractions,
/// percentages, sets, intervals, tuples, matrices, equations, inequalities and expressions with variables, units aside.
///
/// A row of a dataset may set these options for itself in the object `math` of its `extra_info`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Math {
    /// Whether the last formula or number of a response without a marker counts as its answer.
    pub last_number: bool,
    /// What answers may be written in.
    #[serde(alias = "match_types")]
    pub targets: Vec<Target>,
    /// Decimal places to which numbers with a decimal point are rounded before they are compared; at most 30.
    pub precision: u32,
    /// Whether the names of variables matter, and whether sets differ from tuples.
    pub strict: bool,
    /// Whether an inequality may answer a truth that is a set; a set may always answer an inequality.
    #[serde(alias = "allow_set_relation_comp")]
    pub relation_for_set: bool,
    /// Priority of boxes and other markers: 0 beside "the final answer is ... I hope", 50 beside "the final answer is"; negative if boxes
    /// do not count.
    #[serde(alias = "boxed_match_priority")]
    pub boxed_priority: i32,
    /// Whether `####`, `<answer>`, `Answer:` and `A:` mark answers.
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
    /// Whether the answer of a response equals that of the truth.
    ///
    /// The truth is an answer by itself, or a text that contains one as a response does.
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

    /// The truth as it is written, if it can be read so or is LaTeX that cannot; else what is extracted from it.
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

    /// These options with some of a row's own.
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

/// The name of an option that Math-Verify calls otherwise.
fn renamed(option: &str) -> &str {
    match option {
        "match_types" => "targets",
        "allow_set_relation_comp" => "relation_for_set",
        "boxed_match_priority" => "boxed_priority",
        other => other,
    }
}
