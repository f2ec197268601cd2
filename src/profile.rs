//! Engine profiles as Parquet files.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow_array::cast::AsArray;
use arrow_array::types::{Float64Type, UInt32Type};
use arrow_array::{
    Array, ArrayRef, Float64Array, RecordBatch, RecordBatchOptions, StringArray, UInt32Array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use rollpacker_files::{FileError, NewFile};
use rollpacker_stages::rollout::profile::{Phase, Row};

/// An error in reading or writing a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    /// The file cannot be written.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The path of the profile.
        path: PathBuf,
        /// The error of the writer or the system.
        reason: String,
    },
    /// The path holds something that must not be replaced, or no file can be created there.
    #[error(transparent)]
    File(#[from] FileError),
    /// The file cannot be read or is not Parquet.
    #[error("cannot read {path}: {reason}")]
    Read {
        /// The path of the profile.
        path: PathBuf,
        /// The error of the reader or the system.
        reason: String,
    },
    /// A column is missing or has another type.
    #[error("{path} column `{column}`: expected {expected}, found {found}")]
    Column {
        /// The path of the profile.
        path: PathBuf,
        /// The name of the column.
        column: String,
        /// The expected type.
        expected: DataType,
        /// The type of the column in the file, or `no such column`.
        found: String,
    },
    /// The file has no rows.
    #[error(
        "{path}: expected at least one row, found none; measure the profile with `rollpacker profile`"
    )]
    Empty {
        /// The path of the profile.
        path: PathBuf,
    },
    /// A value is null or invalid.
    #[error("{path} row {row} column `{column}`: expected {expected}, found {found}")]
    Value {
        /// The path of the profile.
        path: PathBuf,
        /// The row of the file, from 0.
        row: usize,
        /// The name of the column.
        column: String,
        /// A description of the valid values.
        expected: &'static str,
        /// The value in the file, or `null`.
        found: String,
    },
}

const PHASE: &str = "phase";
const INSTANCES: &str = "instances";
const TENSOR_PARALLEL: &str = "tensor_parallel";
const BATCH_SIZE: &str = "batch_size";
const TOKENS: &str = "tokens";
const SECONDS: &str = "seconds";
const REPEATS: &str = "repeats";

/// The columns of a profile, which are the fields of [`Row`].
static PROFILE: LazyLock<SchemaRef> = LazyLock::new(|| {
    let count = |name| Field::new(name, DataType::UInt32, false);
    Arc::new(Schema::new(vec![
        Field::new(PHASE, DataType::Utf8, false),
        count(INSTANCES),
        count(TENSOR_PARALLEL),
        count(BATCH_SIZE),
        count(TOKENS),
        Field::new(SECONDS, DataType::Float64, false),
        count(REPEATS),
    ]))
});

/// Writes `rows` to a Parquet file.
///
/// The columns are `phase` (`prefill` or `decode`), `instances`, `tensor_parallel`, `batch_size`, `tokens`, `seconds` and `repeats`. An
/// existing file is replaced atomically: concurrent readers see either the old or the new file.
///
/// # Errors
/// If the file cannot be written, or the path holds something that is not a regular file.
pub fn write(path: &Path, rows: &[Row]) -> Result<(), ProfileError> {
    let failed = |reason: &dyn std::fmt::Display| ProfileError::Write {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let file = NewFile::create(path)?;
    let mut writer =
        ArrowWriter::try_new(file, PROFILE.clone(), None).map_err(|error| failed(&error))?;
    writer.write(&encoded(rows)).map_err(|error| failed(&error))?;
    Ok(writer.into_inner().map_err(|error| failed(&error))?.finish()?)
}

fn encoded(rows: &[Row]) -> RecordBatch {
    let counts = |count: fn(&Row) -> u32| -> ArrayRef {
        Arc::new(rows.iter().map(count).collect::<Vec<_>>().into_iter().collect::<UInt32Array>())
    };
    let columns: Vec<ArrayRef> = vec![
        Arc::new(rows.iter().map(|row| Some(row.phase.as_str())).collect::<StringArray>()),
        counts(|row| row.instances),
        counts(|row| row.tensor_parallel),
        counts(|row| row.batch_size),
        counts(|row| row.tokens),
        Arc::new(rows.iter().map(|row| Some(row.seconds)).collect::<Float64Array>()),
        counts(|row| row.repeats),
    ];
    let options = RecordBatchOptions::new().with_row_count(Some(rows.len()));
    RecordBatch::try_new_with_options(PROFILE.clone(), columns, &options)
        .expect("invariant: the columns are those of the schema")
}

/// Reads the rows of a profile from a Parquet file. Columns that `write` does not write are ignored.
///
/// # Errors
/// If the file cannot be read or has no rows, a column is missing or has another type, or a value is invalid: null, a phase other than
/// `prefill` or `decode`, or a time that is not positive and finite.
pub fn read(path: &Path) -> Result<Vec<Row>, ProfileError> {
    let failed = |reason: &dyn std::fmt::Display| ProfileError::Read {
        path: path.to_owned(),
        reason: reason.to_string(),
    };
    let file = File::open(path).map_err(|error| failed(&error))?;
    let reader = ParquetRecordBatchReaderBuilder::try_new(file)
        .and_then(ParquetRecordBatchReaderBuilder::build)
        .map_err(|error| failed(&error))?;
    let mut rows = Vec::new();
    for batch in reader {
        let batch = batch.map_err(|error| failed(&error))?;
        let columns = ProfileColumns::of(path, &batch, rows.len())?;
        for at in 0..batch.num_rows() {
            rows.push(columns.row(at)?);
        }
    }
    if rows.is_empty() {
        return Err(ProfileError::Empty { path: path.to_owned() });
    }
    Ok(rows)
}

/// A batch of the file, whose columns have the types of [`PROFILE`].
struct ProfileColumns<'a> {
    path: &'a Path,
    batch: &'a RecordBatch,
    /// The number of rows of the file before this batch.
    before: usize,
}

