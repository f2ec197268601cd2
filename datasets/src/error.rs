//! Errors of datasets.

use std::path::{Path, PathBuf};

use ::parquet::errors::ParquetError;

/// An error of a dataset. Rows count from 0 within their file, so row 0 of a JSONL file is its first line that is not blank.
#[derive(Debug, thiserror::Error)]
pub enum DatasetError {
    /// The configuration names no file.
    #[error("expected at least one path or glob, found none")]
    NoFiles,
    /// A path or glob matches nothing, or a folder contains no trace.
    #[error("no file matches `{pattern}`")]
    NoMatch {
        /// The path or glob as configured; for a trace, the folder followed by `/*`.
        pattern: String,
    },
    /// A glob with invalid syntax.
    #[error("`{pattern}` is not a valid glob")]
    Pattern {
        /// The glob as configured.
        pattern: String,
        /// The syntax error.
        source: glob::PatternError,
    },
    /// A setting out of bounds.
    #[error("`{key}`: expected {expected}, found {found}")]
    Setting {
        /// The key of the configuration.
        key: &'static str,
        /// The valid values.
        expected: &'static str,
        /// The configured value.
        found: String,
    },
    /// A file operation failed.
    #[error("{}: cannot {operation} it", file.display())]
    Io {
        /// The path of the file or folder.
        file: PathBuf,
        /// The operation: `open`, `read`, `create`, ...
        operation: &'static str,
        /// The error of the system.
        source: std::io::Error,
    },
    /// A file that cannot be written.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// A file that can be read only once, such as a pipe, where rows must be read several times or out of order.
    #[error(
        "{}: expected a regular file, found {found}, which can be read only once; write its content to a file and read that",
        file.display()
    )]
    ReadOnce {
        /// The path of the dataset file.
        file: PathBuf,
        /// The kind of file.
        found: &'static str,
    },
    /// A file of an unsupported format.
    #[error("{}: expected {expected}, found {found}", file.display())]
    UnknownFormat {
        /// The path of the dataset file.
        file: PathBuf,
        /// The supported formats.
        expected: &'static str,
        /// A description of the extension or of the first bytes of the file.
        found: String,
    },
    /// A file with a Parquet name that is not Parquet.
    #[error("{}: not a Parquet file: expected `PAR1` at its beginning, found {found}", file.display())]
    NotParquet {
        /// The path of the dataset file.
        file: PathBuf,
        /// The first bytes of the file, or a description of their format if it is a well-known one.
        found: String,
    },
    /// A truncated Parquet file.
    #[error("{}: truncated: expected `PAR1` at its end, found {found} after {bytes} bytes", file.display())]
    Truncated {
        /// The path of the dataset file.
        file: PathBuf,
        /// The last bytes of the file.
        found: String,
        /// The length of the file in bytes.
        bytes: u64,
    },
    /// A Parquet footer that cannot be read.
    #[error("{}: damaged footer", file.display())]
    Footer {
        /// The path of the dataset file.
        file: PathBuf,
        /// The error of the Parquet reader.
        source: ParquetError,
    },
    /// Rows that cannot be decoded.
    #[error("{}: damaged data at row {row} or shortly after it", file.display())]
    Damaged {
        /// The path of the dataset file.
        file: PathBuf,
        /// The first row that was not decoded.
        row: u64,
        /// The error of the Parquet reader.
        source: ParquetError,
    },
    /// A file without rows.
    #[error("{}: expected at least one row, found 0", file.display())]
    NoRows {
        /// The path of the dataset file.
        file: PathBuf,
    },
    /// A column that is absent.
    #[error("{}: column `{column}` is absent: expected {}, found {}", file.display(), expected_column(*named), listed(found))]
    AbsentColumn {
        /// The path of the dataset file.
        file: PathBuf,
        /// The requested column, with a dot between a struct and its field. If no column was requested and none has a usual name, one usual
        /// name.
        column: String,
        /// `true` if the column was requested.
        named: bool,
        /// The columns of the file.
        found: Vec<String>,
    },
    /// A column of a type that cannot be used, or several columns of one name.
    #[error("{}: column `{column}`: expected {expected}, found {found}", file.display())]
    WrongType {
        /// The path of the dataset file.
        file: PathBuf,
        /// The column.
        column: String,
        /// The supported types, or the supported number of columns.
        expected: &'static str,
        /// The type of the column, or the number of columns.
        found: String,
    },
    /// A row that cannot be used.
    #[error("{}: row {row}: column `{column}`: expected {expected}, found {found}", file.display())]
    BadRow {
        /// The path of the dataset file.
        file: PathBuf,
        /// The row of the file, from 0.
        row: u64,
        /// The column, or `(the line)` if the line does not have the format of its file.
        column: String,
        /// The expected value.
        expected: &'static str,
        /// The value in the file, or the error of its parser.
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
    /// A cursor beyond the last row.
    #[error("the cursor lies beyond the end: expected an offset of at most {rows}, found {offset}")]
    CursorRange {
        /// The number of rows per epoch.
        rows: u64,
        /// The offset in the cursor.
        offset: u64,
    },
    /// A file has fewer rows than when the dataset was opened.
    #[error("the files changed while they were read: expected {expected} rows, found {found}")]
    Changed {
        /// The expected number of rows of the epoch, or of a window of the shuffled order.
        expected: u64,
        /// The number of rows found.
        found: u64,
    },
    /// Every prompt of an epoch is longer than the limit of the filter.
    #[error(
        "epoch {epoch}: every prompt is longer than {limit}, and the shortest has length {shortest}; raise the limit or check the prompts"
    )]
    AllFiltered {
        /// The epoch, from 0.
        epoch: u32,
        /// The length limit, in the unit of the measure.
        limit: usize,
        /// The length of the shortest prompt, in the unit of the measure.
        shortest: usize,
    },
    /// A Parquet file that cannot be written.
    #[error("{}: cannot write row {row}", file.display())]
    Write {
        /// The path of the dataset file.
        file: PathBuf,
        /// The number of rows written before.
        row: u64,
        /// The error of the Parquet writer.
        source: ParquetError,
    },
    /// A column that cannot be converted to or from Arrow.
    #[error("{}: cannot convert the columns", file.display())]
    Layout {
        /// The path of the dataset file.
        file: PathBuf,
        /// The error of Arrow.
        source: arrow_schema::ArrowError,
    },
}

