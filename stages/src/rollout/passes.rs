//! Passes of the network whose shapes do not show in what is computed.
//!
//! A matrix kernel sums in an order that hangs on the number of rows; a vectorised one treats what is left at the end of its memory in
//! another way than the rest; attention sums over a padded extent. So the numbers of a token may differ in their last bits with what is
//! computed beside it. In passes every token, of a prompt or of a response, is a row of its own that attends over the cache of its slot,
//! rows come in multiples of a unit and no more than a bound at once, and extents in multiples of [`EXTENT`]: a row is computed in one of
//! few shapes, of which [`invariance`](super::invariance) has seen on this machine that they give the same bits. What is cached of a token
//! then depends on the tokens up to it alone, so that prefixes may be shared, given up and computed again.

use std::ops::Range;

use tch::{TchError, Tensor};

use super::kv_cache::{DecodePlan, KvCache};
use crate::model::network::Network;

/// Tokens of cache of which a row sees a multiple, masked beyond its own.
pub(super) const EXTENT: usize = 64;

/// How rows are cut into passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    /// Rows of a pass are a multiple of this; zeros fill up.
    pub(super) unit: usize,
    /// Rows of a pass at most: a multiple of the unit, and a divisor of [`EXTENT`].
    pub(super) most: usize,
    /// Rows attend together whose extents differ by no more.
    pub(super) slack: usize,
}

/// Tokens to run through the network, one a row.
pub(super) struct Rows<'a> {
    pub(super) tokens: &'a [i32],
    /// Of each token in its sequence.
    pub(super) positions: &'a [usize],
    pub(super) slots: Slots,
}

/// Where the rows of a pass are cached.
#[derive(Clone, Copy, Debug)]
pub(super) enum Slots {
    /// One row a slot, from this one on.
    From(usize),
    /// All in this one: positions ascend by one.
    In(usize),
}

impl Slots {
    fn after(self, rows: usize) -> Self {
        match self {
            Self::From(first) => Self::From(first + rows),
            Self::In(slot) => Self::In(slot),
        }
    }

    /// The slots of some of the rows.
    pub(super) fn of(self, rows: &Range<usize>) -> Range<i64> {
        match self {
            Self::From(first) => (first + rows.start) as i64..(first + rows.end) as i64,
            Self::In(slot) => slot as i64..slot as i64 + 1,
        }
    }
}

impl Passes {
    /// The rows of a pass of `rows`, those that fill up included.
    pub(super) fn padded(self, rows: usize) -> usize {
        rows.next_multiple_of(self.unit)
    }

    /// Cuts rows into passes, in order, and hands the hidden states of each to `take`: those of its rows in front.
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

/// Neighbours whose extents differ by at most `slack`, with the longest extent of them.
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
