//! What a step adds up beside its gradient, and the metrics that this gives.

use std::collections::BTreeMap;

use tch::{Kind, TchError, Tensor};

use super::Metrics;

/// What becomes of a term of each token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Over {
    /// Times the token's factor in the loss already: the sum is divided as the loss is.
    Loss,
    /// The sum is divided by the tokens.
    Tokens,
    /// The largest of the step.
    Largest,
}

/// Terms of the tokens of a micro-batch, by the names of their metrics; each `[tokens]`.
#[derive(Default)]
pub(crate) struct Terms {
    names: Vec<(&'static str, Over)>,
    values: Vec<Tensor>,
}

/// [`Terms`], one number each.
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
            Over::Loss | Over::Tokens => values.f_sum(Kind::Double)?,
            Over::Largest => values.f_max()?,
        });
        Ok(())
    }

    pub(crate) fn reduce(self) -> Result<Reduced, TchError> {
        Ok(Reduced { names: self.names, values: Tensor::f_stack(&self.values, 0)? })
    }
}

/// Sums of a step or of a part of it; sums of parts add up to that of the whole.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tally {
    /// What the loss is divided by: weighted tokens or responses.
    pub(crate) denominator: f64,
    /// Tokens that the loss falls on.
    pub(crate) tokens: f64,
    terms: BTreeMap<&'static str, (Over, f64)>,
}

impl Tally {
    /// The tally of a micro-batch; one transfer where the device is not the CPU.
    pub(crate) fn of(denominator: f64, tokens: usize, reduced: &Reduced) -> Result<Self, TchError> {
        let values = Vec::<f64>::try_from(&reduced.values)?;
        let named = reduced.names.iter().zip(values);
        let terms = named.map(|(&(name, over), value)| (name, (over, value))).collect();
        Ok(Self { denominator, tokens: tokens as f64, terms })
    }

    pub(crate) fn add(&mut self, other: &Self) {
        self.denominator += other.denominator;
        self.tokens += other.tokens;
        for (&name, &(over, more)) in &other.terms {
            let merge = |value: &mut f64| match over {
                Over::Largest => *value = value.max(more),
                Over::Loss | Over::Tokens => *value += more,
            };
            self.terms.entry(name).and_modify(|(_, value)| merge(value)).or_insert((over, more));
        }
    }

    pub(crate) fn is_finite(&self) -> bool {
        self.terms.values().all(|(_, value)| value.is_finite())
    }

    /// The metrics of a step.
    pub(crate) fn metrics(&self) -> Metrics {
        let mean = |&(over, value): &(Over, f64)| match over {
            Over::Loss => value / self.denominator,
            Over::Tokens => value / self.tokens,
            Over::Largest => value,
        };
        self.terms.iter().map(|(&name, term)| (name.to_owned(), mean(term))).collect()
    }
}
