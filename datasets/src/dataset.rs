//! Datasets: files that are read as one sequence of prompts.

use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

use crate::chunk::{Chunk, Chunks};
use crate::config::DatasetConfig;
use crate::error::DatasetError;
use crate::file::PromptFile;
use crate::order::{Cursor, Fingerprint, RowOrder, merge_adjacent, sample_sorted};
use crate::prompts::Prompts;
use crate::segment::Segment;

/// A list of files that are read as one sequence of prompts. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Dataset {
    inner: Arc<DatasetInner>,
}

#[derive(Debug)]
pub(crate) struct DatasetInner {
    files: Files,
    /// The rows in use, ascending; `None` if all rows or the first `rows` rows are used.
    chosen: Option<Vec<u64>>,
    pub(crate) rows: u64,
    /// The shuffled order; `None` for file order.
    pub(crate) order: Option<RowOrder>,
    fingerprint: u64,
}

/// The opened files, in order.
#[derive(Debug)]
struct Files {
    files: Vec<PromptFile>,
    /// The number of rows before each file.
    starts: Vec<u64>,
}

impl Dataset {
    /// Opens the files and checks their columns. JSONL files are scanned once for line ends. Only the footers of Parquet files are read, and
    /// the messages of the first 64 rows if the column `messages` and a column with the question as text could both be the prompt.
    ///
    /// # Errors
    ///
    /// If a setting is out of bounds; if no file is configured, or a path or glob is invalid or matches no file; if a file cannot be read,
    /// can be read only once, has another format, is damaged or has no rows; or if a column is absent or has the wrong type.
    pub fn open(config: DatasetConfig) -> Result<Self, DatasetError> {
        config.check()?;
        let files = Files::open(&config)?;
        let all = files.rows();
        let rows = config.max_samples.unwrap_or(all).min(all);
        let chosen = (config.shuffle && rows < all).then(|| sample_sorted(config.seed, all, rows));
        let segments = || match &chosen {
            Some(chosen) => chosen_segments(&files.segments(), chosen),
            None => files.segments(),
        };
        let order = config.shuffle.then(|| {
            RowOrder::new(&segments(), config.seed, config.window_rows, config.window_bytes)
        });
        let fingerprint = files.fingerprint(&config);
        Ok(Self { inner: Arc::new(DatasetInner { files, chosen, rows, order, fingerprint }) })
    }

    /// Returns the number of rows per epoch, including rows that cannot be used as prompts.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.inner.rows
    }

    /// Returns `false`: a dataset without rows cannot be opened.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.inner.rows == 0
    }

    /// Returns the prompts after a cursor, epoch after epoch without end; see [`Prompts::until_epoch`].
    ///
    /// # Errors
    ///
    /// If the cursor belongs to another dataset or order, or lies beyond the end.
    pub fn prompts(&self, cursor: Cursor) -> Result<Prompts, DatasetError> {
        let expected = self.inner.fingerprint;
        match cursor.fingerprint {
            Some(found) if found != expected => {
                return Err(DatasetError::ForeignCursor { expected, found });
            }
            _ if cursor.offset > self.len() => {
                return Err(DatasetError::CursorRange { rows: self.len(), offset: cursor.offset });
            }
            _ => {}
        }
        Ok(Prompts::new(self.inner.clone(), Cursor { fingerprint: Some(expected), ..cursor }))
    }

    /// Returns the cursor after the prompt with this `epoch` and [`row`](crate::Prompt::row), from which [`prompts`](Self::prompts)
    /// continues. Reads nothing. Returns `None` if the dataset has no such row or does not use it.
    #[must_use]
    pub fn cursor_after(&self, epoch: u32, row: u64) -> Option<Cursor> {
        let used = match &self.inner.chosen {
            None => row,
            Some(chosen) => chosen.binary_search(&row).ok()? as u64,
        };
        if used >= self.len() {
            return None;
        }
        let position =
            self.inner.order.as_ref().map_or(used, |order| order.position_of(epoch, used));
        let fingerprint = Some(self.inner.fingerprint);
        Some(Cursor { epoch, offset: position + 1, fingerprint })
    }

    /// Returns the rows in use, by file.
    pub(crate) fn rows_by_file(&self) -> impl Iterator<Item = (&PromptFile, Vec<Range<u64>>)> {
        let all: Vec<_> = std::iter::once(0..self.inner.rows).collect();
        let by_file = self.inner.files.by_file(&self.inner.dataset_rows(&all));
        by_file.into_iter().map(|(file, ranges)| (&self.inner.files.files[file], ranges))
    }
}

