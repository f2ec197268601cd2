//! The sums that a step accumulates besides its gradient, and the metrics that follow from them.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rollpacker_dataflow::step::PromptId;
use tch::{Kind, TchError, Tensor};

use super::Metrics;
use super::{PartialError, Total};

/// Weighted tokens or responses: the divisor of the loss.
const DENOMINATOR: &str = "denominator";
/// The number of tokens that carry loss.
const TOKENS: &str = "tokens";

/// The reduction of a term over the tokens of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Sum of values that include the token's factor in the loss, divided like the loss.
    Loss,
    /// Sum divided by the number of tokens.
    Tokens,
    /// Maximum over the step.
    Largest,
    /// Sum that other sums are divided by. It is not a metric.
    Divisor,
}

impl Over {
    const ALL: [(Self, &str); 4] = [
        (Self::Loss, "loss"),
        (Self::Tokens, "mean"),
        (Self::Largest, "max"),
        (Self::Divisor, "divisor"),
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
            Over::Loss | Over::Tokens | Over::Divisor => values.f_sum(Kind::Double)?,
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
            .map(|(name, value)| (Cow::Borrowed(name), (Over::Divisor, value)));
        let named = reduced.names.iter().zip(values);
        let named = named.map(|(&(name, over), value)| (Cow::Borrowed(name), (over, value)));
        Ok(Self(divisors.into_iter().chain(named).collect()))
    }

    /// Returns the divisor of the loss: weighted tokens or responses.
    pub(crate) fn denominator(&self) -> f64 {
        self.value(DENOMINATOR)
    }

    pub(crate) fn add(&mut self, other: &Self) {
        for (name, &(over, value)) in &other.0 {
            self.add_term(name.clone(), over, value);
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.0.values().all(|(_, value)| value.is_finite())
    }

    /// Returns the metrics of a step.
    pub(crate) fn metrics(&self) -> Metrics {
        let (denominator, tokens) = (self.denominator(), self.value(TOKENS));
        let metric = |(name, &(over, value)): (&Cow<'static, str>, &(Over, f64))| {
            let value = match over {
                Over::Loss => value / denominator,
                Over::Tokens => value / tokens,
                Over::Largest => value,
                Over::Divisor => return None,
            };
            Some((name.to_string(), value))
        };
        self.0.iter().filter_map(metric).collect()
    }

    fn value(&self, name: &str) -> f64 {
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
    let strange = || PartialError::Total { name: name.to_owned() };
    let (model, rest) = name.split_once(':').ok_or_else(strange)?;
    let (over, metric) = rest.split_once(':').ok_or_else(strange)?;
    let known = Over::ALL.iter().find(|(_, name)| *name == over);
    known.map(|&(over, _)| (model, over, metric)).ok_or_else(strange)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(loss: f64, largest: f64) -> StepSums {
        let mut tally = StepSums::default();
        tally.add_term(Cow::Borrowed(DENOMINATOR), Over::Divisor, 2.0);
        tally.add_term(Cow::Borrowed(TOKENS), Over::Divisor, 4.0);
        tally.add_term(Cow::Borrowed("loss"), Over::Loss, loss);
        tally.add_term(Cow::Borrowed("clip:fraction"), Over::Tokens, 1.0);
        tally.add_term(Cow::Borrowed("largest"), Over::Largest, largest);
        tally
    }

    fn unit(prompt: u64, sample: u32) -> Unit {
        Unit { prompt: PromptId(prompt), sample }
    }

    #[test]
    fn each_sum_has_its_divisor() {
        let mut tallies = Tallies::default();
        tallies.add(unit(1, 0), &tally(3.0, 0.5), false).unwrap();
        tallies.add(unit(1, 0), &tally(5.0, 0.25), false).unwrap();
        let metrics = tallies.sum().metrics();
        let expect = [("clip:fraction", 0.25), ("largest", 0.5), ("loss", 2.0)];
        assert_eq!(metrics, expect.map(|(name, value)| (name.to_owned(), value)).into());
    }

    #[test]
    fn sums_are_in_the_order_of_units_through_any_replicas() {
        let units = [(unit(2, 0), 1e16), (unit(0, 4), 1.0), (unit(0, 0), -1e16)];
        let mut whole = Tallies::default();
        let mut replicas = [Tallies::default(), Tallies::default()];
        for (at, (unit, loss)) in units.into_iter().enumerate() {
            whole.add(unit, &tally(loss, 0.0), true).unwrap();
            replicas[at % 2].add(unit, &tally(loss, 0.0), true).unwrap();
        }
        let totals: Vec<_> = replicas.iter().rev().flat_map(|one| one.totals("policy")).collect();
        let mut reduced = Tallies::default();
        reduced.take_in(&totals, "policy", true).unwrap();
        assert_eq!(reduced, whole);
        // In the order of units: -1e16 + 1, then 1e16.
        assert_eq!(reduced.sum().metrics()["loss"], 0.0);
        let mut other = Tallies::default();
        other.take_in(&totals, "critic", true).unwrap();
        assert_eq!(other, Tallies::default());
    }

    #[test]
    fn what_came_twice_or_from_a_stranger_is_refused() {
        let mut tallies = Tallies::default();
        tallies.add(unit(7, 3), &tally(1.0, 0.0), true).unwrap();
        let expect = "received the responses of p7 from sample 3 on twice";
        let again = tallies.add(unit(7, 3), &tally(1.0, 0.0), true).unwrap_err();
        assert_eq!(again.to_string(), expect);
        let totals = tallies.totals("policy");
        assert_eq!(tallies.take_in(&totals, "policy", true).unwrap_err().to_string(), expect);
        for name in ["loss", "policy:loss", "policy:median:loss"] {
            let total = Total { name: name.to_owned(), ..totals[0].clone() };
            let error = tallies.take_in(&[total], "policy", true).unwrap_err().to_string();
            assert_eq!(error, format!("unknown total `{name}` in a partial gradient"));
        }
    }
}
