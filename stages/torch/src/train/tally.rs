//! The sums that a step accumulates besides its gradient, and the metrics that follow from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::train::Sequence;
use tch::{Kind, TchError, Tensor};

use super::Metrics;
use super::{PartialError, Total};

/// The divisor of the loss: the weighted number of tokens or of responses.
const DENOMINATOR: &str = "denominator";
/// The number of response tokens, before any is rejected.
pub(crate) const TOKENS: &str = "tokens";
/// The number of tokens that are not rejected. Absent without rejection, where all tokens are kept.
pub(crate) const KEPT_TOKENS: &str = "kept tokens";
/// The number of responses with at least one token.
pub(crate) const SEQUENCES: &str = "sequences";
/// The sum of the importance weights. Each response counts with its weight in the loss. Absent unless weights are divided by their mean.
pub(crate) const IMPORTANCE: &str = "importance";
/// The number of importance weights in the sum [`IMPORTANCE`]. Each response counts with its weight in the loss.
pub(crate) const IMPORTANCE_TERMS: &str = "importance terms";

/// Importance weights are divided by their mean only if the mean exceeds this value, as in verl.
const MIN_IMPORTANCE: f64 = 1e-8;

/// The reduction of a term over the tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TermReduction {
    /// Sum of values that include the token's factor in the loss, divided by the denominator of the loss.
    Loss,
    /// Like `Loss`, for values that include importance weights. Also divided by the mean of the weights if the configuration normalizes
    /// them.
    Policy,
    /// Sum divided by the number of tokens.
    Tokens,
    /// Sum divided by the number of tokens that are not rejected.
    KeptTokens,
    /// Sum divided by the number of responses.
    Sequences,
    /// Maximum over the step.
    Max,
    /// Sum from which metrics are computed. The sum itself is not a metric.
    Part,
}

impl TermReduction {
    const ALL: [(Self, &str); 7] = [
        (Self::Loss, "loss"),
        (Self::Policy, "policy"),
        (Self::Tokens, "mean"),
        (Self::KeptTokens, "kept mean"),
        (Self::Sequences, "sequence mean"),
        (Self::Max, "max"),
        (Self::Part, "part"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(reduction, _)| *reduction == self).map_or("", |(_, name)| name)
    }
}

/// Terms of a micro-batch, by the name of their metric. Each is added as values `[tokens]`. Only their sum or maximum is held, on their
/// device.
#[derive(Default)]
pub(crate) struct Terms {
    names: Vec<(&'static str, TermReduction)>,
    values: Vec<Tensor>,
}

/// The numbers of [`Terms`] in one tensor, so that one transfer reads all of them.
pub(crate) struct ReducedTerms {
    names: Vec<(&'static str, TermReduction)>,
    /// `[terms]`, float64.
    values: Tensor,
}

impl Terms {
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        reduction: TermReduction,
        values: &Tensor,
    ) -> Result<(), TchError> {
        let values = values.f_detach()?.f_to_kind(Kind::Double)?;
        self.names.push((name, reduction));
        self.values.push(match reduction {
            TermReduction::Max => values.f_max()?,
            _ => values.f_sum(Kind::Double)?,
        });
        Ok(())
    }

    pub(crate) fn reduce(self) -> Result<ReducedTerms, TchError> {
        Ok(ReducedTerms { names: self.names, values: Tensor::f_stack(&self.values, 0)? })
    }
}

/// Sums of a step or of a part of it, by name. Sums of parts add up to the sum of the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepSums(BTreeMap<Cow<'static, str>, (TermReduction, f64)>);

impl StepSums {
    /// Creates the sums of a micro-batch. If the device is not the CPU, this takes one transfer.
    pub(crate) fn of(
        denominator: f64,
        tokens: usize,
        reduced: &ReducedTerms,
    ) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(&reduced.values)?;
        let divisors = [(DENOMINATOR, denominator), (TOKENS, tokens as f64)]
            .map(|(name, value)| (Cow::Borrowed(name), (TermReduction::Part, value)));
        let named = reduced.names.iter().zip(values);
        let named =
            named.map(|(&(name, reduction), value)| (Cow::Borrowed(name), (reduction, value)));
        Ok(Self(divisors.into_iter().chain(named).collect()))
    }

    pub(crate) fn denominator(&self) -> f64 {
        self.value(DENOMINATOR)
    }

    /// Returns the mean by which importance weights are divided; `None` if weights are not divided by their mean, or the mean is too small.
    pub(crate) fn mean_importance(&self) -> Option<f64> {
        let mean = self.value(IMPORTANCE) / self.value(IMPORTANCE_TERMS);
        (mean > MIN_IMPORTANCE).then_some(mean)
    }

    /// Returns the divisor of the policy loss and of its gradient: the denominator, times the mean of the importance weights if the weights
    /// are divided by their mean.
    pub(crate) fn policy_divisor(&self) -> f64 {
        self.denominator() * self.mean_importance().unwrap_or(1.0)
    }

    /// Adds `more` to the sum `name`, or raises the maximum `name` to `more`.
    pub(crate) fn add_to(&mut self, name: &'static str, reduction: TermReduction, more: f64) {
        self.add_term(Cow::Borrowed(name), reduction, more);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, &(reduction, value)) in &other.0 {
            self.add_term(name.clone(), reduction, value);
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.0.values().all(|(_, value)| value.is_finite())
    }

