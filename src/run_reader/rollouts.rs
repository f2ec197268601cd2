//! The rollouts of a run: one Parquet file per step.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use arrow_array::cast::AsArray;
use arrow_array::types::UInt64Type;
use arrow_array::{
    Array, ArrayRef, ArrowPrimitiveType, BooleanArray, PrimitiveArray, RecordBatch,
    RecordBatchReader, StringArray,
};
use arrow_select::concat::concat_batches;
use parquet::arrow::ProjectionMask;
use parquet::arrow::arrow_reader::{ParquetRecordBatchReaderBuilder, RowSelection};
use rollpacker_dataflow::schema::column;
use serde_json::Value;

use super::ReadError;
use crate::run_files::{self, ROLLOUTS_FOLDER};

/// Returns the steps that have rollouts, in order. Returns an empty list if the folder of the rollouts does not exist or cannot be read.
pub(crate) fn rollout_steps(folder: &Path) -> Vec<u64> {
    let entries = fs::read_dir(folder.join(ROLLOUTS_FOLDER)).into_iter().flatten().flatten();
    let mut steps: Vec<u64> = entries
        .map(|entry| entry.path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "parquet"))
        .filter_map(|path| run_files::step_of(&path))
        .collect();
    steps.sort_unstable();
    steps
}

/// Responses of one step, with the requested columns.
#[derive(Debug)]
pub(crate) struct Rollouts {
    path: PathBuf,
    rows: RecordBatch,
}

impl Rollouts {
    /// Reads columns of all responses of the step with the number `step`, from 1.
    ///
    /// # Errors
    /// If the file cannot be read. A missing column is an error only when it is used.
    pub(crate) fn read(folder: &Path, step: u64, columns: &[&str]) -> Result<Self, ReadError> {
        Self::select(run_files::rollouts(folder, step), columns, None)
    }

    /// Reads columns of the responses to the prompt with the id `prompt` in the step with the number `step`, from 1. There are no rows if
    /// the step has no response to the prompt.
    ///
    /// # Errors
    /// If the file cannot be read, or has no column with the ids of prompts. Another missing column is an error only when it is used.
    pub(crate) fn of_prompt(
        folder: &Path,
        step: u64,
        columns: &[&str],
        prompt: u64,
    ) -> Result<Self, ReadError> {
        let ids = Self::read(folder, step, &[column::PROMPT_ID])?;
        let own = ids.numbers::<UInt64Type>(column::PROMPT_ID)?;
        let own = BooleanArray::from_unary(own, |id| id == prompt);
        Self::select(ids.path, columns, Some(RowSelection::from_filters(&[own])))
    }

    fn select(
        path: PathBuf,
        columns: &[&str],
        selection: Option<RowSelection>,
    ) -> Result<Self, ReadError> {
        let failed = ReadError::file(&path);
        let file = File::open(&path).map_err(|error| failed(&error))?;
        let builder =
            ParquetRecordBatchReaderBuilder::try_new(file).map_err(|error| failed(&error))?;
        let mask = ProjectionMask::columns(builder.parquet_schema(), columns.iter().copied());
        let builder = builder.with_projection(mask);
        let builder = match selection {
            Some(selection) => builder.with_row_selection(selection),
            None => builder,
        };
        let reader = builder.build().map_err(|error| failed(&error))?;
        let schema = reader.schema();
        let batches = reader.collect::<Result<Vec<_>, _>>().map_err(|error| failed(&error))?;
        let rows = concat_batches(&schema, &batches).map_err(|error| failed(&error))?;
        Ok(Self { path, rows })
    }

    /// Returns the path of the Parquet file that the responses were read from.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> usize {
        self.rows.num_rows()
    }

    /// Returns a column of numbers.
    ///
    /// # Errors
    /// If the file has no such column, or the column has another type. `texts`, `flags` and `list` return errors in the same cases.
    pub(crate) fn numbers<T: ArrowPrimitiveType>(
        &self,
        name: &str,
    ) -> Result<&PrimitiveArray<T>, ReadError> {
        self.column(name)?.as_primitive_opt().ok_or_else(|| self.column_error(name))
    }

    pub(crate) fn texts(&self, name: &str) -> Result<&StringArray, ReadError> {
        self.column(name)?.as_string_opt().ok_or_else(|| self.column_error(name))
    }

    pub(crate) fn flags(&self, name: &str) -> Result<&BooleanArray, ReadError> {
        self.column(name)?.as_boolean_opt().ok_or_else(|| self.column_error(name))
    }

    /// Returns the list of a response in a column of lists; `None` if the list is null.
    pub(crate) fn list<T: ArrowPrimitiveType>(
        &self,
        name: &str,
        row: usize,
    ) -> Result<Option<Vec<T::Native>>, ReadError> {
        let lists =
            self.column(name)?.as_list_opt::<i32>().ok_or_else(|| self.column_error(name))?;
        if lists.is_null(row) {
            return Ok(None);
        }
        let items = lists.value(row);
        let items = items.as_primitive_opt::<T>().ok_or_else(|| self.column_error(name))?;
        Ok(Some(items.values().to_vec()))
    }

    fn column(&self, name: &str) -> Result<&ArrayRef, ReadError> {
        self.rows.column_by_name(name).ok_or_else(|| self.column_error(name))
    }

    /// Returns the error for a column that is missing, or whose type is not the one that a run writes.
    pub(crate) fn column_error(&self, name: &str) -> ReadError {
        ReadError::file(&self.path)(&format_args!(
            "expected the column `{name}` with the type that a run writes"
        ))
    }
}

/// Returns a text of a column; `None` if it is null.
pub(crate) fn text(texts: &StringArray, row: usize) -> Option<&str> {
    texts.is_valid(row).then(|| texts.value(row))
}

/// Returns a number of a column; `None` if it is null.
pub(crate) fn number<T: ArrowPrimitiveType>(
    numbers: &PrimitiveArray<T>,
    row: usize,
) -> Option<T::Native> {
    numbers.is_valid(row).then(|| numbers.value(row))
}

/// Formats a JSON list of messages as `role: content` lines. A missing role is `?`, and a content that is not a string is printed as JSON.
/// Returns text that is no JSON list unchanged.
pub(crate) fn dialogue(messages: &str) -> String {
    let Ok(Value::Array(list)) = serde_json::from_str(messages) else {
        return messages.to_owned();
    };
    let line = |message: &Value| {
        let content = match &message["content"] {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        format!("{}: {content}", message["role"].as_str().unwrap_or("?"))
    };
    list.iter().map(line).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_become_a_dialogue() {
        let messages = r#"[{"role":"system","content":"s"},{"role":"user","content":"u"}]"#;
        assert_eq!(dialogue(messages), "system: s\nuser: u");
        assert_eq!(dialogue("plain"), "plain");
    }
}