impl<'a> ProfileColumns<'a> {
    fn of(path: &'a Path, batch: &'a RecordBatch, before: usize) -> Result<Self, ProfileError> {
        for field in PROFILE.fields() {
            let found = batch.column_by_name(field.name()).map(|column| column.data_type());
            if found != Some(field.data_type()) {
                return Err(ProfileError::Column {
                    path: path.to_owned(),
                    column: field.name().clone(),
                    expected: field.data_type().clone(),
                    found: found.map_or("no such column".to_owned(), ToString::to_string),
                });
            }
        }
        Ok(Self { path, batch, before })
    }

    fn row(&self, at: usize) -> Result<Row, ProfileError> {
        if let Some(null) =
            PROFILE.fields().iter().find(|field| self.column(field.name()).is_null(at))
        {
            return Err(self.wrong(at, null.name(), "a value", "null"));
        }
        let count = |name| self.column(name).as_primitive::<UInt32Type>().value(at);
        Ok(Row {
            phase: self.phase(at)?,
            instances: count(INSTANCES),
            tensor_parallel: count(TENSOR_PARALLEL),
            batch_size: count(BATCH_SIZE),
            tokens: count(TOKENS),
            seconds: self.seconds(at)?,
            repeats: count(REPEATS),
        })
    }

    fn phase(&self, at: usize) -> Result<Phase, ProfileError> {
        let written = self.column(PHASE).as_string::<i32>().value(at);
        [Phase::Prefill, Phase::Decode]
            .into_iter()
            .find(|phase| phase.as_str() == written)
            .ok_or_else(|| self.wrong(at, PHASE, "prefill or decode", written))
    }

    fn seconds(&self, at: usize) -> Result<f64, ProfileError> {
        let seconds = self.column(SECONDS).as_primitive::<Float64Type>().value(at);
        if seconds > 0.0 && seconds.is_finite() {
            Ok(seconds)
        } else {
            Err(self.wrong(at, SECONDS, "a number above 0", &seconds.to_string()))
        }
    }

    fn column(&self, name: &str) -> &ArrayRef {
        self.batch.column_by_name(name).expect("invariant: the columns are those of the schema")
    }

    fn wrong(&self, at: usize, column: &str, expected: &'static str, found: &str) -> ProfileError {
        ProfileError::Value {
            path: self.path.to_owned(),
            row: self.before + at,
            column: column.to_owned(),
            expected,
            found: found.to_owned(),
        }
    }
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn row(phase: Phase, batch_size: u32, seconds: f64) -> Row {
        Row { phase, instances: 2, tensor_parallel: 1, batch_size, tokens: 64, seconds, repeats: 5 }
    }

    fn file(name: &str) -> (tempfile::TempDir, PathBuf) {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        (folder, path)
    }

    #[test]
    fn a_profile_round_trips() {
        let (_folder, path) = file("profile.parquet");
        let rows = vec![
            row(Phase::Prefill, 1, 0.25),
            row(Phase::Decode, 8, 1e-4),
            row(Phase::Decode, 9, 2.0),
        ];
        write(&path, &rows).expect("written");
        assert_eq!(read(&path).expect("readable"), rows);
    }

    fn check_refused(rows: &[Row], columns: &[&str], expected: Expect) {
        let (folder, path) = file("profile.parquet");
        let batch = encoded(rows);
        let kept: Vec<usize> =
            columns.iter().map(|name| batch.schema().index_of(name).expect("a column")).collect();
        let batch = batch.project(&kept).expect("columns of it");
        let mut writer =
            ArrowWriter::try_new(File::create(&path).expect("a file"), batch.schema(), None)
                .expect("a writer");
        writer.write(&batch).expect("written");
        writer.close().expect("closed");
        let error = read(&path).expect_err("refused").to_string();
        expected.assert_eq(&error.replace(&folder.path().display().to_string(), ""));
    }

    #[test]
    fn an_invalid_profile_is_named() {
        let all = [PHASE, INSTANCES, TENSOR_PARALLEL, BATCH_SIZE, TOKENS, SECONDS, REPEATS];
        let good = row(Phase::Decode, 1, 1.0);
        check_refused(
            &[good],
            &all[..5],
            expect!["/profile.parquet column `seconds`: expected Float64, found no such column"],
        );
        check_refused(
            &[],
            &all,
            expect![
                "/profile.parquet: expected at least one row, found none; measure the profile with `rollpacker profile`"
            ],
        );
        check_refused(
            &[good, row(Phase::Decode, 1, -1.0)],
            &all,
            expect!["/profile.parquet row 1 column `seconds`: expected a number above 0, found -1"],
        );
    }

    #[test]
    fn a_missing_file_is_named() {
        let (_folder, path) = file("profile.parquet");
        let error = read(&path).expect_err("refused").to_string();
        assert!(error.starts_with(&format!("cannot read {}: ", path.display())), "{error}");
    }
}