    /// Returns the metrics of a step, without the sums of [`TermReduction::Part`]. A metric whose divisor is not positive is left out.
    pub(crate) fn metrics(&self) -> Metrics {
        let metric = |(name, &(reduction, value)): (&Cow<'static, str>, &(TermReduction, f64))| {
            let divisor = self.divisor(reduction)?;
            (divisor > 0.0).then(|| (name.to_string(), value / divisor))
        };
        self.0.iter().filter_map(metric).collect()
    }

    fn divisor(&self, reduction: TermReduction) -> Option<f64> {
        Some(match reduction {
            TermReduction::Loss => self.denominator(),
            TermReduction::Policy => self.policy_divisor(),
            TermReduction::Tokens => self.value(TOKENS),
            TermReduction::KeptTokens if self.0.contains_key(KEPT_TOKENS) => {
                self.value(KEPT_TOKENS)
            }
            TermReduction::KeptTokens => self.value(TOKENS),
            TermReduction::Sequences => self.value(SEQUENCES),
            TermReduction::Max => 1.0,
            TermReduction::Part => return None,
        })
    }

    /// Returns a sum by its name; 0 if there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.0.get(name).map_or(0.0, |&(_, value)| value)
    }

    /// Adds `more` to a sum, or raises a maximum to `more`. Returns `true` if the term existed before.
    fn add_term(&mut self, name: Cow<'static, str>, reduction: TermReduction, more: f64) -> bool {
        match self.0.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((reduction, more));
                false
            }
            Entry::Occupied(mut entry) => {
                let (_, value) = entry.get_mut();
                *value =
                    if reduction == TermReduction::Max { value.max(more) } else { *value + more };
                true
            }
        }
    }
}

/// The unit of computation: some responses to a prompt, identified by the first of these responses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit {
    pub(crate) prompt: PromptId,
    pub(crate) sample: u32,
}

impl Unit {
    /// Returns the unit whose first response is `sequence`.
    pub(crate) fn of(sequence: &Sequence<'_>) -> Self {
        Self { prompt: sequence.prompt, sample: sequence.sample }
    }
}

/// The sums of each unit. They are added up in the order of the units, independent of the order of their arrival.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tallies(BTreeMap<Unit, StepSums>);

impl Tallies {
    /// Adds the tally of a unit. If `once` is `true`, a second tally of the same unit is an error; otherwise the two are added.
    pub(crate) fn add(
        &mut self,
        unit: Unit,
        tally: &StepSums,
        once: bool,
    ) -> Result<(), PartialError> {
        if once && self.0.contains_key(&unit) {
            return Err(unit.repeated_error());
        }
        self.0.entry(unit).or_default().add(tally);
        Ok(())
    }

    pub(crate) fn sum(&self) -> StepSums {
        let mut sum = StepSums::default();
        self.0.values().for_each(|tally| sum.add(tally));
        sum
    }

    /// Returns the totals for other replicas. The name of a total is `MODEL:REDUCTION:NAME`.
    pub(crate) fn totals(&self, model: &str) -> Vec<Total> {
        let of_unit = |(unit, tally): (&Unit, &StepSums)| {
            let Unit { prompt, sample } = *unit;
            let total =
                |(name, &(reduction, value)): (&Cow<'static, str>, &(TermReduction, f64))| {
                    let name = format!("{model}:{}:{name}", reduction.name());
                    Total { prompt, sample, name, value }
                };
            tally.0.iter().map(total).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_unit).collect()
    }

    /// Adds the entries of `totals` that belong to `model`. `totals` are the totals of all replicas. If `once` is `true`, a repeated unit
    /// is an error; otherwise its totals are added in the order given. Returns an error if the name of a total does not have the form that
    /// [`totals`](Self::totals) returns.
    pub(crate) fn add_totals(
        &mut self,
        totals: &[Total],
        model: &str,
        once: bool,
    ) -> Result<(), PartialError> {
        let mut found: BTreeMap<Unit, StepSums> = BTreeMap::new();
        for total in totals {
            let (of, reduction, name) = parse(&total.name)?;
            let unit = Unit { prompt: total.prompt, sample: total.sample };
            if of != model {
                continue;
            }
            let name = Cow::Owned(name.to_owned());
            if found.entry(unit).or_default().add_term(name, reduction, total.value) && once {
                return Err(unit.repeated_error());
            }
        }
        found.iter().try_for_each(|(&unit, tally)| self.add(unit, tally, once))
    }
}

impl Unit {
    fn repeated_error(self) -> PartialError {
        PartialError::Repeated { prompt: self.prompt, sample: self.sample }
    }
}

/// Splits the name of a [`Total`] into model, reduction and metric.
fn parse(name: &str) -> Result<(&str, TermReduction, &str), PartialError> {
    let unknown_total = || PartialError::Total { name: name.to_owned() };
    let (model, rest) = name.split_once(':').ok_or_else(unknown_total)?;
    let (reduction, metric) = rest.split_once(':').ok_or_else(unknown_total)?;
    let known = TermReduction::ALL.iter().find(|(_, name)| *name == reduction);
    known.map(|&(reduction, _)| (model, reduction, metric)).ok_or_else(unknown_total)
}

#[cfg(test)]
mod tests;
