//! Chunks: runs of decoded rows in one layout, independent of the file format.

use std::path::Path;
use std::sync::Arc;

use arrow_array::{Array, StringArray};

use crate::defect::RowDefect;
use crate::error::DatasetError;
use crate::json::{ExtraColumns, JsonColumn};
use crate::messages::Messages;

/// A run of decoded rows of one file. The columns are the file's own and share the memory of the batch that they were decoded into.
#[derive(Debug)]
pub(crate) struct Chunk {
    pub(crate) file: Arc<Path>,
    /// The number of rows of the dataset before the file.
    pub(crate) first_row: u64,
    /// The row number of each row within the file.
    pub(crate) rows: Vec<u64>,
    pub(crate) messages: Messages,
    pub(crate) data_source: Option<StringArray>,
    pub(crate) default_data_source: Arc<str>,
    pub(crate) domain: Option<StringArray>,
    pub(crate) ground_truth: Option<JsonColumn>,
    pub(crate) extra: ExtraColumns,
    /// The rows found bad while decoding, in order of their index.
    pub(crate) bad: Vec<(u32, RowDefect)>,
}

/// An iterator over the chunks of some rows of one file.
pub(crate) type Chunks = Box<dyn Iterator<Item = Result<Chunk, DatasetError>> + Send>;

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

    /// Returns the defect of a row, if the row cannot be used.
    pub(crate) fn defect(&self, index: usize) -> Option<RowDefect> {
        match self.bad.binary_search_by_key(&index, |(at, _)| *at as usize) {
            Ok(at) => Some(self.bad[at].1.clone()),
            Err(_) => self.messages.defect(index),
        }
    }

    /// Checks that a row can be used.
    ///
    /// # Errors
    ///
    /// [`DatasetError::BadRow`] if the row has a [`defect`](Self::defect).
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