impl Files {
    fn open(config: &DatasetConfig) -> Result<Self, DatasetError> {
        let files = config
            .paths()?
            .iter()
            .map(|path| PromptFile::open(path, config))
            .collect::<Result<Vec<_>, _>>()?;
        let mut rows = 0;
        let mut starts = Vec::new();
        for file in &files {
            if file.rows() == 0 {
                return Err(DatasetError::NoRows { file: file.path().to_path_buf() });
            }
            starts.push(rows);
            rows += file.rows();
        }
        Ok(Self { files, starts })
    }

    fn rows(&self) -> u64 {
        self.files.iter().map(PromptFile::rows).sum()
    }

    /// Returns the segments of all files, in row numbers of the dataset.
    fn segments(&self) -> Vec<Segment> {
        let of_file = |(file, start): (&PromptFile, u64)| -> Vec<Segment> {
            let shifted = |segment: &Segment| segment.rows.start + start..segment.rows.end + start;
            file.segments()
                .iter()
                .map(|segment| Segment { rows: shifted(segment), bytes: segment.bytes })
                .collect()
        };
        self.files.iter().zip(self.starts.iter().copied()).flat_map(of_file).collect()
    }

    /// Returns a digest of file names, row counts and everything else that determines the order. Folders are not included, so that a
    /// dataset can be moved.
    fn fingerprint(&self, config: &DatasetConfig) -> u64 {
        let mut print = Fingerprint::default()
            .number(u64::from(config.shuffle))
            .number(config.max_samples.unwrap_or(u64::MAX));
        if config.shuffle {
            print =
                print.number(config.seed).number(config.window_rows).number(config.window_bytes);
        }
        for file in &self.files {
            print = print
                .bytes(file.path().file_name().unwrap_or_default().as_encoded_bytes())
                .number(file.rows());
            let bytes = file.segments().iter().map(|segment| segment.bytes);
            print = bytes.filter(|_| config.shuffle).fold(print, Fingerprint::number);
        }
        print.value()
    }

    /// Splits ascending rows of the dataset by file. Returns the index of each file that holds some of the rows, with the ranges of these
    /// rows within the file.
    fn by_file(&self, ranges: &[Range<u64>]) -> VecDeque<(usize, Vec<Range<u64>>)> {
        let in_file = |(index, start): (usize, &u64)| {
            let (start, end) = (*start, start + self.files[index].rows());
            let first = ranges.partition_point(|range| range.end <= start);
            let near = ranges[first..].iter().take_while(|range| range.start < end);
            let inside: Vec<_> = near
                .map(|range| range.start.max(start) - start..range.end.min(end) - start)
                .collect();
            (!inside.is_empty()).then_some((index, inside))
        };
        self.starts.iter().enumerate().filter_map(in_file).collect()
    }
}

/// Converts segments of the dataset to segments of positions among the chosen rows. The bytes of a segment are scaled by the share of its
/// rows that is chosen.
fn chosen_segments(segments: &[Segment], chosen: &[u64]) -> Vec<Segment> {
    let position = |row: u64| chosen.partition_point(|chosen| *chosen < row) as u64;
    let kept = |segment: &Segment| {
        let rows = position(segment.rows.start)..position(segment.rows.end);
        let all = (segment.rows.end - segment.rows.start).max(1);
        Segment { bytes: segment.bytes / all * (rows.end - rows.start), rows }
    };
    segments.iter().map(kept).collect()
}

impl DatasetInner {
    /// Converts positions among the rows in use to rows of the dataset.
    fn dataset_rows(&self, ranges: &[Range<u64>]) -> Vec<Range<u64>> {
        let Some(chosen) = &self.chosen else { return ranges.to_vec() };
        let rows =
            ranges.iter().flat_map(|range| &chosen[range.start as usize..range.end as usize]);
        merge_adjacent(rows.map(|row| *row..row + 1))
    }

    /// Returns the chunks of the rows at `ranges`, which are ascending positions among the rows in use.
    pub(crate) fn chunks(self: &Arc<Self>, ranges: &[Range<u64>]) -> DatasetChunks {
        let dataset_rows = self.dataset_rows(ranges);
        DatasetChunks {
            inner: self.clone(),
            pending: self.files.by_file(&dataset_rows),
            current: None,
        }
    }
}

/// An iterator over the chunks of some rows of the dataset.
pub(crate) struct DatasetChunks {
    inner: Arc<DatasetInner>,
    pending: VecDeque<(usize, Vec<Range<u64>>)>,
    current: Option<Chunks>,
}

impl Iterator for DatasetChunks {
    type Item = Result<Arc<Chunk>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            if let Some(chunk) = self.current.as_mut().and_then(Iterator::next) {
                return Some(chunk.map(Arc::new));
            }
            let (file, ranges) = self.pending.pop_front()?;
            match self.inner.files.files[file].read(ranges, self.inner.files.starts[file]) {
                Ok(chunks) => self.current = Some(chunks),
                Err(error) => return Some(Err(error)),
            }
        }
    }
}
