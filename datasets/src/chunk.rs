//! A run of decoded rows in one layout, whatever the file's.

use std::path::Path;
use std::sync::Arc;

use arrow::array::{Array, StringArray};

use crate::error::DatasetError;
use crate::json::{Extra, Json};
use crate::messages::Messages;
use crate::validate::DefectKind;

/// A run of decoded rows of one file. The columns are the file's own, shared with the batch they were decoded into.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) file: Arc<Path>,
    /// Rows of the dataset before the file.
    pub(crate) first_row: u64,
    /// The row of the file that each is.
    pub(crate) rows: Vec<u64>,
    pub(crate) messages: Messages,
    pub(crate) data_source: Option<StringArray>,
    pub(crate) default_data_source: Arc<str>,
    pub(crate) domain: Option<StringArray>,
    pub(crate) ground_truth: Option<Json>,
    pub(crate) extra: Extra,
    /// Rows found bad while decoding, in order of their index.
    pub(crate) bad: Vec<(u32, RowDefect)>,
}

/// What is wrong with a row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RowDefect {
    pub(crate) kind: DefectKind,
    pub(crate) column: Arc<str>,
    pub(crate) expected: &'static str,
    pub(crate) found: String,
}

impl RowDefect {
    pub(crate) fn new(
        kind: DefectKind,
        column: &Arc<str>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self { kind, column: column.clone(), expected, found: found.into() }
    }

    /// A value of the wrong kind.
    pub(crate) fn value(
        column: &Arc<str>,
        expected: &'static str,
        found: impl Into<String>,
    ) -> Self {
        Self::new(DefectKind::WrongValue, column, expected, found)
    }
}

/// The index of a row in its chunk, which holds at most [`CHUNK_ROWS`](crate::file::CHUNK_ROWS).
pub(crate) fn index_u32(index: usize) -> u32 {
    u32::try_from(index).expect("invariant: a chunk has few rows")
}

impl Chunk {
    pub(crate) fn len(&self) -> usize {
        self.rows.len()
    }

    #[inline]
    pub(crate) fn data_source(&self, index: usize) -> &str {
        value(self.data_source.as_ref(), index).unwrap_or(&self.default_data_source)
    }

    #[inline]
    pub(crate) fn domain(&self, index: usize) -> &str {
        value(self.domain.as_ref(), index).unwrap_or_else(|| self.data_source(index))
    }

    /// What is wrong with a row, if it cannot be used.
    pub(crate) fn defect(&self, index: usize) -> Option<RowDefect> {
        match self.bad.binary_search_by_key(&index, |(at, _)| *at as usize) {
            Ok(at) => Some(self.bad[at].1.clone()),
            Err(_) => self.messages.defect(index),
        }
    }

    /// # Errors
    ///
    /// When the row cannot be used.
    pub(crate) fn check(&self, index: usize) -> Result<(), DatasetError> {
        match self.defect(index) {
            None => Ok(()),
            Some(defect) => Err(DatasetError::BadRow {
                file: self.file.to_path_buf(),
                row: self.rows[index],
                column: defect.column.to_string(),
                expected: defect.expected,
                found: defect.found,
            }),
        }
    }
}

#[inline]
fn value(column: Option<&StringArray>, index: usize) -> Option<&str> {
    column.filter(|column| column.is_valid(index)).map(|column| column.value(index))
}
