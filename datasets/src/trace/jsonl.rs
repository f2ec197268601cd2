//! Traces in JSON lines. The first 64 rows determine the columns.

use std::borrow::Cow;
use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value};

use super::plan::TraceColumnKind;
use super::{RowLocation, TraceCell, TraceReader};
use crate::error::DatasetError;
use crate::file::OpenedFile;
use crate::jsonl::{COLUMN_ROWS, JsonlRecords, add_columns};

pub(super) fn read(path: &Path, trace: &mut TraceReader<'_>) -> Result<(), DatasetError> {
    let path: Arc<Path> = path.into();
    let mut objects = JsonlRecords::of(&path, OpenedFile::open(&path)?.content);
    let first = objects.by_ref().take(COLUMN_ROWS as usize).collect::<Result<Vec<_>, _>>()?;
    let mut fields = Map::new();
    first.iter().for_each(|object| add_columns(&mut fields, object.clone()));
    if first.is_empty() {
        return Ok(());
    }
    let columns: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), kind(value))).collect();
    let plan = trace.plan(&path, &columns)?;
    for (object, row) in first.into_iter().map(Ok).chain(objects).zip(0..) {
        let object = object?;
        let at = RowLocation { file: &path, row, columns: &columns };
        trace.push(&at, &plan, |column| {
            object.get(columns[column].0.as_str()).map_or(TraceCell::Null, cell)
        })?;
    }
    Ok(())
}

fn kind(value: &Value) -> TraceColumnKind {
    match value {
        Value::Number(_) => TraceColumnKind::Number,
        Value::String(_) => TraceColumnKind::Text,
        Value::Array(_) => TraceColumnKind::List,
        Value::Null => TraceColumnKind::Null,
        Value::Bool(_) | Value::Object(_) => TraceColumnKind::Other,
    }
}

fn cell(value: &Value) -> TraceCell<'_> {
    match value {
        Value::Null => TraceCell::Null,
        Value::Number(number) => number.as_i128().map_or_else(
            || TraceCell::Float(number.as_f64().unwrap_or(f64::NAN)),
            TraceCell::Integer,
        ),
        Value::String(text) => TraceCell::Text(Cow::Borrowed(text)),
        Value::Array(entries) => TraceCell::List(entries.len()),
        Value::Bool(_) => TraceCell::Other("a truth value"),
        Value::Object(_) => TraceCell::Other("an object"),
    }
}
