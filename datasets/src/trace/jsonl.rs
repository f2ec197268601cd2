//! Traces in JSON lines. The first 64 rows determine the columns.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::plan::TraceColumnKind;
use super::{RowLocation, TraceCell, TraceReader, bad_line};
use crate::error::DatasetError;
use crate::jsonl::{COLUMN_ROWS, add_columns};

pub(super) fn read(path: &Path, trace: &mut TraceReader<'_>) -> Result<(), DatasetError> {
    let mut lines = BufReader::new(File::open(path).map_err(DatasetError::io(path, "open"))?);
    let mut line = String::new();
    let mut row = 0;
    let mut next = || -> Result<Option<Map<String, Value>>, DatasetError> {
        loop {
            line.clear();
            if lines.read_line(&mut line).map_err(DatasetError::io(path, "read"))? == 0 {
                return Ok(None);
            }
            if !line.trim().is_empty() {
                let object = object(&line);
                row += 1;
                let wrong = |found| bad_line(path, row - 1, "a JSON object", found);
                return object.map(Some).map_err(wrong);
            }
        }
    };
    let (mut first, mut fields) = (Vec::new(), Map::new());
    while (first.len() as u64) < COLUMN_ROWS
        && let Some(object) = next()?
    {
        add_columns(&mut fields, object.clone());
        first.push(object);
    }
    if first.is_empty() {
        return Ok(());
    }
    let columns: Vec<_> = fields.iter().map(|(name, value)| (name.clone(), kind(value))).collect();
    let plan = trace.plan(path, &columns)?;
    let rest = std::iter::from_fn(|| next().transpose());
    for (object, row) in first.into_iter().map(Ok).chain(rest).zip(0..) {
        let object = object?;
        let at = RowLocation { file: path, row, columns: &columns };
        trace.push(&at, &plan, |column| {
            object.get(columns[column].0.as_str()).map_or(TraceCell::Null, cell)
        })?;
    }
    Ok(())
}

fn object(line: &str) -> Result<Map<String, Value>, String> {
    match serde_json::from_str(line) {
        Ok(Value::Object(object)) => Ok(object),
        Ok(_) => Err("another value".to_owned()),
        Err(error) => Err(error.to_string()),
    }
}

fn kind(value: &Value) -> TraceColumnKind {
    match value {
        Value::Number(_) => TraceColumnKind::Number,
        Value::String(_) => TraceColumnKind::Text,
        Value::Array(_) => TraceColumnKind::List,
        Value::Null | Value::Bool(_) | Value::Object(_) => TraceColumnKind::Other,
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
