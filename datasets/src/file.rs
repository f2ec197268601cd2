//! A file of prompts, of either format.

use std::fs::{self, File};
use std::io::{Chain, Cursor, Read};
use std::ops::Range;
use std::os::unix::fs::FileTypeExt;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::Chunks;
use crate::columns::{ColumnPath, Plan};
use crate::config::DatasetConfig;
use crate::error::{DatasetError, quoted};
use crate::jsonl::JsonlFile;
use crate::parquet::ParquetFile;
use crate::segment::Segment;

/// An opened file: its layout is known and checked, its rows are not read.
#[derive(Debug)]
pub(crate) enum PromptFile {
    Parquet(ParquetFile),
    Jsonl(JsonlFile),
}

impl PromptFile {
    /// # Errors
    ///
    /// When the file cannot be opened, is neither Parquet nor JSONL, is damaged, or lacks a column.
    pub(crate) fn open(path: &Path, config: &DatasetConfig) -> Result<Self, DatasetError> {
        check_reopens(path)?;
        let path: Arc<Path> = path.into();
        match Format::of(&path)? {
            Format::Parquet => ParquetFile::open(path, config).map(Self::Parquet),
            Format::Jsonl => JsonlFile::open(path, config).map(Self::Jsonl),
        }
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        match self {
            Self::Parquet(file) => file.path(),
            Self::Jsonl(file) => file.path(),
        }
    }

    pub(crate) fn plan(&self) -> &Plan {
        match self {
            Self::Parquet(file) => file.plan(),
            Self::Jsonl(file) => file.plan(),
        }
    }

    pub(crate) fn segments(&self) -> &[Segment] {
        match self {
            Self::Parquet(file) => file.segments(),
            Self::Jsonl(file) => file.segments(),
        }
    }

    pub(crate) fn rows(&self) -> u64 {
        self.segments().last().map_or(0, |segment| segment.rows.end)
    }

    /// Rows that are read at once where damage should be confined: row groups, or a whole file of lines.
    pub(crate) fn stretches(&self) -> Vec<Range<u64>> {
        match self {
            Self::Parquet(file) => {
                file.segments().iter().map(|segment| segment.rows.clone()).collect()
            }
            Self::Jsonl(_) => std::iter::once(0..self.rows()).collect(),
        }
    }

    /// Reads every row.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened again.
    pub(crate) fn read_all(&self, first_row: u64) -> Result<Chunks, DatasetError> {
        self.read(std::iter::once(0..self.rows()).collect(), first_row)
    }

    /// Reads some rows. `first_row` is how many rows of the dataset come before the file.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened again.
    pub(crate) fn read(
        &self,
        ranges: Vec<Range<u64>>,
        first_row: u64,
    ) -> Result<Chunks, DatasetError> {
        match self {
            Self::Parquet(file) => file.read(ranges, first_row),
            Self::Jsonl(file) => file.read(ranges, first_row),
        }
    }

    /// Reads one column of text, row by row; null where there is none. Lines of which it cannot be told are passed over.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened again, or is damaged.
    pub(crate) fn read_text(
        &self,
        column: &ColumnPath,
        ranges: Vec<Range<u64>>,
        each: impl FnMut(u64, Option<&str>),
    ) -> Result<(), DatasetError> {
        match self {
            Self::Parquet(file) => file.read_text(column, ranges, each),
            Self::Jsonl(file) => file.read_text(column, ranges, each),
        }
    }

    /// Name and type of every root column.
    pub(crate) fn columns(&self) -> Vec<(String, String)> {
        match self {
            Self::Parquet(file) => file.columns(),
            Self::Jsonl(file) => file.columns(),
        }
    }

    pub(crate) fn format(&self) -> &'static str {
        match self {
            Self::Parquet(_) => "parquet",
            Self::Jsonl(_) => "jsonl",
        }
    }
}

/// Checks that a file can be read several times: that it is no pipe or device. A folder is left for the reader to refuse.
pub(crate) fn check_reopens(path: &Path) -> Result<(), DatasetError> {
    let metadata = fs::metadata(path).map_err(DatasetError::io(path, "open"))?;
    let found = match metadata.file_type() {
        found if found.is_file() || found.is_dir() => return Ok(()),
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        _ => "a device",
    };
    Err(DatasetError::ReadOnce { file: path.to_owned(), found })
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Format {
    Parquet,
    Jsonl,
}

impl Format {
    /// Returns the format by the extension, else by the first bytes.
    fn of(path: &Path) -> Result<Self, DatasetError> {
        match Self::of_name(path) {
            Some(format) => Ok(format),
            None => Opened::of_content(path).map(|opened| opened.format),
        }
    }

    fn of_name(path: &Path) -> Option<Self> {
        match path.extension()?.to_str()? {
            "parquet" | "pq" => Some(Self::Parquet),
            "jsonl" | "json" | "ndjson" => Some(Self::Jsonl),
            _ => None,
        }
    }

    fn of_head(head: &[u8]) -> Option<Self> {
        match head {
            b"PAR1" => Some(Self::Parquet),
            head if head.trim_ascii_start().starts_with(b"{") => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// The content of a file, of which the first bytes have been read already: a pipe has them only once.
pub(crate) type Content = Chain<Cursor<Vec<u8>>, File>;

/// A file that was opened once, and its format.
pub(crate) struct Opened {
    pub(crate) format: Format,
    pub(crate) content: Content,
}

impl Opened {
    /// # Errors
    ///
    /// When the file cannot be opened, or is neither Parquet nor JSONL.
    pub(crate) fn open(path: &Path) -> Result<Self, DatasetError> {
        let Some(format) = Format::of_name(path) else { return Self::of_content(path) };
        let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        Ok(Self { format, content: Cursor::new(Vec::new()).chain(file) })
    }

    fn of_content(path: &Path) -> Result<Self, DatasetError> {
        let mut head = Vec::new();
        let mut file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        let read = file.by_ref().take(4).read_to_end(&mut head);
        read.map_err(DatasetError::io(path, "read"))?;
        let format = Format::of_head(&head).ok_or_else(|| DatasetError::UnknownFormat {
            file: path.to_owned(),
            expected: "a .parquet, .jsonl or .json file",
            found: quoted(&head),
        })?;
        Ok(Self { format, content: Cursor::new(head).chain(file) })
    }
}
