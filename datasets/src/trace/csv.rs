//! Traces in CSV, with a header of column names.

use std::borrow::Cow;
use std::fs::File;
use std::path::Path;

use super::plan::TraceColumnKind;
use super::{RowLocation, TraceCell, TraceReader, bad_line};
use crate::error::DatasetError;

pub(super) fn read(
    path: &Path,
    delimiter: u8,
    trace: &mut TraceReader<'_>,
) -> Result<(), DatasetError> {
    let file = File::open(path).map_err(DatasetError::io(path, "open"))?;
    let mut reader = ::csv::ReaderBuilder::new().delimiter(delimiter).from_reader(file);
    let failed = |row: u64| {
        move |error: ::csv::Error| bad_line(path, row, "a CSV record", error.to_string())
    };
    let header = reader.headers().map_err(failed(0))?.clone();
    if header.is_empty() {
        return Err(DatasetError::NoRows { file: path.to_owned() });
    }
    let columns: Vec<(String, TraceColumnKind)> =
        header.iter().map(|name| (name.trim().to_owned(), TraceColumnKind::Field)).collect();
    let plan = trace.plan(path, &columns)?;
    let mut record = ::csv::StringRecord::new();
    let mut row = 0;
    while reader.read_record(&mut record).map_err(failed(row))? {
        let at = RowLocation { file: path, row, columns: &columns };
        trace.push(&at, &plan, |column| match record.get(column) {
            None | Some("") => TraceCell::Null,
            Some(text) => TraceCell::Text(Cow::Borrowed(text)),
        })?;
        row += 1;
    }
    Ok(())
}
