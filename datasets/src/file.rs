//! Prompt files of either format.

use std::fs::File;
use std::io::{Chain, Cursor, Read};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

use crate::chunk::Chunks;
use crate::columns::ColumnRoles;
use crate::config::DatasetConfig;
use crate::error::{DatasetError, quoted, unsupported_format};
use crate::jsonl::{BYTE_ORDER_MARK, JsonlFile};
use crate::parquet::ParquetFile;
use crate::reopen::check_reopens;
use crate::segment::Segment;

/// An opened file: its layout is known and checked, its rows are not read yet.
#[derive(Debug)]
pub(crate) enum PromptFile {
    Parquet(ParquetFile),
    Jsonl(JsonlFile),
}

impl PromptFile {
    /// Opens a file and checks its columns.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, can be read only once, is neither Parquet nor JSONL, is damaged, or is a JSONL file without rows, or
    /// if a column is absent or has the wrong type.
    pub(crate) fn open(path: &Path, config: &DatasetConfig) -> Result<Self, DatasetError> {
        check_reopens(path)?;
        let path: Arc<Path> = path.into();
        match FileFormat::of(&path)? {
            FileFormat::Parquet => ParquetFile::open(path, config).map(Self::Parquet),
            FileFormat::Jsonl => JsonlFile::open(path, config).map(Self::Jsonl),
        }
    }

    /// Opens a file to check it, as [`open`](Self::open) does. Any row of a JSONL file may be malformed.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open), except for malformed rows of a JSONL file.
    pub(crate) fn open_malformed(
        path: &Path,
        config: &DatasetConfig,
    ) -> Result<Self, DatasetError> {
        check_reopens(path)?;
        match FileFormat::of(path)? {
            FileFormat::Parquet => Self::open(path, config),
            FileFormat::Jsonl => JsonlFile::open_malformed(path.into(), config).map(Self::Jsonl),
        }
    }

    pub(crate) fn path(&self) -> &Arc<Path> {
        match self {
            Self::Parquet(file) => file.path(),
            Self::Jsonl(file) => file.path(),
        }
    }

    pub(crate) fn plan(&self) -> &ColumnRoles {
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

    /// Returns the ranges of rows that are read together, so that damage is confined to one range: the row groups, or all lines of a JSONL
    /// file.
    pub(crate) fn independent_ranges(&self) -> Vec<Range<u64>> {
        match self {
            Self::Parquet(file) => {
                file.segments().iter().map(|segment| segment.rows.clone()).collect()
            }
            Self::Jsonl(_) => std::iter::once(0..self.rows()).collect(),
        }
    }

    /// Reads every row. `first_row` is the number of rows of the dataset before the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be reopened, or a Parquet file is damaged.
    pub(crate) fn read_all(&self, first_row: u64) -> Result<Chunks, DatasetError> {
        self.read(std::iter::once(0..self.rows()).collect(), first_row)
    }

    /// Reads some rows: `ranges` are ranges of row numbers of the file, ascending and disjoint. `first_row` is the number of rows of the
    /// dataset before the file.
    ///
    /// # Errors
    ///
    /// If the file cannot be reopened, or a Parquet file is damaged.
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

    /// Returns the name and type of every root column.
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

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Parquet,
    Jsonl,
}

impl FileFormat {
    /// Returns the format by the extension, or by the first bytes if the extension is unknown.
    fn of(path: &Path) -> Result<Self, DatasetError> {
        match Self::of_name(path) {
            Some(format) => Ok(format),
            None => OpenedFile::of_content(path).map(|opened| opened.format),
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
        let head = head.strip_prefix(BYTE_ORDER_MARK).unwrap_or(head);
        match head {
            b"PAR1" => Some(Self::Parquet),
            head if head.trim_ascii_start().starts_with(b"{") => Some(Self::Jsonl),
            _ => None,
        }
    }
}

/// The content of a file. The bytes that were read to detect the format come from memory, because a pipe returns them only once.
pub(crate) type FileContent = Chain<Cursor<Vec<u8>>, File>;

/// A file that is opened once, with its format.
pub(crate) struct OpenedFile {
    pub(crate) format: FileFormat,
    pub(crate) content: FileContent,
}

impl OpenedFile {
    /// Opens a file and detects its format.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened or read, or is neither Parquet nor JSONL.
    pub(crate) fn open(path: &Path) -> Result<Self, DatasetError> {
        let Some(format) = FileFormat::of_name(path) else { return Self::of_content(path) };
        let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        Ok(Self { format, content: Cursor::new(Vec::new()).chain(file) })
    }

    fn of_content(path: &Path) -> Result<Self, DatasetError> {
        let mut head = Vec::new();
        let mut file = File::open(path).map_err(DatasetError::io(path, "open"))?;
        let read = file.by_ref().take(4).read_to_end(&mut head);
        read.map_err(DatasetError::io(path, "read"))?;
        let format = FileFormat::of_head(&head).ok_or_else(|| DatasetError::UnknownFormat {
            file: path.to_owned(),
            expected: "a .parquet, .jsonl or .json file",
            found: match unsupported_format(&head) {
                Some(format) => format.to_owned(),
                None if head.is_empty() => "an empty file".to_owned(),
                None => format!("content that begins with {}", quoted(&head)),
            },
        })?;
        Ok(Self { format, content: Cursor::new(head).chain(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::FileFormat;

    #[test]
    fn content_of_json_may_begin_with_a_byte_order_mark() {
        for head in [&b"{\"a\""[..], b" \n{\"", b"\xef\xbb\xbf{"] {
            assert!(matches!(FileFormat::of_head(head), Some(FileFormat::Jsonl)), "{head:?}");
        }
        assert!(FileFormat::of_head(b"\xef\xbb\xbf[").is_none());
    }
}
