//! The sums that a step accumulates besides its gradient, and the metrics that follow from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rollpacker_dataflow::step::PromptId;
use rollpacker_stages::train::Sequence;
use tch::{Kind, TchError, Tensor};

use super::Metrics;
use super::{PartialError, Total};

/// Weighted tokens or responses: the divisor of the loss.
const DENOMINATOR: &str = "denominator";
/// The number of tokens that carry loss before any is rejected.
pub(crate) const TOKENS: &str = "tokens";
/// The number of tokens that rejection sampling keeps. Absent without rejection, where it is that of all tokens.
pub(crate) const KEPT_TOKENS: &str = "kept tokens";
/// The number of responses.
pub(crate) const SEQUENCES: &str = "sequences";
/// The sum of the importance weights and their number, from which their mean is computed. Each response counts with its weight in the loss.
pub(crate) const IMPORTANCE: &str = "importance";
pub(crate) const IMPORTANCE_TERMS: &str = "importance terms";

/// The mean of importance weights at and below which they are not divided by it, as in verl.
const LEAST_IMPORTANCE: f64 = 1e-8;

/// The reduction of a term over the tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
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
    Largest,
    /// Sum that metrics are computed from. It is not a metric.
    Part,
}

impl Over {
    const ALL: [(Self, &str); 7] = [
        (Self::Loss, "loss"),
        (Self::Policy, "policy"),
        (Self::Tokens, "mean"),
        (Self::KeptTokens, "kept mean"),
        (Self::Sequences, "sequence mean"),
        (Self::Largest, "max"),
        (Self::Part, "part"),
    ];

    fn name(self) -> &'static str {
        Self::ALL.iter().find(|(over, _)| *over == self).map_or("", |(_, name)| name)
    }
}

/// Terms of the tokens of a micro-batch, by the name of their metric. Each is `[tokens]`.
#[derive(Default)]
pub(crate) struct Terms {
    names: Vec<(&'static str, Over)>,
    values: Vec<Tensor>,
}

/// [`Terms`] reduced to one number each.
pub(crate) struct Reduced {
    names: Vec<(&'static str, Over)>,
    /// `[terms]`, float64.
    values: Tensor,
}

impl Terms {
    pub(crate) fn add(
        &mut self,
        name: &'static str,
        over: Over,
        values: &Tensor,
    ) -> Result<(), TchError> {
        let values = values.f_detach()?.f_to_kind(Kind::Double)?;
        self.names.push((name, over));
        self.values.push(match over {
            Over::Largest => values.f_max()?,
            _ => values.f_sum(Kind::Double)?,
        });
        Ok(())
    }

    pub(crate) fn reduce(self) -> Result<Reduced, TchError> {
        Ok(Reduced { names: self.names, values: Tensor::f_stack(&self.values, 0)? })
    }
}

/// Sums of a step or of a part of it, by name. Sums of parts add up to the sum of the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct StepSums(BTreeMap<Cow<'static, str>, (Over, f64)>);

impl StepSums {
    /// Creates the tally of a micro-batch. If the device is not the CPU, this takes one transfer.
    pub(crate) fn of(denominator: f64, tokens: usize, reduced: &Reduced) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(&reduced.values)?;
        let divisors = [(DENOMINATOR, denominator), (TOKENS, tokens as f64)]
            .map(|(name, value)| (Cow::Borrowed(name), (Over::Part, value)));
        let named = reduced.names.iter().zip(values);
        let named = named.map(|(&(name, over), value)| (Cow::Borrowed(name), (over, value)));
        Ok(Self(divisors.into_iter().chain(named).collect()))
    }

    /// Returns the denominator of the loss: weighted tokens or responses.
    pub(crate) fn denominator(&self) -> f64 {
        self.value(DENOMINATOR)
    }

    /// Returns the mean by which importance weights are divided; `None` if they are not.
    pub(crate) fn mean_importance(&self) -> Option<f64> {
        let mean = self.value(IMPORTANCE) / self.value(IMPORTANCE_TERMS);
        (mean > LEAST_IMPORTANCE).then_some(mean)
    }

    /// Returns the divisor of the policy loss and of its gradient: the denominator, times the mean of the importance weights if these are
    /// divided by it.
    pub(crate) fn policy_divisor(&self) -> f64 {
        self.denominator() * self.mean_importance().unwrap_or(1.0)
    }

    /// Adds `more` to the sum `name`, or raises the maximum `name` to it.
    pub(crate) fn add_to(&mut self, name: &'static str, over: Over, more: f64) {
        self.add_term(Cow::Borrowed(name), over, more);
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, &(over, value)) in &other.0 {
            self.add_term(name.clone(), over, value);
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.0.values().all(|(_, value)| value.is_finite())
    }

