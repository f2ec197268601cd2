//! Traces in JSON lines. The first line determines the columns.

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::Path;

use serde_json::{Map, Value};

use super::plan::{TraceColumnKind, TraceColumns};
use super::{RowLocation, TraceCell, TraceReader, bad_line};
use crate::error::DatasetError;

pub(super) fn read(path: &Path, trace: &mut TraceReader<'_>) -> Result<(), DatasetError> {
    let mut lines = BufReader::new(File::open(path).map_err(DatasetError::io(path, "open"))?);
    let mut line = String::new();
    let mut planned: Option<(Vec<(String, TraceColumnKind)>, TraceColumns)> = None;
    let mut row = 0;
    while lines.read_line(&mut line).map_err(DatasetError::io(path, "read"))? > 0 {
        if !line.trim().is_empty() {
            let object =
                object(&line).map_err(|found| bad_line(path, row, "a JSON object", found))?;
            if planned.is_none() {
                let columns: Vec<_> =
                    object.iter().map(|(name, value)| (name.clone(), kind(value))).collect();
                planned = Some((columns.clone(), trace.plan(path, &columns)?));
            }
            let (columns, plan) =
                planned.as_ref().expect("invariant: the first line sets the plan");
            let at = RowLocation { file: path, row, columns };
            trace.push(&at, plan, |column| {
                object.get(columns[column].0.as_str()).map_or(TraceCell::Null, cell)
            })?;
            row += 1;
        }
        line.clear();
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
