//! Parquet rows with arbitrary columns as generic records.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use ::parquet::arrow::arrow_reader::{
    ArrowReaderOptions, ParquetRecordBatchReader, ParquetRecordBatchReaderBuilder,
};
use ::parquet::errors::ParquetError;
use arrow_array::RecordBatch;
use serde_json::{Map, Value};

use crate::error::DatasetError;
use crate::json::{ExtraColumns, JsonColumn};
use crate::parquet::schema::check_magic;

/// The number of rows decoded at once.
const BATCH_ROWS: usize = 256;

/// An iterator over the rows of a file as JSON objects.
pub(crate) struct ParquetRecords {
    path: Arc<Path>,
    reader: ParquetRecordBatchReader,
    rows: u64,
    batch: (ExtraColumns, usize),
    /// The index of the next row in the batch and in the file.
    next: (usize, u64),
}

impl ParquetRecords {
    pub(crate) fn open(path: Arc<Path>) -> Result<Self, DatasetError> {
        check_magic(&path)?;
        let file = File::open(&path).map_err(DatasetError::io(&path, "open"))?;
        let footer = |source| DatasetError::Footer { file: path.to_path_buf(), source };
        let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
        let builder =
            ParquetRecordBatchReaderBuilder::try_new_with_options(file, options).map_err(footer)?;
        let rows = builder.metadata().file_metadata().num_rows().unsigned_abs();
        let reader = builder.with_batch_size(BATCH_ROWS).build().map_err(footer)?;
        let none = ExtraColumns { info: None, columns: Vec::new() };
        Ok(Self { path, reader, rows, batch: (none, 0), next: (0, 0) })
    }

    pub(crate) fn rows(&self) -> u64 {
        self.rows
    }

    fn load(&mut self, batch: &RecordBatch) -> Result<(), DatasetError> {
        let schema = batch.schema();
        let named = schema.fields().iter().zip(batch.columns());
        let columns = named
            .map(|(field, column)| Ok((field.name().clone(), JsonColumn::of(column)?)))
            .collect::<Result<_, _>>()
            .map_err(|source| DatasetError::Layout { file: self.path.to_path_buf(), source })?;
        self.batch = (ExtraColumns { info: None, columns }, batch.num_rows());
        self.next.0 = 0;
        Ok(())
    }
}

impl Iterator for ParquetRecords {
    type Item = Result<Map<String, Value>, DatasetError>;

    fn next(&mut self) -> Option<Self::Item> {
        while self.next.0 == self.batch.1 {
            let loaded = match self.reader.next()? {
                Ok(batch) => self.load(&batch),
                Err(error) => {
                    let source = ParquetError::ArrowError(error.to_string());
                    let file = self.path.to_path_buf();
                    Err(DatasetError::Damaged { file, row: self.next.1, source })
                }
            };
            if let Err(error) = loaded {
                return Some(Err(error));
            }
        }
        let row = self.batch.0.map(self.next.0);
        self.next = (self.next.0 + 1, self.next.1 + 1);
        Some(Ok(row))
    }
}
