//! The run folder: what a run leaves behind.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, Seek, SeekFrom, Write};
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
use rollpacker_operators::report::{Saved, StepReport, by_id};
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

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
    /// Bytes of the metrics.
    written: u64,
    /// Files of rollouts of which a snapshot is yet to say that they are on the disk.
    unsaved: RefCell<Vec<PathBuf>>,
}

/// How far a run folder was written at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Extent {
    /// Steps.
    pub steps: u64,
    /// Bytes of `metrics.jsonl`.
    pub metrics: u64,
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
        Ok(Self::of(folder, metrics, rollouts, 0))
    }

    /// Goes on in the folder of a run. What was written beyond `extent` goes.
    ///
    /// # Errors
    /// If a file cannot be written, or the metrics are shorter than that.
    pub fn resume(
        folder: &Path,
        recipe: &str,
        rollouts: bool,
        extent: Extent,
    ) -> Result<Self, RecordError> {
        let steps = folder.join("rollouts");
        let failed = RecordError::of(&steps);
        fs::create_dir_all(if rollouts { &steps } else { folder }).map_err(|e| failed(&e))?;
        if steps.exists() {
            remove_later(&steps, extent.steps).map_err(|error| failed(&error))?;
        }
        let summary = folder.join("summary.json");
        if summary.exists() {
            fs::remove_file(&summary).map_err(|error| RecordError::of(&summary)(&error))?;
        }
        write(&folder.join("recipe.toml"), recipe.as_bytes())?;
        let path = folder.join("metrics.jsonl");
        let metrics = cut(&path, extent.metrics).map_err(|error| RecordError::of(&path)(&error))?;
        Ok(Self::of(folder, metrics, rollouts, extent.metrics))
    }

    fn of(folder: &Path, metrics: File, rollouts: bool, written: u64) -> Self {
        let (folder, metrics) = (folder.to_owned(), BufWriter::new(metrics));
        Self { folder, metrics, rollouts, written, unsaved: RefCell::default() }
    }

    /// How far it is written after `steps` steps. A snapshot counts on what was written.
    pub fn save(&self, steps: u64, saved: &mut Saved) -> Extent {
        let rollouts = self.unsaved.take().into_iter().map(File::open);
        let metrics = self.metrics.get_ref().try_clone();
        // What cannot be opened any more was not removed by us: there is nothing to count on.
        rollouts.chain([metrics]).flatten().for_each(|file| saved.count_on(file));
        Extent { steps, metrics: self.written }
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
            .map_err(|error| failed(&error))?;
        self.written += line.len() as u64 + 1;
        Ok(())
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
        self.unsaved.borrow_mut().push(path);
        Ok(())
    }
}

/// Removes the rollouts of the steps behind the first `steps`.
fn remove_later(folder: &Path, steps: u64) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        let number = path
            .file_stem()
            .and_then(|name| name.to_str()?.strip_prefix("step_")?.parse::<u64>().ok());
        if number.is_some_and(|number| number > steps) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Opens a file to go on behind its first `length` bytes.
fn cut(path: &Path, length: u64) -> io::Result<File> {
    let mut file = File::options().write(true).open(path)?;
    let found = file.metadata()?.len();
    if found < length {
        return Err(io::Error::other(format!("expected at least {length} bytes, found {found}")));
    }
    file.set_len(length)?;
    file.seek(SeekFrom::End(0))?;
    Ok(file)
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
