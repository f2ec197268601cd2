//! Generic records: the rows of any Parquet or JSONL file as JSON objects.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use crate::error::DatasetError;
use crate::file::{FileFormat, OpenedFile};
use crate::jsonl::JsonlRecords;
use crate::parquet::ParquetRecords;
use crate::reopen::check_reopens;

/// An iterator over the rows of one file, in order, each as a JSON object of its columns. Reading continues after an error for which
/// [`DatasetError::is_row`] returns `true`; any other error ends the iteration.
///
/// For files that are not prompt datasets: nothing is assumed about the columns. Memory: a batch of at most 256 rows.
pub struct Records {
    /// The number of rows, if the file format stores it.
    rows: Option<u64>,
    /// `true` after an error that ends the iteration.
    failed: bool,
    records: Box<dyn Iterator<Item = Result<Map<String, Value>, DatasetError>> + Send>,
}

impl Records {
    /// Opens a file. Also opens a pipe of JSONL, which is read in one pass.
    ///
    /// # Errors
    ///
    /// If the file cannot be opened, is neither Parquet nor JSONL, is Parquet in a pipe, or is damaged.
    pub fn open(path: &Path) -> Result<Self, DatasetError> {
        let path: Arc<Path> = path.into();
        let of = |rows, records| Self { rows, failed: false, records };
        let OpenedFile { format, content } = OpenedFile::open(&path)?;
        Ok(match format {
            FileFormat::Parquet => {
                let records = ParquetRecords::open(path)?;
                of(Some(records.rows()), Box::new(records))
            }
            FileFormat::Jsonl => of(None, Box::new(JsonlRecords::of(&path, content))),
        })
    }

    /// Checks that a file can be read several times. A folder passes: opening it as a file fails later.
    ///
    /// # Errors
    ///
    /// If the file is a pipe, a socket or a device ([`DatasetError::ReadOnce`]), or cannot be examined ([`DatasetError::Io`]).
    pub fn check_reopens(path: &Path) -> Result<(), DatasetError> {
        check_reopens(path)
    }

    /// Returns the number of rows, if the file format stores it.
    #[must_use]
    pub fn rows(&self) -> Option<u64> {
        self.rows
    }
}

impl Iterator for Records {
    type Item = Result<Map<String, Value>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        let record = if self.failed { None } else { self.records.next() };
        self.failed |= matches!(&record, Some(Err(error)) if !error.is_row());
        record
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::{Compression, DatasetConfig, WriteOptions, convert};

    #[test]
    fn both_formats_return_their_columns_and_bad_lines_separately() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("rows.jsonl");
        fs::write(
            &path,
            "{\"prompt\": \"x\", \"answer\": 7}\n\nnonsense\n[1]\n{\"prompt\": \"y\"}\n",
        )
        .expect("written");
        let rows: Vec<_> = Records::open(&path).expect("opened").collect();
        let right = |row: usize| Value::Object(rows[row].as_ref().expect("a row").clone());
        assert_eq!(rows.len(), 4);
        assert_eq!(right(0), serde_json::json!({"prompt": "x", "answer": 7}));
        assert_eq!(right(3), serde_json::json!({"prompt": "y"}));
        let error = rows[1].as_ref().expect_err("no JSON");
        assert!(error.is_row() && error.to_string().contains("row 1"), "{error}");

        fs::write(&path, "{\"prompt\": \"x\", \"answer\": 7}\n").expect("written");
        let parquet = folder.path().join("rows.parquet");
        let options = WriteOptions { compression: Compression::Snappy, row_group_rows: 2 };
        let config = DatasetConfig::of([path.display().to_string()]);
        convert(&config, &parquet, convert::OutputFormat::Verl, options).expect("converted");
        let records = Records::open(&parquet).expect("opened");
        assert_eq!(records.rows(), Some(1));
        let rows: Vec<_> = records.collect::<Result<_, _>>().expect("rows");
        assert_eq!(rows[0]["reward_model"]["ground_truth"], "7");
        assert_eq!(rows[0]["prompt"][0]["content"], "x");

        let mut damaged = fs::read(&parquet).expect("read");
        damaged[4..24].fill(0xff);
        fs::write(&parquet, damaged).expect("written");
        let rows: Vec<_> = Records::open(&parquet).expect("opened").take(9).collect();
        let [Err(error)] = rows.as_slice() else { panic!("{rows:?}") };
        assert!(!error.is_row() && error.to_string().contains("row 0"), "{error}");
    }
}
