//! The prompts of a dataset, one after another.

use std::sync::Arc;

use crate::chunk::Chunk;
use crate::dataset::{DatasetChunks, Inner};
use crate::error::DatasetError;
use crate::order::{Cursor, Window};
use crate::prompt::Prompt;
use crate::segment::index_u32;

/// The prompts of a dataset from a cursor on.
///
/// A bad row is an error of [`is_row`](DatasetError::is_row), behind which reading goes on; behind any other error there is nothing.
pub struct Prompts {
    inner: Arc<Inner>,
    cursor: Cursor,
    end: Option<u32>,
    loaded: Loaded,
    ahead: Ahead,
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

/// Decoded rows, and in which order to hand them out.
#[derive(Debug, Default)]
struct Loaded {
    chunks: Vec<Arc<Chunk>>,
    /// Rows before each chunk.
    starts: Vec<u32>,
    rows: u32,
    /// `None` for their own order.
    order: Option<Vec<u32>>,
    next: u32,
}

/// Where the rows behind the loaded ones come from.
enum Ahead {
    /// The epoch is yet to begin.
    Nothing,
    InOrder(DatasetChunks),
    /// Windows in reverse, the next one last.
    Windows(Vec<Window>),
}

impl Prompts {
    pub(crate) fn new(inner: Arc<Inner>, cursor: Cursor) -> Self {
        Self {
            inner,
            cursor,
            end: None,
            loaded: Loaded::default(),
            ahead: Ahead::Nothing,
            failed: false,
        }
    }

    /// Ends before an epoch, counted from 0: `until_epoch(1)` reads one epoch.
    #[must_use]
    pub fn until_epoch(self, end: u32) -> Self {
        Self { end: Some(end), ..self }
    }

    /// Where it is: what comes next here comes first from [`Dataset::prompts`](crate::Dataset::prompts) of it.
    #[must_use]
    pub fn cursor(&self) -> Cursor {
        self.cursor
    }

    /// Hands out the next loaded row, if there is one.
    fn hand_out(&mut self) -> Option<Result<Prompt, DatasetError>> {
        let (chunk, index) = self.loaded.advance()?;
        self.cursor.offset += 1;
        let epoch = self.cursor.epoch;
        Some(match chunk.check(index) {
            Ok(()) => Ok(Prompt { chunk, index: index_u32(index), epoch }),
            Err(error) => Err(error),
        })
    }

    /// Loads what comes next; `false` at the very end.
    fn load(&mut self) -> Result<bool, DatasetError> {
        if self.cursor.offset >= self.inner.rows {
            self.cursor = Cursor { epoch: self.cursor.epoch + 1, offset: 0, ..self.cursor };
            self.ahead = Ahead::Nothing;
        }
        if self.end.is_some_and(|end| self.cursor.epoch >= end) {
            return Ok(false);
        }
        if matches!(self.ahead, Ahead::Nothing) {
            self.ahead = self.begin();
        }
        self.loaded = match &mut self.ahead {
            Ahead::InOrder(chunks) => match chunks.next().transpose()? {
                Some(chunk) => Loaded::of(vec![chunk], None),
                None => {
                    return Err(DatasetError::Changed {
                        expected: self.inner.rows,
                        found: self.cursor.offset,
                    });
                }
            },
            Ahead::Windows(windows) => {
                let window =
                    windows.pop().expect("invariant: the windows of an epoch hold all its rows");
                self.load_window(&window)?
            }
            Ahead::Nothing => Loaded::default(),
        };
        Ok(true)
    }

    /// What the cursor's epoch has from the cursor on.
    fn begin(&self) -> Ahead {
        match &self.inner.order {
            None => Ahead::InOrder(
                self.inner.chunks(std::slice::from_ref(&(self.cursor.offset..self.inner.rows))),
            ),
            Some(order) => {
                let mut windows = order.windows(self.cursor.epoch);
                windows.retain(|window| window.start + window.rows() > self.cursor.offset);
                windows.reverse();
                Ahead::Windows(windows)
            }
        }
    }
}

impl Prompts {
    fn load_window(&mut self, window: &Window) -> Result<Loaded, DatasetError> {
        let order = self.inner.order.as_ref().expect("invariant: only an order makes windows");
        let permutation = order.within(self.cursor.epoch, window);
        let held = std::mem::take(&mut self.loaded);
        let chunks = match u64::from(held.rows) == self.inner.rows && held.order.is_some() {
            true => held.chunks, // the dataset fits one window, which is then decoded once
            false => {
                drop(held); // so that one window is held at a time
                self.inner.chunks(&window.ranges).collect::<Result<_, _>>()?
            }
        };
        let mut loaded = Loaded::of(chunks, Some(permutation));
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

impl Loaded {
    fn of(chunks: Vec<Arc<Chunk>>, order: Option<Vec<u32>>) -> Self {
        let mut rows = 0;
        let mut starts = Vec::with_capacity(chunks.len());
        for chunk in &chunks {
            starts.push(rows);
            rows += index_u32(chunk.len());
        }
        Self { chunks, starts, rows, order, next: 0 }
    }

    /// The next row, as a chunk and the row's index in it.
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
            if let Some(prompt) = self.hand_out() {
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
