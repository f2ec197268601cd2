//! The iterator over the prompts of a dataset.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::dataset::{DatasetChunks, DatasetInner};
use crate::error::DatasetError;
use crate::order::{Cursor, Window};
use crate::prompt::Prompt;
use crate::segment::index_u32;

/// An iterator over the prompts of a dataset after a cursor.
///
/// A bad row is an error for which [`is_row`](DatasetError::is_row) returns `true`, and reading continues after it. Any other error ends
/// the iteration.
pub struct Prompts {
    inner: Arc<DatasetInner>,
    cursor: Cursor,
    end: Option<u32>,
    loaded: LoadedRows,
    source: EpochSource,
    failed: bool,
}

impl std::fmt::Debug for Prompts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Prompts")
            .field("cursor", &self.cursor)
            .field("end", &self.end)
            .finish_non_exhaustive()
    }
}

/// Decoded rows and the order in which they are returned.
#[derive(Debug, Default)]
struct LoadedRows {
    chunks: Vec<Arc<Chunk>>,
    /// The number of rows before each chunk.
    starts: Vec<u32>,
    rows: u32,
    /// `None` for file order.
    order: Option<Vec<u32>>,
    next: u32,
}

/// The source of the rows after the loaded ones.
enum EpochSource {
    NotStarted,
    InOrder(DatasetChunks),
    /// The remaining windows in reverse order, the next one last.
    Windows(Vec<Window>),
}

impl Prompts {
    pub(crate) fn new(inner: Arc<DatasetInner>, cursor: Cursor) -> Self {
        Self {
            inner,
            cursor,
            end: None,
            loaded: LoadedRows::default(),
            source: EpochSource::NotStarted,
            failed: false,
        }
    }

    /// Ends the iteration before the epoch `end`, counted from 0: `until_epoch(1)` reads one epoch.
    #[must_use]
    pub fn until_epoch(self, end: u32) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Returns the current position. [`Dataset::prompts`](crate::Dataset::prompts) with this cursor continues with the next prompt.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    fn next_loaded(&mut self) -> Option<Result<Prompt, DatasetError>> {
        let (chunk, index) = self.loaded.advance()?;
        self.cursor.offset += 1;
        let epoch = self.cursor.epoch;
        Some(match chunk.check(index) {
            Ok(()) => Ok(Prompt { chunk, index: index_u32(index), epoch }),
            Err(error) => Err(error),
        })
    }

    /// Loads the next rows. Returns `false` at the end of the last epoch.
    fn load(&mut self) -> Result<bool, DatasetError> {
        if self.cursor.offset >= self.inner.rows {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, offset: 0, ..self.cursor };
            self.source = EpochSource::NotStarted;
        }
        if self.end.is_some_and(|end| self.cursor.epoch >= end) {
            return Ok(false);
        }
        if matches!(self.source, EpochSource::NotStarted) {
            self.source = self.epoch_source();
        }
        self.loaded = match &mut self.source {
            EpochSource::InOrder(chunks) => match chunks.next().transpose()? {
                Some(chunk) => LoadedRows::of(vec![chunk], None),
                None => {
                    return Err(DatasetError::Changed {
                        expected: self.inner.rows,
                        found: self.cursor.offset,
                    });
                }
            },
            EpochSource::Windows(windows) => {
                let window =
                    windows.pop().expect("invariant: the windows of an epoch hold all its rows");
                self.load_window(&window)?
            }
            EpochSource::NotStarted => LoadedRows::default(),
        };
        Ok(true)
    }

    /// Returns the source of the epoch's rows from the cursor on.
    fn epoch_source(&self) -> EpochSource {
        match &self.inner.order {
            None => EpochSource::InOrder(
                self.inner.chunks(std::slice::from_ref(&(self.cursor.offset..self.inner.rows))),
            ),
            Some(order) => {
                let mut windows = order.windows(self.cursor.epoch);
                windows.retain(|window| window.start + window.rows() > self.cursor.offset);
                windows.reverse();
                EpochSource::Windows(windows)
            }
        }
    }
}

impl Prompts {
    fn load_window(&mut self, window: &Window) -> Result<LoadedRows, DatasetError> {
        let order = self.inner.order.as_ref().expect("invariant: only an order makes windows");
        let permutation = order.order_within(self.cursor.epoch, window);
        let held = std::mem::take(&mut self.loaded);
        let chunks = if u64::from(held.rows) == self.inner.rows && held.order.is_some() {
            held.chunks // The dataset fits into one window, which is decoded only once.
        } else {
            drop(held); // Free this window before the next is decoded.
            self.inner.chunks(&window.ranges).collect::<Result<_, _>>()?
        };
        let mut loaded = LoadedRows::of(chunks, Some(permutation));
        if u64::from(loaded.rows) != window.rows() {
            return Err(DatasetError::Changed {
                expected: window.rows(),
                found: u64::from(loaded.rows),
            });
        }
        loaded.next = u32::try_from(self.cursor.offset - window.start)
            .expect("invariant: the cursor lies within the window");
        Ok(loaded)
    }
}

impl LoadedRows {
    fn of(chunks: Vec<Arc<Chunk>>, order: Option<Vec<u32>>) -> Self {
        let mut rows = 0;
        let mut starts = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            starts.push(rows);
            rows += index_u32(chunk.len());
        }
        Self { chunks, starts, rows, order, next: 0 }
    }

    /// Returns the next row as a chunk and an index in it.
    fn advance(&mut self) -> Option<(Arc<Chunk>, usize)> {
        if self.next >= self.rows {
            return None;
        }
        let at = self.order.as_ref().map_or(self.next, |order| order[self.next as usize]);
        let chunk = self.starts.partition_point(|start| *start <= at) - 1;
        self.next += 1;
        Some((self.chunks[chunk].clone(), (at - self.starts[chunk]) as usize))
    }
}

impl Iterator for Prompts {
    type Item = Result<Prompt, DatasetError>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(prompt) = self.next_loaded() {
                return Some(prompt);
            }
            if self.failed {
                return None;
            }
            match self.load() {
                Ok(true) => {}
                Ok(false) => return None,
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
    }
}
