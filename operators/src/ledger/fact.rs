//! The facts that are summarized at each step, as records of one differential collection.
//!
//! All kinds of facts share one type, and all sums share another, because differential dataflow compiles an arrangement and a reduction for
//! every combination of types.

use rollpacker_dataflow::differential_dataflow::difference::{IsZero, Multiply, Semigroup};
use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};

use super::bias::WeightSums;
use super::facts::{Facts, Launches, Length};
use super::pairs::{Pair, Products};

/// A fact, without its [`Sums`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) enum Fact {
    /// The responses with a fact about their length. Sums: [`WeightSums`].
    Length(Length),
    /// The pairs of responses with a fact about them. Sums: [`Products`].
    Pair(Pair),
    /// All dataset rows. Sums: the number of rows, the sum over rows of the squared deviations of the lengths from the mean length of the
    /// row, and the sum of the [`Launches`] of all rows.
    Rows,
    /// The prompts that are deferred now and were first deferred at this step. Sums: their number.
    Waiting(Step),
    /// All test cases with an anchor. Sums: their number, and the sum of the anchors in nanoseconds.
    Anchors,
    /// All audited executions that exceeded their time limit. Sums: their number, and the number of correct executions among them.
    Audits,
}

/// The subject of facts. All facts of a topic are summarized together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub(super) enum Topic {
    Lengths,
    Pairs,
    Rows,
    Waiting,
    Anchors,
    Audits,
}

impl Fact {
    /// Returns the facts of a step with their sums. Facts about rows are left out, because they are first summed by row.
    pub(super) fn of_step(facts: &Facts) -> impl Iterator<Item = (Self, Sums)> {
        let lengths =
            facts.lengths.iter().map(|(length, sums)| (Self::Length(*length), Sums::from(*sums)));
        let pairs = facts.pairs.iter().map(|(pair, sums)| (Self::Pair(*pair), Sums::from(sums)));
        let waiting = facts
            .waiting
            .iter()
            .map(|(since, change)| (Self::Waiting(*since), Sums::of([*change])));
        lengths.chain(pairs).chain(waiting)
    }

    pub(super) fn topic(&self) -> Topic {
        match self {
            Self::Length(_) => Topic::Lengths,
            Self::Pair(_) => Topic::Pairs,
            Self::Rows => Topic::Rows,
            Self::Waiting(_) => Topic::Waiting,
            Self::Anchors => Topic::Anchors,
            Self::Audits => Topic::Audits,
        }
    }
}

/// The sums of a fact or of a dataset row, as a difference type. The leading values are the sums that [`Fact`] states, or the [`Launches`]
/// of a row. The other values are 0.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(super) struct Sums([i64; 8]);

impl Sums {
    pub(super) fn of<const N: usize>(values: [i64; N]) -> Self {
        const { assert!(N <= 8) };
        let mut sums = Self::default();
        sums.0[..N].copy_from_slice(&values);
        sums
    }

    /// Returns the first `N` values.
    pub(super) fn first<const N: usize>(&self) -> [i64; N] {
        const { assert!(N <= 8) };
        std::array::from_fn(|at| self.0[at])
    }

    /// Returns the contribution of a dataset row to [`Fact::Rows`].
    pub(super) fn of_row(launches: &Self) -> Self {
        let [launched, n, s, q, trained, scores] = launches.first();
        let square = || i128::from(s) * i128::from(s) / i128::from(n);
        let within = if n > 0 { i128::from(q) - square() } else { 0 };
        let within = i64::try_from(within).unwrap_or(0);
        Self([1, within, launched, n, s, q, trained, scores])
    }
}

impl From<WeightSums> for Sums {
    fn from(WeightSums { count, weight, square }: WeightSums) -> Self {
        Self::of([count, weight, square])
    }
}

impl From<&Products> for Sums {
    fn from(products: &Products) -> Self {
        Self::of(products.sums())
    }
}

impl From<&Launches> for Sums {
    fn from(launches: &Launches) -> Self {
        Self::of(launches.sums())
    }
}

impl IsZero for Sums {
    fn is_zero(&self) -> bool {
        *self == Self::default()
    }
}

impl Semigroup for Sums {
    fn plus_equals(&mut self, other: &Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, more)| *sum += more);
    }
}

impl Multiply<i64> for Sums {
    type Output = Self;

    fn multiply(self, times: &i64) -> Self {
        Self(self.0.map(|sum| sum * times))
    }
}
