//! The order of rows, and positions in it.
//!
//! [`DatasetConfig`](crate::DatasetConfig) describes how random the order is. The order of a window's rows is a function of the blocks, the
//! seed, the epoch and the index of the window: each window has a random stream of its own. A cursor therefore needs no generator state,
//! and resuming replays nothing. The draws are implemented here instead of with `rand`'s `shuffle`, whose sequence may change between
//! versions: an order must not change with an upgrade.

use std::ops::Range;

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;
use serde::{Deserialize, Serialize};

use crate::segment::Segment;

/// The approximate number of blocks in a full window.
const BLOCKS_PER_WINDOW: u64 = 64;

/// A position in the sequence of prompts. Serialize it to resume exactly.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(deny_unknown_fields)]
pub struct Cursor {
    /// The epoch, from 0.
    pub epoch: u32,
    /// The number of rows of the epoch that were returned or found bad.
    pub offset: u64,
    /// The digest of the dataset and order that the cursor belongs to, checked on resuming. With `None`, as in a cursor made by hand, only
    /// the offset is checked.
    #[serde(default)]
    pub fingerprint: Option<u64>,
}

/// The shuffled order of a dataset.
#[derive(Debug)]
pub(crate) struct RowOrder {
    blocks: Vec<Segment>,
    seed: u64,
    window_rows: u64,
    window_bytes: u64,
}

/// A set of rows that are shuffled together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Window {
    /// The index of the window within the epoch.
    pub(crate) index: u32,
    /// The number of rows of the epoch before the window.
    pub(crate) start: u64,
    /// The rows of the window, ascending, in as few ranges as possible.
    pub(crate) ranges: Vec<Range<u64>>,
}

impl Window {
    pub(crate) fn rows(&self) -> u64 {
        self.ranges.iter().map(|range| range.end - range.start).sum()
    }

    /// Returns the number of the window's rows that are less than `row`, if `row` is one of them.
    fn position(&self, row: u64) -> Option<u64> {
        let range = self.ranges.iter().position(|range| range.contains(&row))?;
        let before: u64 = self.ranges[..range].iter().map(|range| range.end - range.start).sum();
        Some(before + row - self.ranges[range].start)
    }
}

impl RowOrder {
    /// Creates the order of the rows of `segments`, which must be consecutive and begin at row 0. Rows are shuffled within windows of at
    /// most `window_rows` rows and about `window_bytes` bytes. The order of an epoch depends on `seed`.
    ///
    /// # Panics
    /// If `window_rows` or `window_bytes` is less than 64, the number of blocks of a window.
    pub(crate) fn new(
        segments: &[Segment],
        seed: u64,
        window_rows: u64,
        window_bytes: u64,
    ) -> Self {
        let blocks = segments
            .iter()
            .flat_map(|segment| {
                split_segment(
                    segment,
                    window_rows / BLOCKS_PER_WINDOW,
                    window_bytes / BLOCKS_PER_WINDOW,
                )
            })
            .collect();
        Self {
            blocks: join_small(
                blocks,
                window_rows / BLOCKS_PER_WINDOW,
                window_bytes / BLOCKS_PER_WINDOW,
            ),
            seed,
            window_rows,
            window_bytes,
        }
    }

    /// Returns the windows of an epoch, in the order in which they are read.
    pub(crate) fn windows(&self, epoch: u32) -> Vec<Window> {
        // Stream 0 of the epoch orders the blocks; `order_within` uses the streams from 1 for the windows.
        let order = permutation(self.seed, u64::from(epoch) << 32, self.blocks.len());
        let mut windows = Vec::new();
        let (mut held, mut rows, mut bytes, mut start) = (Vec::new(), 0, 0, 0);
        for block in order.into_iter().map(|block| &self.blocks[block as usize]) {
            let length = block.rows.end - block.rows.start;
            if rows > 0
                && (rows + length > self.window_rows || bytes + block.bytes > self.window_bytes)
            {
                windows.push(window(windows.len(), start, std::mem::take(&mut held)));
                (start, rows, bytes) = (start + rows, 0, 0);
            }
            held.push(block.rows.clone());
            (rows, bytes) = (rows + length, bytes + block.bytes);
        }
        if rows > 0 {
            windows.push(window(windows.len(), start, held));
        }
        windows
    }

