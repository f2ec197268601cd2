//! The run folder: what a run leaves behind.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
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
use rollpacker_files::{FileError, Inputs, NewFile, check_place, remove_abandoned};
use rollpacker_operators::report::{Saved, StepReport, by_id};
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

/// A file of the run folder cannot be written.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The system or the writer of a format refused.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The file.
        path: PathBuf,
        /// The reason.
        reason: String,
    },
    /// The place of a file has something that must not be replaced.
    #[error(transparent)]
    File(#[from] FileError),
}

impl RecordError {
    fn of(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> Self + use<> {
        let path = path.to_owned();
        move |reason| Self::Write { path: path.clone(), reason: reason.to_string() }
    }
}

/// The files that a run writes into its folder from its start on.
const WRITTEN: [&str; 3] = [RECIPE, METRICS, SUMMARY];
const RECIPE: &str = "recipe.toml";
const METRICS: &str = "metrics.jsonl";
const SUMMARY: &str = "summary.json";
/// The folder of the rollouts within the run folder.
const ROLLOUTS_FOLDER: &str = "rollouts";
/// The folder of the trained model within the run folder.
const MODEL_FOLDER: &str = "model";

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
    /// Checks that a run may write its records into a folder: that nothing there is one of its inputs, or must not be replaced.
    ///
    /// The recipe of an earlier run may be the input: it is read before it is written.
    ///
    /// # Errors
    /// If it may not.
    pub fn check(folder: &Path, inputs: &Inputs) -> Result<(), FileError> {
        check_places(folder)?;
        WRITTEN.iter().try_for_each(|name| inputs.refuse(&folder.join(name)))?;
        inputs.refuse_within(&folder.join(ROLLOUTS_FOLDER))
    }

    /// The recipe in a run folder.
    #[must_use]
    pub fn recipe(folder: &Path) -> PathBuf {
        folder.join(RECIPE)
    }

    /// The folder of the trained model in a run folder.
    #[must_use]
    pub fn model(folder: &Path) -> PathBuf {
        folder.join(MODEL_FOLDER)
    }

    /// Makes the folder, and writes the recipe into it. What an earlier run wrote into it goes, but for
    /// its model, which may be what this run starts from.
    ///
    /// # Errors
    /// If a file cannot be written, or its place has something that is not a regular file.
    pub fn create(folder: &Path, recipe: &str, rollouts: bool) -> Result<Self, RecordError> {
        check_places(folder)?;
        let steps = folder.join(ROLLOUTS_FOLDER);
        if steps.exists() {
            remove_later(&steps, 0).map_err(|error| RecordError::of(&steps)(&error))?;
        }
        let made = if rollouts { &steps } else { folder };
        fs::create_dir_all(made).map_err(|error| RecordError::of(made)(&error))?;
        begin(folder, recipe)?;
        let metrics = NewFile::create(&folder.join(METRICS))?.rename()?;
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
        check_places(folder)?;
        let steps = folder.join(ROLLOUTS_FOLDER);
        let failed = RecordError::of(&steps);
        fs::create_dir_all(if rollouts { &steps } else { folder }).map_err(|e| failed(&e))?;
        if steps.exists() {
            remove_later(&steps, extent.steps).map_err(|error| failed(&error))?;
        }
        begin(folder, recipe)?;
        let metrics = cut(&folder.join(METRICS), extent.metrics)?;
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
        let failed = RecordError::of(&self.folder.join(METRICS));
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
        let path = self.folder.join(SUMMARY);
        let text =
            serde_json::to_vec_pretty(summary).map_err(|error| RecordError::of(&path)(&error))?;
        Ok(rollpacker_files::write(&path, &text)?)
    }

    fn write_rollouts(&self, report: &StepReport) -> Result<(), RecordError> {
        let name = format!("step_{:05}.parquet", report.step.0 + 1);
        let path = self.folder.join(ROLLOUTS_FOLDER).join(name);
        let failed = RecordError::of(&path);
        let file = NewFile::create(&path)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let mut writer = ArrowWriter::try_new(file, ROLLOUTS.clone(), Some(properties))
            .map_err(|error| failed(&error))?;
        for rows in rollouts(report) {
            writer.write(&rows).map_err(|error| failed(&error))?;
        }
        // A snapshot brings it to the disk.
        writer.into_inner().map_err(|error| failed(&error))?.rename()?;
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

fn check_places(folder: &Path) -> Result<(), FileError> {
    WRITTEN.iter().try_for_each(|name| check_place(&folder.join(name)))
}

/// Writes the recipe, and removes the summary of an earlier run and the temporary files of one that was killed.
fn begin(folder: &Path, recipe: &str) -> Result<(), RecordError> {
    let written = [folder.to_owned(), folder.join(ROLLOUTS_FOLDER), RunFolder::model(folder)];
    written.iter().try_for_each(|folder| remove_abandoned(folder))?;
    let summary = folder.join(SUMMARY);
    if summary.exists() {
        fs::remove_file(&summary).map_err(|error| RecordError::of(&summary)(&error))?;
    }
    Ok(rollpacker_files::write(&folder.join(RECIPE), recipe.as_bytes())?)
}

/// Replaces a file by one that has its first `length` bytes, and returns that to go on writing. A copy of the folder that has the file by
/// another hard link keeps all of it.
fn cut(path: &Path, length: u64) -> Result<File, RecordError> {
    let failed = RecordError::of(path);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut kept = NewFile::create(path)?;
    let found = io::copy(&mut file.take(length), &mut kept).map_err(|error| failed(&error))?;
    if found < length {
        return Err(failed(&format_args!("expected at least {length} bytes, found {found}")));
    }
    // Snapshots count on these bytes.
    Ok(kept.finish_open()?)
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
