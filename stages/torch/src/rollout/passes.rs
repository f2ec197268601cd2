//! Passes of the network whose shapes do not affect the results.
//!
//! A matrix kernel sums in an order that depends on the number of rows, a vectorized kernel treats the remainder at the end of its memory
//! differently, and attention may sum over a padded extent. The last bits of a token's results may therefore depend on the rest of the
//! batch.
//!
//! In the passes of this module, every token of a prompt or of a response is its own row, which attends over the cache of its sequence. The
//! number of rows is a multiple of a unit and bounded, and padded extents are multiples of [`EXTENT`]. A row is therefore computed in one
//! of few shapes. [`invariance`](super::invariance) has tested on this machine that all these shapes give bit-identical results. The cache
//! entries of a token then depend only on the tokens up to it, so that prefixes can be shared, dropped and computed again.

use std::ops::Range;

use tch::{TchError, Tensor};

#[cfg(doc)]
use super::grouping::EXTENT;
use super::grouping::Grouping;
use super::kv_cache::{CacheRow, KvCache};
use crate::model::network::Network;

/// The way to split rows into passes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Passes {
    /// The number of rows of a pass is a multiple of this unit; a pass is padded with rows of token 0.
    pub(super) unit: usize,
    /// Maximum number of rows of a pass; a multiple of the unit. It divides [`EXTENT`], except in the test of
    /// [`invariance`](super::invariance).
    pub(super) max: usize,
    /// Maximum difference of the padded extents of rows that attend together, in tokens.
    pub(super) slack: usize,
}

/// Tokens to run through the network, one per row.
pub(super) struct Rows<'a> {
    pub(super) tokens: &'a [i32],
    pub(super) cache_rows: &'a [CacheRow],
}

impl Passes {
    /// Returns the number of rows of a pass of `rows` tokens, including padding.
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
        for start in (0..rows.tokens.len()).step_by(self.max) {
            let part = start..rows.tokens.len().min(start + self.max);
            let pass = Rows {
                tokens: &rows.tokens[part.clone()],
                cache_rows: &rows.cache_rows[part.clone()],
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
        let positions = column(&mut rows.cache_rows.iter().map(|row| row.position() as i64))?;
        let mut pass = cache.pass(rows.cache_rows, Grouping::Extents { slack: self.slack })?;
        network.forward(&ids, &positions, &mut |layer, q, k, v| {
            pass.write(layer, k, v)?;
            pass.attend(layer, q)
        })
    }
}
