//! Traces in Parquet. Only the columns in use are read.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use ::parquet::arrow::ProjectionMask;
use ::parquet::arrow::arrow_reader::{
    ArrowReaderMetadata, ArrowReaderOptions, ParquetRecordBatchReaderBuilder,
};
use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, Int64Type, UInt64Type};
use arrow_array::{Array, ArrayRef};
use arrow_cast::cast;
use arrow_schema::{ArrowError, DataType};

use super::plan::{TraceColumnKind, TraceColumns};
use super::{RowLocation, TraceCell, TraceReader};
use crate::error::DatasetError;
use crate::parquet::check_magic;

/// The number of rows decoded at once. It is small because a row may contain all its tokens as a list.
const ROWS: usize = 1024;

pub(super) fn read(path: &Path, trace: &mut TraceReader<'_>) -> Result<(), DatasetError> {
    check_magic(path)?;
    let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
    let options = ArrowReaderOptions::new().with_skip_arrow_metadata(true);
    let metadata = ArrowReaderMetadata::load(&file, options)
        .map_err(|source| DatasetError::Footer { file: path.to_owned(), source })?;
    let columns: Vec<(String, TraceColumnKind)> = metadata
        .schema()
        .fields()
        .iter()
        .map(|field| (field.name().clone(), kind(field.data_type())))
        .collect();
    let plan = trace.plan(path, &columns)?;
    let mut row = 0;
    let damaged = |row, source| DatasetError::Damaged { file: path.to_owned(), row, source };
    let mask = ProjectionMask::roots(metadata.parquet_schema(), plan.columns());
    let reader = ParquetRecordBatchReaderBuilder::new_with_metadata(file, metadata)
        .with_batch_size(ROWS)
        .with_projection(mask)
        .build()
        .map_err(|source| damaged(0, source))?;
    for batch in reader {
        let batch = batch.map_err(|source| damaged(row, source.into()))?;
        let arrays: Vec<Option<ArrayRef>> = columns
            .iter()
            .map(|(name, _)| batch.column_by_name(name).map(plain).transpose())
            .collect::<Result<_, _>>()
            .map_err(|source| damaged(row, source.into()))?;
        for index in 0..batch.num_rows() {
            let at = RowLocation { file: path, row, columns: &columns };
            trace.push(&at, &plan, |column| {
                arrays[column].as_ref().map_or(TraceCell::Null, |array| cell(array, index))
            })?;
            row += 1;
        }
    }
    Ok(())
}

impl TraceColumns {
    fn columns(&self) -> impl Iterator<Item = usize> {
        let prompt_length = self.prompt_length.map(|(index, _)| index);
        let others =
            [self.prompt, prompt_length, self.sample, self.resumed, self.step, self.finish_reason];
        std::iter::once(self.length.0).chain(others.into_iter().flatten())
    }
}

fn kind(data_type: &DataType) -> TraceColumnKind {
    match data_type {
        data_type if data_type.is_integer() || data_type.is_floating() => TraceColumnKind::Number,
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => TraceColumnKind::Text,
        DataType::List(_) | DataType::LargeList(_) => TraceColumnKind::List,
        _ => TraceColumnKind::Other,
    }
}

/// Casts integers to `Int64` (except `UInt64`), floats to `Float64` and text to `Utf8`. Returns other arrays as they are.
fn plain(array: &ArrayRef) -> Result<ArrayRef, ArrowError> {
    match array.data_type() {
        DataType::UInt64 | DataType::List(_) | DataType::LargeList(_) => Ok(array.clone()),
        data_type if data_type.is_integer() => cast(array, &DataType::Int64),
        data_type if data_type.is_floating() => cast(array, &DataType::Float64),
        DataType::LargeUtf8 | DataType::Utf8View => cast(array, &DataType::Utf8),
        _ => Ok(array.clone()),
    }
}

fn cell(array: &ArrayRef, row: usize) -> TraceCell<'_> {
    if array.is_null(row) {
        return TraceCell::Null;
    }
    match array.data_type() {
        DataType::UInt64 => {
            TraceCell::Integer(array.as_primitive::<UInt64Type>().value(row).into())
        }
        DataType::Int64 => TraceCell::Integer(array.as_primitive::<Int64Type>().value(row).into()),
        DataType::Float64 => TraceCell::Float(array.as_primitive::<Float64Type>().value(row)),
        DataType::Utf8 => TraceCell::Text(Cow::Borrowed(array.as_string::<i32>().value(row))),
        DataType::List(_) => TraceCell::List(array.as_list::<i32>().value(row).len()),
        DataType::LargeList(_) => TraceCell::List(array.as_list::<i64>().value(row).len()),
        _ => TraceCell::Other("another type"),
    }
}
