//! What can be wrong with a dataset.

use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;

/// What can be wrong with a dataset. Rows count from 0 within their file, so that row 0 of a JSONL file is its first line.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The configuration names no file.
    #[error("`files`: expected at least one path or glob, found none")]
    NoFiles,
    /// A path or glob matches nothing.
    #[error("`files`: no file matches `{pattern}`")]
    NoMatch {
        /// The path or glob as configured.
        pattern: String,
    },
    /// A glob that cannot be read as one.
    #[error("`files`: `{pattern}` is not a glob")]
    Pattern {
        /// The glob as configured.
        pattern: String,
        /// What is wrong with it.
        source: glob::PatternError,
    },
    /// A setting out of its bounds.
    #[error("`{key}`: expected {expected}, found {found}")]
    Setting {
        /// The key of the configuration.
        key: &'static str,
        /// What would be right.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// The operating system refused.
    #[error("{}: cannot {operation} it", file.display())]
    Io {
        /// The file.
        file: PathBuf,
        /// What was tried: `open`, `read`, `create`, ...
        operation: &'static str,
        /// What it said.
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// A file that can be read only once, where rows are read several times or out of order.
    #[error(
        "{}: expected a regular file, found {found}, which can be read only once; write its content to a file and read that",
        file.display()
    )]
    ReadOnce {
        /// The file.
        file: PathBuf,
        /// The kind of file.
        found: &'static str,
    },
    /// A file of a format that is not read here.
    #[error("{}: expected {expected}, found {found}", file.display())]
    UnknownFormat {
        /// The file.
        file: PathBuf,
        /// The formats that are.
        expected: &'static str,
        /// How it begins.
        found: String,
    },
    /// A file called Parquet that is not.
    #[error("{}: not a Parquet file: expected `PAR1` at its beginning, found {found}", file.display())]
    NotParquet {
        /// The file.
        file: PathBuf,
        /// How it begins.
        found: String,
    },
    /// A Parquet file without its end.
    #[error("{}: truncated: expected `PAR1` at its end, found {found} after {bytes} bytes", file.display())]
    Truncated {
        /// The file.
        file: PathBuf,
        /// How it ends.
        found: String,
        /// Its length.
        bytes: u64,
    },
    /// A Parquet footer that cannot be read.
    #[error("{}: damaged footer", file.display())]
    Footer {
        /// The file.
        file: PathBuf,
        /// What the Parquet reader said.
        source: ParquetError,
    },
    /// Rows that cannot be decoded.
    #[error("{}: row {row} or one soon after it: damaged data", file.display())]
    Damaged {
        /// The file.
        file: PathBuf,
        /// The first row that was not decoded.
        row: u64,
        /// What the Parquet reader said.
        source: ParquetError,
    },
    /// A file without rows.
    #[error("{}: expected at least one row, found 0", file.display())]
    NoRows {
        /// The file.
        file: PathBuf,
    },
    /// A column that is not there.
    #[error("{}: column `{column}` is absent: expected one of that name, found {}", file.display(), found.join(", "))]
    AbsentColumn {
        /// The file.
        file: PathBuf,
        /// The column, a dot between a struct and its field.
        column: String,
        /// The columns there are.
        found: Vec<String>,
    },
    /// A column of a type that cannot be used.
    #[error("{}: column `{column}`: expected {expected}, found {found}", file.display())]
    WrongType {
        /// The file.
        file: PathBuf,
        /// The column.
        column: String,
        /// The types that can be used.
        expected: &'static str,
        /// Its type.
        found: String,
    },
    /// A row that cannot be used.
    #[error("{}: row {row}: column `{column}`: expected {expected}, found {found}", file.display())]
    BadRow {
        /// The file.
        file: PathBuf,
        /// The row.
        row: u64,
        /// The column.
        column: String,
        /// What would be right.
        expected: &'static str,
        /// What is there.
        found: String,
    },
    /// A cursor taken from other files or another order.
    #[error(
        "the cursor belongs to another dataset or order: expected fingerprint {expected:016x}, found {found:016x}"
    )]
    ForeignCursor {
        /// The fingerprint of this dataset.
        expected: u64,
        /// The fingerprint in the cursor.
        found: u64,
    },
    /// A cursor behind the last row.
    #[error("the cursor lies behind the end: expected an offset of at most {rows}, found {offset}")]
    CursorRange {
        /// Rows of an epoch.
        rows: u64,
        /// The offset in the cursor.
        offset: u64,
    },
    /// Fewer rows than there were when the dataset was opened.
    #[error("the files changed while they were read: expected {expected} rows, found {found}")]
    Changed {
        /// Rows there should be.
        expected: u64,
        /// Rows there are.
        found: u64,
    },
    /// A filter that lets nothing through.
    #[error(
        "epoch {epoch}: every prompt is longer than {limit}: expected at least one that is not"
    )]
    AllFiltered {
        /// The epoch, from 0.
        epoch: u32,
        /// The limit.
        limit: usize,
    },
    /// A Parquet file that cannot be written.
    #[error("{}: cannot write row {row}", file.display())]
    Write {
        /// The file.
        file: PathBuf,
        /// Rows written before.
        row: u64,
        /// What the Parquet writer said.
        source: ParquetError,
    },
    /// A column that cannot be laid out in Arrow.
    #[error("{}: cannot lay out the columns", file.display())]
    Layout {
        /// The file.
        file: PathBuf,
        /// What Arrow said.
        source: arrow::error::ArrowError,
    },
}

impl DatasetError {
    pub(crate) fn io(file: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, operation, source }
    }

    /// Whether it concerns one row only, so that reading can go on behind it.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, Self::BadRow { .. })
    }
}

/// Some bytes for a message: as text where they are, in hexadecimal otherwise.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => "nothing".to_owned(),
        Ok(text) if !text.contains(|c: char| c.is_control()) => format!("`{text}`"),
        _ => bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}
