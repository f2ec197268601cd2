//! The running batch: the assignment of responses to slots of the KV cache.

use std::ops::{Index, IndexMut, Range};

/// Rows whose lengths differ by less than this share a bucket. Wider buckets pad more, narrower ones move more rows.
const BUCKET: i64 = 32;

/// A row that has changed its slot, so that its KV entries must be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// The old slot.
    pub(super) from: usize,
    /// The new slot.
    pub(super) to: usize,
}

/// Rows in the slots `0..len`, ordered by length from the longest, up to the width of a bucket.
///
/// The slots stay contiguous so that attention reads the cache through views. They are ordered by length so that few views, each of rows of
/// similar length, cover the batch with little padding. Every row grows by one token per iteration, so the differences of the lengths, and
/// with them the order, do not change while the rows run. Adding or removing a row therefore moves at most one row of each later bucket.
#[derive(Clone, Debug)]
pub(super) struct RunningBatch<T> {
    rows: Vec<BatchRow<T>>,
    /// Number of iterations done; the length of a row minus this is constant.
    iterations: i64,
}

/// A row with the bucket of its length.
#[derive(Clone, Debug)]
struct BatchRow<T> {
    bucket: i64,
    value: T,
}

impl<T> Default for RunningBatch<T> {
    fn default() -> Self {
        Self { rows: Vec::new(), iterations: 0 }
    }
}

impl<T> RunningBatch<T> {
    /// Returns the number of rows in the batch.
    pub(super) fn len(&self) -> usize {
        self.rows.len()
    }

    /// Returns the rows in the order of their slots.
    pub(super) fn iter(&self) -> impl ExactSizeIterator<Item = &T> {
        self.rows.iter().map(|row| &row.value)
    }

    /// Returns the rows in the order of their slots. Their lengths must not be changed.
    pub(super) fn iter_mut(&mut self) -> impl ExactSizeIterator<Item = &mut T> {
        self.rows.iter_mut().map(|row| &mut row.value)
    }

    /// Returns the rows in the order of their slots.
    pub(super) fn into_iter(self) -> impl ExactSizeIterator<Item = T> {
        self.rows.into_iter().map(|row| row.value)
    }

    /// Records that every row has grown by one token.
    pub(super) fn grown(&mut self) {
        self.iterations += 1;
    }

    /// Adds a row of `length` tokens. The moves must be carried out in order, before anything is written to the row's slot.
    ///
    /// A new slot is appended at the end. Then, from the last bucket to the first that follows the row's bucket, the first row of each
    /// bucket moves to the free slot behind its bucket. This frees the slot directly behind the row's bucket with one move per bucket and
    /// keeps all buckets contiguous.
    pub(super) fn insert(&mut self, value: T, length: usize) -> Vec<Move> {
        let bucket = (self.iterations - length as i64).div_euclid(BUCKET);
        let later = self.rows.partition_point(|row| row.bucket <= bucket);
        let mut hole = self.rows.len();
        self.rows.push(BatchRow { bucket, value });
        let mut moves = Vec::new();
        for start in
            (later..hole).rev().filter(|slot| self.starts_bucket(*slot)).collect::<Vec<_>>()
        {
            self.rows.swap(start, hole);
            moves.push(Move { from: start, to: hole });
            hole = start;
        }
        moves
    }

    /// Removes the row in `slot`. The moves must be carried out in order.
    ///
    /// The last row of the row's bucket fills the gap, the last row of the next bucket fills the gap that this leaves, and so on.
    pub(super) fn remove(&mut self, slot: usize) -> (T, Vec<Move>) {
        let mut hole = slot;
        let mut moves = Vec::new();
        for end in (slot..self.len()).filter(|slot| self.ends_bucket(*slot)).collect::<Vec<_>>() {
            if end != hole {
                self.rows.swap(end, hole);
                moves.push(Move { from: end, to: hole });
            }
            hole = end;
        }
        (self.rows.swap_remove(hole).value, moves)
    }

    fn starts_bucket(&self, slot: usize) -> bool {
        slot == 0 || self.rows[slot - 1].bucket != self.rows[slot].bucket
    }

    fn ends_bucket(&self, slot: usize) -> bool {
        slot + 1 == self.len() || self.rows[slot + 1].bucket != self.rows[slot].bucket
    }
}

