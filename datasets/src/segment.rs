//! Segments: rows of a file that are read together.

use std::ops::Range;

/// The maximum number of rows in a chunk.
pub(crate) const CHUNK_ROWS: usize = 2048;
/// The approximate maximum size of a chunk in bytes, unless a single row is larger.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;

/// Converts the index of a row in its chunk, which holds at most [`CHUNK_ROWS`] rows.
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: a chunk has few rows")
}

/// A run of adjacent rows with its size: a row group or a range of lines of a file, or a block of a shuffled order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) rows: Range<u64>,
    /// The size of the rows in bytes. Parquet: the estimated decoded size of the columns in use. JSONL: the length of the lines.
    pub(crate) bytes: u64,
}

/// An iterator over the row numbers of ascending ranges.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    ranges: std::vec::IntoIter<Range<u64>>,
    current: Range<u64>,
}

impl RowNumbers {
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Self {
        Self { ranges: ranges.into_iter(), current: 0..0 }
    }

    /// Returns the next row number without advancing, or 0 at the end.
    pub(crate) fn peek(&self) -> u64 {
        let later = || self.ranges.as_slice().first().map_or(0, |range| range.start);
        if self.current.is_empty() { later() } else { self.current.start }
    }

    /// Advances by `count` rows and returns their numbers; fewer at the end.
    pub(crate) fn next_rows(&mut self, count: usize) -> Vec<u64> {
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            let Some(end) = self.run_end((count - rows.len()) as u64) else { break };
            rows.extend(self.current.start..end);
            self.current.start = end;
        }
        rows
    }

    /// Returns the end of the next run of at most `max` rows within one range; `None` after the last range.
    fn run_end(&mut self, max: u64) -> Option<u64> {
        while self.current.is_empty() {
            self.current = self.ranges.next()?;
        }
        Some(self.current.end.min(self.current.start + max))
    }
}

impl Iterator for RowNumbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.run_end(1)?;
        self.current.next()
    }
}
