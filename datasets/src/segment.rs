//! Which rows of a file are read together.

use std::ops::Range;

/// Rows of a chunk at most.
pub(crate) const CHUNK_ROWS: usize = 2048;
/// Bytes of a chunk, about, unless a single row has more.
pub(crate) const CHUNK_BYTES: u64 = 4 << 20;

/// The index of a row in its chunk, which holds at most [`CHUNK_ROWS`].
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: a chunk has few rows")
}

/// A run of neighbouring rows that can be read without reading others: a row group, or a stretch of lines.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Segment {
    pub(crate) rows: Range<u64>,
    /// Decoded size of the columns in use, as far as the file tells.
    pub(crate) bytes: u64,
}

/// Walks over the rows of ascending ranges.
#[derive(Debug)]
pub(crate) struct RowNumbers {
    ranges: std::vec::IntoIter<Range<u64>>,
    current: Range<u64>,
}

impl RowNumbers {
    pub(crate) fn new(ranges: Vec<Range<u64>>) -> Self {
        Self { ranges: ranges.into_iter(), current: 0..0 }
    }

    /// The first row not yet walked over, 0 at the end.
    pub(crate) fn peek(&self) -> u64 {
        let later = || self.ranges.as_slice().first().map_or(0, |range| range.start);
        if self.current.is_empty() { later() } else { self.current.start }
    }

    /// Walks over the next `count` rows.
    pub(crate) fn walk(&mut self, count: usize) -> Vec<u64> {
        let mut rows = Vec::with_capacity(count);
        while rows.len() < count {
            let Some(end) = self.stretch((count - rows.len()) as u64) else { break };
            rows.extend(self.current.start..end);
            self.current.start = end;
        }
        rows
    }

    /// Where a walk over at most so many rows of one range ends.
    fn stretch(&mut self, most: u64) -> Option<u64> {
        while self.current.is_empty() {
            self.current = self.ranges.next()?;
        }
        Some(self.current.end.min(self.current.start + most))
    }
}

impl Iterator for RowNumbers {
    type Item = u64;

    fn next(&mut self) -> Option<u64> {
        self.stretch(1)?;
        self.current.next()
    }
}
