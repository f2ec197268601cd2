//! Passes of the network whose shapes do not affect the results.
//!
//! A matrix kernel sums in an order that depends on the number of rows, a vectorized kernel treats the remainder at the end of its memory
//! differently, and attention sums over a padded extent. The last bits of a token's results may therefore depend on the rest of the batch.
//!
//! In passes every token, of a prompt or of a response, is its own row that attends over the cache of its slot. The number of rows is a
//! multiple of a unit and bounded, and extents are multiples of [`EXTENT`]. A row is therefore computed in one of few shapes, which
//! [`invariance`](super::invariance) has tested on this machine to give the same bits. The cache entries of a token then depend only on the
//! tokens up to it, so that prefixes can be shared, dropped and computed again.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::kv_cache::{DecodePlan, KvCache};
use crate::model::network::Network;

/// Granularity of the cache positions that a row attends to, in tokens; positions beyond the row's own are masked.
pub(super) const EXTENT: usize = 64;

/// The way to split rows into passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    /// The number of rows of a pass is a multiple of this; zero rows pad it.
    pub(super) unit: usize,
    /// Maximum number of rows of a pass: a multiple of the unit, and a divisor of [`EXTENT`].
    pub(super) most: usize,
    /// Rows attend together if their extents differ by at most this.
    pub(super) slack: usize,
}

/// Tokens to run through the network, one per row.
pub(super) struct Rows<'a> {
    pub(super) tokens: &'a [i32],
    /// Position of each token in its sequence.
    pub(super) positions: &'a [usize],
    pub(super) slots: Slots,
}

/// The slots that cache the rows of a pass.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slots {
    /// One row per slot, starting with this one.
    From(usize),
    /// All rows in this slot; their positions are consecutive.
    In(usize),
}

impl Slots {
    fn after(self, rows: usize) -> Self {
        match self {
            Self::From(first) => Self::From(first + rows),
            Self::In(slot) => Self::In(slot),
        }
    }

    /// Returns the slots of a range of rows.
    pub(super) fn of(self, rows: &Range<usize>) -> Range<i64> {
        match self {
            Self::From(first) => (first + rows.start) as i64..(first + rows.end) as i64,
            Self::In(slot) => slot as i64..slot as i64 + 1,
        }
    }
}

impl Passes {
    /// Returns the number of rows of a pass of `rows`, including padding.
    pub(super) fn padded(self, rows: usize) -> usize {
        rows.next_multiple_of(self.unit)
    }

    /// Splits rows into passes, in order, and calls `take` with the hidden states of each pass and the range of its rows. Padding rows come
    /// last.
    pub(super) fn run<N: Network>(
        self,
        network: &mut N,
        cache: &mut KvCache,
        rows: &Rows<'_>,
        mut take: impl FnMut(&mut N, Tensor, Range<usize>) -> Result<(), TchError>,
    ) -> Result<(), TchError> {
        for start in (0..rows.tokens.len()).step_by(self.most) {
            let part = start..rows.tokens.len().min(start + self.most);
            let pass = Rows {
                tokens: &rows.tokens[part.clone()],
                positions: &rows.positions[part.clone()],
                slots: rows.slots.after(start),
            };
            let hidden = self.pass(network, cache, &pass)?;
            take(network, hidden, part)?;
        }
        Ok(())
    }

    fn pass<N: Network>(
        self,
        network: &mut N,
        cache: &mut KvCache,
        rows: &Rows<'_>,
    ) -> Result<Tensor, TchError> {
        let padded = self.padded(rows.tokens.len());
        let column = |numbers: &mut dyn Iterator<Item = i64>| {
            let mut column: Vec<i64> = numbers.collect();
            column.resize(padded, 0);
            Tensor::f_from_slice(&column)?.f_to_device(network.device())
        };
        let ids = column(&mut rows.tokens.iter().copied().map(i64::from))?;
        let positions = column(&mut rows.positions.iter().map(|position| *position as i64))?;
        let lengths: Vec<usize> = rows.positions.iter().map(|position| position + 1).collect();
        let plan = self.plan(cache, &lengths, rows.slots)?;
        network.forward(&ids, &positions, &mut |layer, q, k, v| cache.decode(layer, &plan, q, k, v))
    }

    fn plan(
        self,
        cache: &KvCache,
        lengths: &[usize],
        slots: Slots,
    ) -> Result<DecodePlan, TchError> {
        let extents: Vec<usize> =
            lengths.iter().map(|length| length.next_multiple_of(EXTENT)).collect();
        cache.plan_in(lengths, slots, runs(&extents, self.slack).into_iter())
    }
}

/// Groups adjacent rows whose extents differ by at most `slack`. Each group has the longest extent of its rows.
fn runs(extents: &[usize], slack: usize) -> Vec<(Range<usize>, usize)> {
    let mut runs: Vec<(Range<usize>, usize)> = Vec::new();
    let mut shortest = 0;
    for (row, extent) in extents.iter().copied().enumerate() {
        match runs.last_mut() {
            Some((rows, longest)) if extent.max(*longest) - extent.min(shortest) <= slack => {
                rows.end = row + 1;
                *longest = extent.max(*longest);
                shortest = extent.min(shortest);
            }
            _ => {
                runs.push((row..row + 1, extent));
                shortest = extent;
            }
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_go_together_whose_extents_are_alike() {
        let extents = [256, 192, 256, 128, 64, 64];
        assert_eq!(runs(&extents, 64), [(0..3, 256), (3..6, 128)]);
        assert_eq!(
            runs(&extents, 0),
            [(0..1, 256), (1..2, 192), (2..3, 256), (3..4, 128), (4..6, 64)]
        );
        assert_eq!(runs(&[], 64), []);
    }
}