impl DatasetError {
    pub(crate) fn io(file: &Path, operation: &'static str) -> impl FnOnce(std::io::Error) -> Self {
        let file = file.to_owned();
        move |source| Self::Io { file, operation, source }
    }

    /// Returns `true` if the error concerns a single row, so that reading can continue after it.
    #[must_use]
    pub fn is_row(&self) -> bool {
        matches!(self, Self::BadRow { .. })
    }
}

/// Formats bytes for a message: as text if they are text without control characters, in hexadecimal otherwise; `nothing` if there are none.
pub(crate) fn quoted(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        _ if bytes.is_empty() => "nothing".to_owned(),
        Ok(text) if !text.contains(|c: char| c.is_control()) => format!("`{text}`"),
        _ => bytes.iter().fold("0x".to_owned(), |text, byte| format!("{text}{byte:02x}")),
    }
}

/// Formats the first bytes of a file for a message: the format if it is a well-known one that is not supported, or else as [`quoted`] does.
pub(crate) fn head_description(head: &[u8]) -> String {
    unsupported_format(head).map_or_else(|| quoted(head), str::to_owned)
}

/// Returns a description of the content of a file or line that begins with these bytes, if it has a well-known format that is not
/// supported.
pub(crate) fn unsupported_format(head: &[u8]) -> Option<&'static str> {
    const FORMATS: [(&[u8], &str); 7] = [
        (b"\x1f\x8b", "gzip data: decompress the file"),
        (b"\x28\xb5\x2f\xfd", "zstd data: decompress the file"),
        (b"BZh", "bzip2 data: decompress the file"),
        (b"\xfd7zX", "xz data: decompress the file"),
        (b"PK\x03\x04", "a zip archive: extract the file"),
        (b"\xff\xfe", "UTF-16 text: convert the file to UTF-8"),
        (b"\xfe\xff", "UTF-16 text: convert the file to UTF-8"),
    ];
    FORMATS.iter().find(|(magic, _)| head.starts_with(magic)).map(|(_, name)| *name)
}

/// Formats an error of JSON without its position, which is relative to the parsed text. This text may be one line or one value of a file.
///
/// ```
/// use rollpacker_datasets::without_position;
///
/// let error = serde_json::from_str::<u32>("1 2").unwrap_err();
/// assert_eq!(error.to_string(), "trailing characters at line 1 column 3");
/// assert_eq!(without_position(&error), "trailing characters");
/// ```
#[must_use]
pub fn without_position(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let position = format!(" at line {} column {}", error.line(), error.column());
    text.strip_suffix(&position).map(str::to_owned).unwrap_or(text)
}

/// Formats an error of JSON that is a text within a row. Its position is that within the text.
pub(crate) fn text_error(error: &serde_json::Error) -> String {
    format!("{error} of the text")
}

/// Describes the column that an absent one should be. If none was requested, the absent column is the prompt.
pub(crate) fn expected_column(named: bool) -> &'static str {
    if named {
        "one of that name"
    } else {
        "`messages`, `prompt`, `question` or `problem`, or another column that `--prompt-key` or `data.prompt_key` names"
    }
}

/// Joins column names for a message; `no columns` if there are none.
pub(crate) fn listed(names: &[String]) -> String {
    if names.is_empty() { "no columns".to_owned() } else { names.join(", ") }
}