    /// Returns the position of `row` in the order of an epoch, from 0.
    pub(crate) fn position_of(&self, epoch: u32, row: u64) -> u64 {
        let windows = self.windows(epoch);
        let (window, at) = windows
            .iter()
            .find_map(|window| Some((window, window.position(row)?)))
            .expect("invariant: the windows of an epoch hold all its rows");
        let order = self.order_within(epoch, window);
        let position = order.iter().position(|&index| u64::from(index) == at);
        window.start + position.expect("invariant: an order is a permutation") as u64
    }

    /// Returns the order of a window's rows, as indices into its rows in ascending order.
    pub(crate) fn order_within(&self, epoch: u32, window: &Window) -> Vec<u32> {
        let rows = usize::try_from(window.rows()).expect("invariant: a window fits memory");
        permutation(self.seed, (u64::from(epoch) << 32) + 1 + u64::from(window.index), rows)
    }
}

fn window(index: usize, start: u64, mut blocks: Vec<Range<u64>>) -> Window {
    blocks.sort_unstable_by_key(|block| block.start);
    let index = u32::try_from(index).expect("invariant: windows are far fewer than rows");
    Window { index, start, ranges: merge_adjacent(blocks) }
}

pub(crate) fn merge_adjacent(ranges: impl IntoIterator<Item = Range<u64>>) -> Vec<Range<u64>> {
    let mut joined: Vec<Range<u64>> = Vec::new();
    for range in ranges {
        match joined.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ => joined.push(range),
        }
    }
    joined
}

/// Cuts a segment into blocks of about equal length. Each is within the limits, unless a single row of average size exceeds `max_bytes`.
fn split_segment(segment: &Segment, max_rows: u64, max_bytes: u64) -> Vec<Segment> {
    let rows = segment.rows.end - segment.rows.start;
    let pieces = rows.div_ceil(max_rows).max(segment.bytes.div_ceil(max_bytes)).min(rows);
    let boundary = |piece: u64| segment.rows.start + piece * rows / pieces;
    (0..pieces)
        .map(|piece| Segment {
            rows: boundary(piece)..boundary(piece + 1),
            bytes: segment.bytes / pieces,
        })
        .collect()
}

/// Joins adjacent blocks while they fit the maximum block size, so that small segments do not produce many blocks.
fn join_small(blocks: Vec<Segment>, max_rows: u64, max_bytes: u64) -> Vec<Segment> {
    let mut joined: Vec<Segment> = Vec::new();
    for block in blocks {
        match joined.last_mut() {
            Some(last)
                if block.rows.end - last.rows.start <= max_rows
                    && last.bytes + block.bytes <= max_bytes =>
            {
                last.rows.end = block.rows.end;
                last.bytes += block.bytes;
            }
            _ => joined.push(block),
        }
    }
    joined
}

/// Returns a uniformly random permutation of `0..n` (Fisher-Yates shuffle). Each `stream` of a seed gives an independent permutation.
pub(crate) fn permutation(seed: u64, stream: u64, n: usize) -> Vec<u32> {
    let mut random = stream_of(seed, stream);
    let count =
        u32::try_from(n).expect("invariant: at most 2^32 rows per window and blocks per dataset");
    let mut order: Vec<u32> = (0..count).collect();
    for last in (1..n).rev() {
        order.swap(last, uniform_below(&mut random, last as u64 + 1) as usize);
    }
    order
}

/// Chooses `count` of `0..n`, in ascending order, with equal probability for every subset (Knuth, TAOCP 3.4.2, algorithm S).
pub(crate) fn sample_sorted(seed: u64, n: u64, count: u64) -> Vec<u64> {
    let mut random = stream_of(seed, u64::MAX);
    let mut chosen = Vec::new();
    for row in 0..n {
        if uniform_below(&mut random, n - row) < count - chosen.len() as u64 {
            chosen.push(row);
        }
    }
    chosen
}

fn stream_of(seed: u64, stream: u64) -> ChaCha8Rng {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    random.set_stream(stream);
    random
}

/// Draws uniformly from `0..n` (Lemire, Fast Random Integer Generation in an Interval, algorithm 5).
fn uniform_below(random: &mut ChaCha8Rng, n: u64) -> u64 {
    loop {
        let product = u128::from(random.next_u64()) * u128::from(n);
        let (high, low) = ((product >> 64) as u64, product as u64);
        // Reject the 2^64 mod n lowest values of `low`, which would make some results more likely. The first test avoids the division.
        if low >= n || low >= n.wrapping_neg() % n {
            return high;
        }
    }
}

