//! Reads and writes parts as rows and as JSON.

use std::sync::Arc;

use arrow_array::{ArrayRef, RecordBatch};
use arrow_schema::{Fields, Schema, SchemaRef};
use arrow_select::concat::concat_batches;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::shared_list::{shared, unshared_field};
use rollpacker_dataflow::snapshot::{Part, RestoredSnapshot};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::ResumeError;

/// Returns `columns` as a part with the rows of `schema`. If there are no columns, the part has no rows.
pub(crate) fn rows(schema: &SchemaRef, columns: Vec<ArrayRef>) -> Part {
    let rows = (!columns.is_empty()).then(|| Batch::from_columns(schema, columns));
    let rows = rows.and_then(Batch::into_rows);
    Part::rows(rows.unwrap_or_else(|| RecordBatch::new_empty(schema.clone())))
}

pub(crate) fn json(value: &impl Serialize) -> Part {
    Part::bytes("json", serde_json::to_vec(value).expect("invariant: a state is plain data"))
}

/// Returns the concatenated rows of the parts with the name `part` from all workers; `None` if no worker wrote such a part.
///
/// # Errors
/// If a part cannot be read, its columns differ from `schema`, or all parts together have more text than one column can hold.
pub(crate) fn read_rows(
    restored: &RestoredSnapshot,
    part: &'static str,
    schema: &SchemaRef,
) -> Result<Option<Batch>, ResumeError> {
    if !has_part(restored, part) {
        return Ok(None);
    }
    let parts: Vec<_> = restored.rows(part)?.into_iter().map(|(_, rows)| rows).collect();
    let plain: Fields = schema.fields().iter().map(unshared_field).collect();
    let differs =
        |expected, found| ResumeError::Layout { step: restored.step(), part, expected, found };
    if let Some(other) = parts.iter().find(|rows| *rows.schema().fields() != plain) {
        let found = format!("{:?}", names(&other.schema()));
        return Err(differs(format!("the columns {:?}", names(schema)), found));
    }
    // The text of all parts may exceed the limit of a column, 2 GiB.
    let rows = concat_batches(&Arc::new(Schema::new(plain)), &parts)
        .map_err(|error| differs("texts that fit into one column".to_owned(), error.to_string()))?;
    Ok(Some(Batch::new(shared(&rows, schema))))
}

/// Returns the value of the part that the first worker wrote; `None` if it wrote none.
///
/// # Errors
/// If the part cannot be read, or is not a valid `T`.
pub(crate) fn read_json<T: DeserializeOwned>(
    restored: &RestoredSnapshot,
    part: &'static str,
) -> Result<Option<T>, ResumeError> {
    let Some(bytes) = read_bytes(restored, part)? else { return Ok(None) };
    serde_json::from_slice(&bytes).map(Some).map_err(|error| ResumeError::Layout {
        step: restored.step(),
        part,
        expected: format!("a {}", std::any::type_name::<T>()),
        found: error.to_string(),
    })
}

/// Returns the bytes of the part that the first worker wrote; `None` if it wrote none.
///
/// # Errors
/// If the part cannot be read.
pub(crate) fn read_bytes(
    restored: &RestoredSnapshot,
    part: &'static str,
) -> Result<Option<Vec<u8>>, ResumeError> {
    if !has_part(restored, part) {
        return Ok(None);
    }
    Ok(restored.parts(part)?.into_iter().next().map(|(_, bytes)| bytes))
}

fn has_part(restored: &RestoredSnapshot, part: &str) -> bool {
    restored.records(part).next().is_some()
}

fn names(schema: &SchemaRef) -> Vec<&str> {
    schema.fields().iter().map(|field| field.name().as_str()).collect()
}