impl<T> Index<usize> for RunningBatch<T> {
    type Output = T;
    fn index(&self, slot: usize) -> &T {
        &self.rows[slot].value
    }
}

impl<T> IndexMut<usize> for RunningBatch<T> {
    fn index_mut(&mut self, slot: usize) -> &mut T {
        &mut self.rows[slot].value
    }
}

/// Splits slots into runs of similar length: within a run, lengths differ by at most 32 tokens or an eighth of the longest.
pub(super) fn runs(lengths: &[usize]) -> Vec<Range<usize>> {
    let mut runs = Vec::new();
    let mut start = 0;
    let (mut shortest, mut longest) = (usize::MAX, 0);
    for (slot, length) in lengths.iter().enumerate() {
        (shortest, longest) = (shortest.min(*length), longest.max(*length));
        if longest - shortest > padding_limit(longest) {
            runs.push(start..slot);
            (start, shortest, longest) = (slot, *length, *length);
        }
    }
    if start < lengths.len() {
        runs.push(start..lengths.len());
    }
    runs
}

fn padding_limit(longest: usize) -> usize {
    (BUCKET as usize).max(longest / 8)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A cache with one cell per slot, which follows the moves of the batch.
    #[derive(Default)]
    struct Model {
        batch: RunningBatch<u32>,
        cells: Vec<u32>,
        lengths: std::collections::BTreeMap<u32, usize>,
    }

    impl Model {
        fn carry_out(&mut self, moves: &[Move]) {
            self.cells.resize(self.cells.len().max(self.batch.len()), u32::MAX);
            for Move { from, to } in moves {
                self.cells[*to] = self.cells[*from];
            }
        }

        fn insert(&mut self, value: u32, length: usize) {
            let moves = self.batch.insert(value, length);
            self.carry_out(&moves);
            let slot = self.batch.iter().position(|v| *v == value).unwrap();
            self.cells[slot] = value;
            self.lengths.insert(value, length);
        }

        fn remove(&mut self, slot: usize) {
            let expected = self.batch[slot];
            let (value, moves) = self.batch.remove(slot);
            assert_eq!(value, expected);
            self.carry_out(&moves);
            self.lengths.remove(&value);
        }

        fn grow(&mut self) {
            self.batch.grown();
            self.lengths.values_mut().for_each(|length| *length += 1);
        }

        fn check(&self) {
            let values: Vec<u32> = self.batch.iter().copied().collect();
            assert_eq!(values, self.cells[..values.len()], "the cache follows the batch");
            assert_eq!(values.len(), self.lengths.len());
            let lengths: Vec<usize> = values.iter().map(|value| self.lengths[value]).collect();
            for pair in lengths.windows(2) {
                assert!(
                    pair[1] < pair[0] + BUCKET as usize,
                    "longest first up to a bucket: {lengths:?}"
                );
            }
        }
    }

    proptest! {
        #[test]
        fn the_cache_follows_the_batch(script in prop::collection::vec((0..4u8, 1..400usize), 1..80)) {
            let mut model = Model::default();
            for (value, (action, number)) in script.into_iter().enumerate() {
                match action {
                    0 if model.batch.len() > 0 => model.remove(number % model.batch.len()),
                    1 => (0..number % 50).for_each(|_| model.grow()),
                    _ => model.insert(value as u32, number),
                }
                model.check();
            }
        }

        #[test]
        fn runs_cover_the_batch_and_bound_the_padding(lengths in prop::collection::vec(1..600usize, 0..60)) {
            let runs = runs(&lengths);
            let covered: Vec<usize> = runs.iter().cloned().flatten().collect();
            prop_assert_eq!(covered, (0..lengths.len()).collect::<Vec<_>>());
            for run in runs {
                let longest = lengths[run.clone()].iter().max().unwrap();
                let shortest = lengths[run].iter().min().unwrap();
                prop_assert!(longest - shortest <= padding_limit(*longest));
            }
        }
    }

    #[test]
    fn rows_of_one_length_are_one_run() {
        assert_eq!(runs(&[300, 290, 100, 90, 20]), [0..2, 2..4, 4..5]);
        assert_eq!(runs(&[40; 9]).as_slice(), std::slice::from_ref(&(0..9)));
    }
}