/// A digest that is stable across versions and machines: FNV-1a, 64 bits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fingerprint(u64);

impl Default for Fingerprint {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fingerprint {
    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        Self(
            bytes.iter().fold(self.0, |hash, byte| {
                (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            }),
        )
    }

    pub(crate) fn number(self, number: u64) -> Self {
        self.bytes(&number.to_le_bytes())
    }

    pub(crate) fn value(self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn order(groups: &[u64], window: u64, seed: u64) -> RowOrder {
        let mut start = 0;
        let segments: Vec<_> = groups
            .iter()
            .map(|rows| {
                start += rows;
                Segment { rows: start - rows..start, bytes: rows * 100 }
            })
            .collect();
        RowOrder::new(&segments, seed, window, window * 100)
    }

    fn rows(order: &RowOrder, epoch: u32) -> Vec<u64> {
        let in_window = |window: &Window| {
            let rows: Vec<u64> = window.ranges.iter().flat_map(Clone::clone).collect();
            order
                .order_within(epoch, window)
                .into_iter()
                .map(|at| rows[at as usize])
                .collect::<Vec<_>>()
        };
        order.windows(epoch).iter().flat_map(in_window).collect()
    }

    proptest! {
        #[test]
        fn every_epoch_is_a_permutation_in_bounded_windows(
            groups in prop::collection::vec(0_u64..900, 1..12), window in 64_u64..600, seed: u64, epoch in 0_u32..5
        ) {
            let order = order(&groups, window, seed);
            let windows = order.windows(epoch);
            prop_assert!(windows.iter().all(|w| w.rows() <= window));
            let mut start = 0;
            for window in &windows {
                prop_assert_eq!(window.start, start);
                start += window.rows();
            }
            let mut seen = rows(&order, epoch);
            prop_assert_eq!(&seen, &rows(&order, epoch));
            seen.sort_unstable();
            prop_assert_eq!(seen, (0..groups.iter().sum()).collect::<Vec<_>>());
        }
    }

    #[test]
    fn place_is_the_inverse_of_the_order() {
        let order = order(&[500, 37, 500], 200, 3);
        for epoch in 0..2 {
            let rows = rows(&order, epoch);
            assert!((0..).zip(&rows).all(|(place, row)| order.position_of(epoch, *row) == place));
        }
    }

    #[test]
    fn epochs_and_seeds_differ() {
        let a = order(&[500, 500], 200, 1);
        assert_ne!(rows(&a, 0), rows(&a, 1));
        assert_ne!(rows(&a, 0), rows(&order(&[500, 500], 200, 2), 0));
    }

    /// The position of a row in the order must not depend on its position in the file: over many seeds, the mean position of each row is
    /// the middle.
    #[test]
    fn positions_are_uniform() {
        let (n, seeds) = (400_u64, 400_u64);
        let mut sums = vec![0_u64; 400];
        for seed in 0..seeds {
            for (place, row) in rows(&order(&[150, 250], 128, seed), 0).into_iter().enumerate() {
                sums[row as usize] += place as u64;
            }
        }
        // The mean of 400 uniform places has a standard deviation of 400 / sqrt(12 * 400) = 5.8.
        let middle = (n - 1) as f64 / 2.0;
        assert!(sums.iter().all(|sum| (*sum as f64 / seeds as f64 - middle).abs() < 5.0 * 5.8));
    }

    #[test]
    fn the_order_is_stable_across_releases() {
        assert_eq!(permutation(7, 3, 10), [4, 5, 8, 3, 9, 6, 2, 7, 0, 1]);
        assert_eq!(sample_sorted(7, 20, 5), [3, 8, 13, 15, 17]);
    }

    #[test]
    fn a_choice_has_its_size_and_is_uniform() {
        let mut counts = [0_u32; 30];
        for seed in 0..3000 {
            let chosen = sample_sorted(seed, 30, 6);
            assert_eq!(chosen.len(), 6);
            chosen.iter().for_each(|row| counts[*row as usize] += 1);
        }
        // Binomial: mean 600, standard deviation 22.
        assert!(counts.iter().all(|count| (490..710).contains(count)), "{counts:?}");
    }
}