    /// Returns the metrics of a step: those whose divisor is positive.
    pub(crate) fn metrics(&self) -> Metrics {
        let metric = |(name, &(over, value)): (&Cow<'static, str>, &(Over, f64))| {
            let divisor = self.divisor(over)?;
            (divisor > 0.0).then(|| (name.to_string(), value / divisor))
        };
        self.0.iter().filter_map(metric).collect()
    }

    fn divisor(&self, over: Over) -> Option<f64> {
        Some(match over {
            Over::Loss => self.denominator(),
            Over::Policy => self.policy_divisor(),
            Over::Tokens => self.value(TOKENS),
            Over::KeptTokens if self.0.contains_key(KEPT_TOKENS) => self.value(KEPT_TOKENS),
            Over::KeptTokens => self.value(TOKENS),
            Over::Sequences => self.value(SEQUENCES),
            Over::Largest => 1.0,
            Over::Part => return None,
        })
    }

    /// Returns a sum by its name; 0 if there is none.
    pub(crate) fn value(&self, name: &str) -> f64 {
        self.0.get(name).map_or(0.0, |&(_, value)| value)
    }

    /// Adds to a term. Returns `true` if the term existed before.
    fn add_term(&mut self, name: Cow<'static, str>, over: Over, more: f64) -> bool {
        match self.0.entry(name) {
            Entry::Vacant(entry) => {
                entry.insert((over, more));
                false
            }
            Entry::Occupied(mut entry) => {
                let (_, value) = entry.get_mut();
                *value = if over == Over::Largest { value.max(more) } else { *value + more };
                true
            }
        }
    }
}

/// The unit of computation: some responses to a prompt, identified by the first of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Unit {
    pub(crate) prompt: PromptId,
    pub(crate) sample: u32,
}

impl Unit {
    /// Returns the unit of a response that is computed alone, or first.
    pub(crate) fn of(sequence: &Sequence<'_>) -> Self {
        Self { prompt: sequence.prompt, sample: sequence.sample }
    }
}

/// Tallies that are summed in the order of their units, independent of the order of their arrival.
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
            return Err(unit.repeated());
        }
        self.0.entry(unit).or_default().add(tally);
        Ok(())
    }

    pub(crate) fn sum(&self) -> StepSums {
        let mut sum = StepSums::default();
        self.0.values().for_each(|tally| sum.add(tally));
        sum
    }

    /// Returns the totals for other replicas. Their names begin with the name of the `model`.
    pub(crate) fn totals(&self, model: &str) -> Vec<Total> {
        let of_unit = |(unit, tally): (&Unit, &StepSums)| {
            let Unit { prompt, sample } = *unit;
            let total = |(name, &(over, value)): (&Cow<'static, str>, &(Over, f64))| {
                let name = format!("{model}:{}:{name}", over.name());
                Total { prompt, sample, name, value }
            };
            tally.0.iter().map(total).collect::<Vec<_>>()
        };
        self.0.iter().flat_map(of_unit).collect()
    }

    /// Adds the totals of all replicas that belong to `model`. If `once` is `true`, a repeated unit is an error; otherwise its totals are
    /// added in the order given.
    pub(crate) fn take_in(
        &mut self,
        totals: &[Total],
        model: &str,
        once: bool,
    ) -> Result<(), PartialError> {
        let mut found: BTreeMap<Unit, StepSums> = BTreeMap::new();
        for total in totals {
            let (of, over, name) = parse(&total.name)?;
            let unit = Unit { prompt: total.prompt, sample: total.sample };
            if of != model {
                continue;
            }
            let name = Cow::Owned(name.to_owned());
            if found.entry(unit).or_default().add_term(name, over, total.value) && once {
                return Err(unit.repeated());
            }
        }
        found.iter().try_for_each(|(&unit, tally)| self.add(unit, tally, once))
    }
}

impl Unit {
    fn repeated(self) -> PartialError {
        PartialError::Repeated { prompt: self.prompt, sample: self.sample }
    }
}

/// Splits the name of a [`Total`] into model, reduction and metric.
fn parse(name: &str) -> Result<(&str, Over, &str), PartialError> {
    let unknown_total = || PartialError::Total { name: name.to_owned() };
    let (model, rest) = name.split_once(':').ok_or_else(unknown_total)?;
    let (over, metric) = rest.split_once(':').ok_or_else(unknown_total)?;
    let known = Over::ALL.iter().find(|(_, name)| *name == over);
    known.map(|&(over, _)| (model, over, metric)).ok_or_else(unknown_total)
}

#[cfg(test)]
mod tests;
