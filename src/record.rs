//! The run folder: what a run leaves behind.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow::array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array,
};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, UInt32Type, UInt64Type};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_operators::report::{StepReport, by_id};
use rollpacker_stages::train::Metrics;
use serde::Serialize;

/// A file of the run folder cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot write {path}: {reason}")]
pub struct RecordError {
    /// The file.
    pub path: PathBuf,
    /// What the system said.
    pub reason: String,
}

impl RecordError {
    fn of(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> Self + use<> {
        let path = path.to_owned();
        move |reason| Self { path: path.clone(), reason: reason.to_string() }
    }
}

/// Writes `recipe.toml`, `metrics.jsonl`, `rollouts/step_NNNNN.parquet` and `summary.json`.
pub struct RunFolder {
    folder: PathBuf,
    metrics: BufWriter<File>,
    rollouts: bool,
}

impl RunFolder {
    /// Makes the folder, and writes the recipe into it. What an earlier run wrote into it goes, but for
    /// its model, which may be what this run starts from.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn create(folder: &Path, recipe: &str, rollouts: bool) -> Result<Self, RecordError> {
        let steps = folder.join("rollouts");
        if steps.exists() {
            fs::remove_dir_all(&steps).map_err(|error| RecordError::of(&steps)(&error))?;
        }
        let made = if rollouts { &steps } else { folder };
        fs::create_dir_all(made).map_err(|error| RecordError::of(made)(&error))?;
        let summary = folder.join("summary.json");
        if summary.exists() {
            fs::remove_file(&summary).map_err(|error| RecordError::of(&summary)(&error))?;
        }
        write(&folder.join("recipe.toml"), recipe.as_bytes())?;
        let path = folder.join("metrics.jsonl");
        let metrics = File::create(&path).map_err(|error| RecordError::of(&path)(&error))?;
        Ok(Self { folder: folder.to_owned(), metrics: BufWriter::new(metrics), rollouts })
    }

    /// The folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes what happened in a step.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn step(
        &mut self,
        report: &StepReport,
        round: &str,
        metrics: &Metrics,
    ) -> Result<(), RecordError> {
        if self.rollouts {
            self.write_rollouts(report)?;
        }
        self.write_metrics(report.step.0 + 1, round, metrics)
    }

    /// Writes metrics that belong to no step in particular, such as those of the validation before the first.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_metrics(
        &mut self,
        step: u64,
        round: &str,
        metrics: &Metrics,
    ) -> Result<(), RecordError> {
        #[derive(Serialize)]
        struct Line<'a> {
            step: u64,
            round: &'a str,
            data: &'a Metrics,
        }
        let failed = RecordError::of(&self.folder.join("metrics.jsonl"));
        let line = serde_json::to_string(&Line { step, round, data: metrics })
            .map_err(|error| failed(&error))?;
        writeln!(self.metrics, "{line}")
            .and_then(|()| self.metrics.flush())
            .map_err(|error| failed(&error))
    }

    /// Writes `summary.json`.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn summary(&self, summary: &impl Serialize) -> Result<(), RecordError> {
        let path = self.folder.join("summary.json");
        let text =
            serde_json::to_vec_pretty(summary).map_err(|error| RecordError::of(&path)(&error))?;
        write(&path, &text)
    }

    fn write_rollouts(&self, report: &StepReport) -> Result<(), RecordError> {
        let path =
            self.folder.join("rollouts").join(format!("step_{:05}.parquet", report.step.0 + 1));
        let failed = RecordError::of(&path);
        let file = File::create(&path).map_err(|error| failed(&error))?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = ArrowWriter::try_new(file, ROLLOUTS.clone(), Some(properties))
            .map_err(|error| failed(&error))?;
        for rows in rollouts(report) {
            writer.write(&rows).map_err(|error| failed(&error))?;
        }
        writer.close().map_err(|error| failed(&error))?;
        Ok(())
    }
}

fn write(path: &Path, contents: &[u8]) -> Result<(), RecordError> {
    fs::write(path, contents).map_err(|error| RecordError::of(path)(&error))
}

/// Columns of `rollouts/step_NNNNN.parquet`: `step`, `admitted`, then those of [`schema::GROUPS`], with nulls in score, weight and
/// advantages where a response was not trained on.
static ROLLOUTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let own = [
        Field::new("step", DataType::UInt64, false),
        Field::new("admitted", DataType::Boolean, false),
    ];
    let scored = schema::RESPONSES.fields().len();
    let groups = schema::GROUPS.fields().iter().enumerate();
    let fields = groups.map(|(index, field)| {
        field.as_ref().clone().with_nullable(field.is_nullable() || index >= scored)
    });
    Arc::new(Schema::new(own.into_iter().chain(fields).collect::<Vec<_>>()))
});

/// First what was trained on, then the rest, each in the order of ids.
fn rollouts(report: &StepReport) -> impl Iterator<Item = RecordBatch> {
    let trained: std::collections::BTreeSet<(u64, u32)> =
        report.groups.iter().flat_map(ids).collect();
    let rest = by_id(&report.responses, move |prompt, sample| !trained.contains(&(prompt, sample)));
    let admitted = by_id(&report.groups, |_, _| true).map(|rows| (rows, true));
    let step = report.step.0 + 1;
    admitted
        .chain(rest.map(|rows| (rows, false)))
        .map(move |(rows, admitted)| rollout_rows(&rows, step, admitted))
}

fn ids(batch: &Batch) -> impl Iterator<Item = (u64, u32)> {
    let prompts = batch.values::<UInt64Type>(column::PROMPT_ID).values().iter().copied();
    prompts.zip(batch.values::<UInt32Type>(column::SAMPLE).values().iter().copied())
}

fn rollout_rows(rows: &RecordBatch, step: u64, admitted: bool) -> RecordBatch {
    let count = rows.num_rows();
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(vec![step; count])),
        Arc::new(BooleanArray::from(vec![admitted; count])),
    ];
    columns.extend(ROLLOUTS.fields().iter().skip(2).map(|field| {
        rows.column_by_name(field.name())
            .cloned()
            .unwrap_or_else(|| new_null_array(field.data_type(), count))
    }));
    debug_assert!(columns.iter().all(|column| column.len() == count));
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    RecordBatch::try_new_with_options(ROLLOUTS.clone(), columns, &options)
        .expect("invariant: the columns are those of the schema")
}
