//! The number of devices of an engine instance.

use rollpacker_operators::placement::planner::Rule;
use serde::{Deserialize, Serialize};

/// The name of a rule that chooses the number of devices of an instance.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PlannerRule {
    /// The number in the option `tensor_parallel`.
    Fixed,
    /// The number that follows from preemptions (RollPacker, section 4.3).
    Paper,
    /// The number with the shortest predicted round.
    Predictive,
}

/// The checked options of a parallelism planner.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PlannerOptions {
    /// The rule that chooses the number of devices of an instance.
    pub rule: Rule,
    /// The number of devices of an instance in the first round of each [kind](rollpacker_operators::schedule::RoundKind): full, short and
    /// long.
    pub tensor_parallel: u32,
}

impl From<PlannerRule> for Rule {
    /// Returns the rule, with the paper's numbers.
    fn from(name: PlannerRule) -> Self {
        match name {
            PlannerRule::Fixed => Self::Fixed,
            PlannerRule::Paper => Self::paper(),
            PlannerRule::Predictive => Self::Predictive,
        }
    }
}

impl PlannerOptions {
    /// Returns the degrees of tensor parallelism that a planner may choose for an engine instance, ascending: the powers of two that divide
    /// `devices`.
    pub fn parallelisms(devices: u32) -> impl Iterator<Item = u32> {
        let powers = std::iter::successors(Some(1_u32), |size| size.checked_mul(2));
        powers.take_while(move |size| devices.is_multiple_of(*size) && *size <= devices)
    }

    /// Returns the options; `None` if an instance always has one device.
    pub(super) fn if_several(self) -> Option<Self> {
        (self.rule != Rule::Fixed || self.tensor_parallel > 1).then_some(self)
    }

    /// Describes the instances on `devices` devices as a clause, such as `4 instances generate`.
    pub(super) fn describe(self, devices: u32) -> String {
        let Self { rule, tensor_parallel } = self;
        let instances = devices / tensor_parallel;
        let some = |count, noun| format!("{count} {noun}{}", if count == 1 { "" } else { "s" });
        let start = format!(
            "{} of {} generate",
            some(instances, "instance"),
            some(tensor_parallel, "device")
        );
        let cause = match rule {
            Rule::Fixed if tensor_parallel == 1 => {
                return format!("{instances} instances generate");
            }
            Rule::Fixed => return start,
            Rule::Paper { .. } => "preemptions",
            Rule::Predictive => "predicted time",
        };
        let largest = Self::parallelisms(devices).last().unwrap_or(1);
        format!("{start} at the start and instances of 1 to {largest} devices later, by {cause}")
    }
}
