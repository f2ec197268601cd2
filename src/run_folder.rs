//! The run folder, which contains the records of a run.

use std::cell::RefCell;
use std::fs::{self, File};
use std::io::{self, BufWriter, Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, LazyLock};

use arrow_array::{
    Array, ArrayRef, BooleanArray, RecordBatch, RecordBatchOptions, UInt64Array, new_null_array,
};
use arrow_schema::{DataType, Field, Schema, SchemaRef};
use parquet::arrow::ArrowWriter;
use parquet::basic::Compression;
use parquet::file::properties::WriterProperties;
use rollpacker_dataflow::fault::{HasOrigin, Origin};
use rollpacker_dataflow::schema::{self, column};
use rollpacker_files::{FileError, Inputs, NewFile, check_replaceable, remove_abandoned};
use rollpacker_operators::placement::StepPlacement;
use rollpacker_operators::prompt_texts::PromptTexts;
use rollpacker_operators::report::{StepReport, ids, recorded_fields, rows_by_id};
use rollpacker_stages::train::Metrics;
use serde::{Deserialize, Serialize};

use crate::event_log::EventLog;
use crate::run_files::{
    self, EVENTS_FOLDER, METRICS, PLACEMENTS_FOLDER, RECIPE, ROLLOUTS_FOLDER, SUMMARY,
    VALIDATION_FOLDER, step_file, step_of,
};

/// An error in checking, writing or removing a file of the run folder.
#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    /// The file cannot be written, read or removed.
    #[error("cannot write {path}: {reason}")]
    Write {
        /// The path of the file.
        path: PathBuf,
        /// The error of the writer or the system.
        reason: String,
    },
    /// A file is missing or shorter than it was when a snapshot was taken.
    #[error("{path}: expected at least {expected} bytes, found {found}")]
    Short {
        /// The path of the file.
        path: PathBuf,
        /// The size in bytes when the snapshot was taken.
        expected: u64,
        /// The size of the file in bytes, or the reason why it cannot be read.
        found: String,
    },
    /// Another process has begun a run in the folder after this run did.
    #[error(
        "{path}: another process has begun a run in this folder since: a run needs a folder of its own (`--out`)"
    )]
    Taken {
        /// The metrics file, which the other process has replaced.
        path: PathBuf,
    },
    /// The path holds something that must not be replaced, or the file cannot be created or renamed.
    #[error(transparent)]
    File(#[from] FileError),
}

impl HasOrigin for RecordError {
    fn origin(&self) -> Origin {
        match self {
            Self::Write { .. } | Self::Short { .. } => Origin::Environment,
            Self::Taken { .. } | Self::File(_) => Origin::User,
        }
    }
}

impl RecordError {
    pub(crate) fn of(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> Self + use<> {
        let path = path.to_owned();
        move |reason| Self::Write { path: path.clone(), reason: reason.to_string() }
    }
}

/// The files that every run writes into its folder.
const RECORD_FILES: [&str; 3] = [RECIPE, METRICS, SUMMARY];
/// The folders whose files are named by steps.
const STEP_FOLDERS: [&str; 3] = [ROLLOUTS_FOLDER, PLACEMENTS_FOLDER, VALIDATION_FOLDER];
/// The folder of the trained model within the run folder.
const MODEL_FOLDER: &str = "model";

/// The writer of `recipe.toml`, `metrics.jsonl`, `rollouts/step_NNNNN.parquet`, `placements/step_NNNNN.json`, `summary.json` and
/// TensorBoard's event file.
pub struct RunFolder {
    folder: PathBuf,
    metrics: BufWriter<File>,
    /// TensorBoard's event file; `None` unless the run writes it.
    events: Option<EventLog>,
    /// `true` to write the responses of each step.
    rollouts: bool,
    /// The number of bytes written to the metrics file.
    metrics_bytes: u64,
    /// Files of single steps that no snapshot has synchronized to the disk yet.
    unsaved: RefCell<Vec<PathBuf>>,
}

/// The extent of the records in a run folder at the end of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RunFolderExtent {
    /// The number of complete steps.
    pub steps: u64,
    /// The size of `metrics.jsonl` in bytes.
    pub metrics: u64,
}

/// The time of a line of `metrics.jsonl`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct LineTime {
    /// The time of the report, in seconds since 1970.
    pub unix_s: f64,
    /// The time at which the step was complete, in seconds of the run's clock. The times of responses are on the same clock. `None` for
    /// metrics that do not belong to a training step.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub clock_s: Option<f64>,
}

impl RunFolder {
    /// Checks that a run may write its records into a folder. The paths of the records must be free or hold regular files, and no record
    /// and no file in a folder of steps may be an input of the run.
    ///
    /// The file `recipe.toml` in the folder may be the recipe of this run, because it is read before it is written. Callers therefore leave
    /// it out of `inputs`.
    ///
    /// # Errors
    /// If a path cannot be examined or holds something other than a regular file, or an input would be replaced or removed.
    pub fn check(folder: &Path, inputs: &Inputs) -> Result<(), FileError> {
        check_record_paths(folder)?;
        record_paths(folder).try_for_each(|path| inputs.check_output(&path))?;
        STEP_FOLDERS.iter().try_for_each(|name| inputs.check_folder(&folder.join(name)))
    }

    /// Returns the path of the recipe in a run folder.
    #[must_use]
    pub fn recipe(folder: &Path) -> PathBuf {
        folder.join(RECIPE)
    }

    /// Returns the path of the folder with the responses of validations in a run folder.
    #[must_use]
    pub fn validation(folder: &Path) -> PathBuf {
        folder.join(VALIDATION_FOLDER)
    }

    /// Returns the path of the folder with the trained model in a run folder.
    #[must_use]
    pub fn model(folder: &Path) -> PathBuf {
        folder.join(MODEL_FOLDER)
    }

    /// Creates the folder and writes the recipe into it.
    ///
    /// Removes the records of an earlier run, except its model, which may be the initial model of this run. With `rollouts`, the run also
    /// writes its responses.
    ///
    /// # Errors
    /// If a file cannot be written or removed, or the path of a record holds something that is not a regular file.
    pub fn create(folder: &Path, recipe: &str, rollouts: bool) -> Result<Self, RecordError> {
        check_record_paths(folder)?;
        remove_step_files(folder, None)?;
        let steps = folder.join(ROLLOUTS_FOLDER);
        let made = if rollouts { &steps } else { folder };
        fs::create_dir_all(made).map_err(|error| RecordError::of(made)(&error))?;
        write_recipe(folder, recipe)?;
        let metrics = NewFile::create(&folder.join(METRICS))?.rename()?;
        Ok(Self::of(folder, metrics, rollouts, 0))
    }

    /// Checks that the metrics file of a folder is at least as long as `extent` says. The files of single steps are not checked.
    ///
    /// # Errors
    /// If the metrics file is missing, cannot be examined or is shorter.
    pub fn check_records(folder: &Path, extent: RunFolderExtent) -> Result<(), RecordError> {
        let (path, expected) = (folder.join(METRICS), extent.metrics);
        let found = match fs::metadata(&path) {
            Ok(found) if found.len() >= expected => return Ok(()),
            Ok(found) => found.len().to_string(),
            Err(error) => error.to_string(),
        };
        Err(RecordError::Short { path, expected, found })
    }

    /// Continues in the folder of an earlier run. Removes the records written after `extent`, the summary and the event file, and writes
    /// the recipe.
    ///
    /// # Errors
    /// If the path of a record holds something that is not a regular file, the metrics file is missing or shorter than `extent`, or a file
    /// cannot be written or removed. In the first two cases, nothing is removed.
    pub fn resume(
        folder: &Path,
        recipe: &str,
        rollouts: bool,
        extent: RunFolderExtent,
    ) -> Result<Self, RecordError> {
        check_record_paths(folder)?;
        Self::check_records(folder, extent)?;
        let steps = folder.join(ROLLOUTS_FOLDER);
        let failed = RecordError::of(&steps);
        fs::create_dir_all(if rollouts { &steps } else { folder }).map_err(|e| failed(&e))?;
        remove_step_files(folder, Some(extent.steps))?;
        write_recipe(folder, recipe)?;
        let metrics = truncate_copy(&folder.join(METRICS), extent.metrics)?;
        Ok(Self::of(folder, metrics, rollouts, extent.metrics))
    }

    fn of(folder: &Path, metrics: File, rollouts: bool, metrics_bytes: u64) -> Self {
        let (folder, metrics) = (folder.to_owned(), BufWriter::new(metrics));
        Self { folder, metrics, events: None, rollouts, metrics_bytes, unsaved: RefCell::default() }
    }

    /// Also writes the event file of TensorBoard from now on. The file begins with the metrics that the folder has.
    ///
    /// # Errors
    /// If the records in the folder cannot be read, or the event file cannot be written.
    pub fn with_events(self) -> Result<Self, RecordError> {
        let events = EventLog::create(&self.folder)?;
        Ok(Self { events: Some(events), ..self })
    }

    /// Returns the extent after `steps` steps, and the files that a snapshot synchronizes to the disk: the metrics file, and the files of
    /// single steps that were written since the previous successful call.
    ///
    /// # Errors
    /// If a file cannot be opened. A file that was removed meanwhile is left out.
    pub fn save(&self, steps: u64) -> io::Result<(RunFolderExtent, Vec<File>)> {
        let is_gone = |file: &io::Result<File>| {
            file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
        };
        let mut unsaved = self.unsaved.borrow_mut();
        let written = unsaved.iter().map(File::open).filter(|file| !is_gone(file));
        let files = written.chain([self.metrics.get_ref().try_clone()]);
        let files = files.collect::<io::Result<_>>()?;
        // Clear the list only after the files were opened, so that the next snapshot synchronizes them if this call fails.
        unsaved.clear();
        Ok((RunFolderExtent { steps, metrics: self.metrics_bytes }, files))
    }

    /// Returns the path of the folder.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.folder
    }

    /// Writes the records of a step: its rollouts and placements, if there are any, and its metrics. `round` is the kind of its round, and
    /// `unix_s` the time of the report in seconds since 1970.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn step(
        &mut self,
        report: &StepReport,
        round: &str,
        unix_s: f64,
        metrics: &Metrics,
    ) -> Result<(), RecordError> {
        if self.rollouts {
            self.write_rollouts(report)?;
        }
        if let Some(placement) = &report.placement {
            self.write_placement(placement)?;
        }
        let time = LineTime { unix_s, clock_s: Some(report.closed.as_secs_f64()) };
        self.write_metrics(report.step.0 + 1, round, time, metrics)
    }

    /// Adds a line to `metrics.jsonl`, and its metrics to the event file if the run writes one. `step` counts from 1; 0 is the validation
    /// before the first step. `round` is the kind of the round, or `validation` for a validation that does not belong to a training step.
    /// Call [`step`](Self::step) for a training step, and this function for other metrics.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn write_metrics(
        &mut self,
        step: u64,
        round: &str,
        time: LineTime,
        metrics: &Metrics,
    ) -> Result<(), RecordError> {
        #[derive(Serialize)]
        struct Line<'a> {
            step: u64,
            round: &'a str,
            #[serde(flatten)]
            time: LineTime,
            data: &'a Metrics,
        }
        let failed = RecordError::of(&self.folder.join(METRICS));
        let line = serde_json::to_string(&Line { step, round, time, data: metrics })
            .map_err(|error| failed(&error))?;
        writeln!(self.metrics, "{line}")
            .and_then(|()| self.metrics.flush())
            .map_err(|error| failed(&error))?;
        self.metrics_bytes += line.len() as u64 + 1;
        match &mut self.events {
            Some(events) => events.write(step, time.unix_s, metrics),
            None => Ok(()),
        }
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

    /// Checks that no other process has replaced the metrics file, which each run creates anew.
    ///
    /// # Errors
    /// If another process has replaced it. Errors of the file system are ignored.
    pub(crate) fn check_owner(&self) -> Result<(), RecordError> {
        let path = self.folder.join(METRICS);
        let id = |file: fs::Metadata| (file.dev(), file.ino());
        let own = self.metrics.get_ref().metadata().map(id);
        match (own, fs::metadata(&path).map(id)) {
            (Ok(own), Ok(found)) if own != found => Err(RecordError::Taken { path }),
            _ => Ok(()),
        }
    }

    fn write_placement(&self, placement: &StepPlacement) -> Result<(), RecordError> {
        let folder = self.folder.join(PLACEMENTS_FOLDER);
        fs::create_dir_all(&folder).map_err(|error| RecordError::of(&folder)(&error))?;
        let path = folder.join(step_file(placement.step, "json"));
        let failed = RecordError::of(&path);
        let text = serde_json::to_vec_pretty(placement).map_err(|error| failed(&error))?;
        let mut file = NewFile::create(&path)?;
        file.write_all(&text).map_err(|error| failed(&error))?;
        // The next snapshot synchronizes the file to the disk.
        file.rename()?;
        self.unsaved.borrow_mut().push(path);
        Ok(())
    }

    fn write_rollouts(&self, report: &StepReport) -> Result<(), RecordError> {
        let path = run_files::rollouts(&self.folder, report.step.0 + 1);
        write_rows(&path, ROLLOUTS.clone(), rollouts(report))?;
        // The next snapshot synchronizes the file to the disk.
        self.unsaved.borrow_mut().push(path);
        Ok(())
    }
}

/// Writes rows of the given schema as a Parquet file, without synchronizing it to the disk.
///
/// # Errors
/// If the file cannot be written.
pub(crate) fn write_rows(
    path: &Path,
    schema: SchemaRef,
    rows: impl IntoIterator<Item = RecordBatch>,
) -> Result<(), RecordError> {
    let failed = RecordError::of(path);
    let file = NewFile::create(path)?;
    let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
    let mut writer =
        ArrowWriter::try_new(file, schema, Some(properties)).map_err(|error| failed(&error))?;
    for rows in rows {
        writer.write(&rows).map_err(|error| failed(&error))?;
    }
    writer.into_inner().map_err(|error| failed(&error))?.rename()?;
    Ok(())
}

/// Removes the files of the steps after `kept`. `None` removes the files of all steps, including the file of the validation before the
/// first step.
fn remove_step_files(folder: &Path, kept: Option<u64>) -> Result<(), RecordError> {
    for folder in STEP_FOLDERS.map(|name| folder.join(name)) {
        if folder.exists() {
            remove_files_after(&folder, kept).map_err(|error| RecordError::of(&folder)(&error))?;
        }
    }
    Ok(())
}

fn remove_files_after(folder: &Path, kept: Option<u64>) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if step_of(&path).is_some_and(|step| kept.is_none_or(|kept| step > kept)) {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

fn check_record_paths(folder: &Path) -> Result<(), FileError> {
    record_paths(folder).try_for_each(|path| check_replaceable(&path))
}

/// Returns the paths of the records that do not belong to a single step.
fn record_paths(folder: &Path) -> impl Iterator<Item = PathBuf> {
    RECORD_FILES.map(|name| folder.join(name)).into_iter().chain([run_files::events(folder)])
}

/// Writes the recipe. Removes the summary and the event file of an earlier run, and the temporary files of a killed run.
fn write_recipe(folder: &Path, recipe: &str) -> Result<(), RecordError> {
    let names = STEP_FOLDERS.into_iter().chain([EVENTS_FOLDER, MODEL_FOLDER]);
    let written = names.map(|name| folder.join(name)).chain([folder.to_owned()]);
    written.into_iter().try_for_each(|folder| remove_abandoned(&folder))?;
    for path in [folder.join(SUMMARY), run_files::events(folder)] {
        if path.exists() {
            fs::remove_file(&path).map_err(|error| RecordError::of(&path)(&error))?;
        }
    }
    Ok(rollpacker_files::write(&folder.join(RECIPE), recipe.as_bytes())?)
}

/// Truncates a file to its first `length` bytes, and returns it open for writing, positioned at its end.
///
/// The file is replaced by a new file, so that another hard link to it, for example in a copy of the folder, keeps all bytes.
fn truncate_copy(path: &Path, length: u64) -> Result<File, RecordError> {
    let failed = RecordError::of(path);
    let file = File::open(path).map_err(|error| failed(&error))?;
    let mut kept = NewFile::create(path)?;
    io::copy(&mut file.take(length), &mut kept).map_err(|error| failed(&error))?;
    // Snapshots rely on these bytes, so they are synchronized to the disk now.
    Ok(kept.finish_open()?)
}

/// The columns of `rollouts/step_NNNNN.parquet` with the texts of the prompt.
const PROMPT_COLUMNS: [&str; 3] = [column::MESSAGES, column::GROUND_TRUTH, column::EXTRA_INFO];

/// Columns of `rollouts/step_NNNNN.parquet`: `step`, `admitted`, then the columns of [`schema::GROUPS`], with the texts of the prompt after
/// its data source. The columns of [`schema::GROUPS`] that [`schema::RESPONSES`] lacks, such as the score and the advantages, are null for
/// responses that were not trained on.
static ROLLOUTS: LazyLock<SchemaRef> = LazyLock::new(|| {
    let own = [
        Field::new("step", DataType::UInt64, false),
        Field::new("admitted", DataType::Boolean, false),
    ];
    let generated = recorded_fields(&schema::RESPONSES).len();
    let groups = recorded_fields(&schema::GROUPS).into_iter().enumerate();
    let fields = groups.flat_map(|(index, field)| {
        let nullable = field.is_nullable() || index >= generated;
        let texts: &[&str] =
            if field.name() == column::DATA_SOURCE { &PROMPT_COLUMNS } else { &[] };
        let texts = texts.iter().map(|name| Field::new(*name, DataType::Utf8, true));
        std::iter::once(field.as_ref().clone().with_nullable(nullable)).chain(texts)
    });
    Arc::new(Schema::new(own.into_iter().chain(fields).collect::<Vec<_>>()))
});

/// Returns the rows of the responses trained on, and then the rows of the other responses, both ordered by id.
fn rollouts(report: &StepReport) -> impl Iterator<Item = RecordBatch> {
    let trained: std::collections::BTreeSet<(u64, u32)> =
        report.groups.iter().flat_map(ids).collect();
    let rest =
        rows_by_id(&report.responses, move |prompt, sample| !trained.contains(&(prompt, sample)));
    let admitted = rows_by_id(&report.groups, |_, _| true).map(|rows| (rows, true));
    let step = report.step.0 + 1;
    admitted
        .chain(rest.map(|rows| (rows, false)))
        .map(move |(rows, admitted)| rollout_rows(&rows, &report.texts, step, admitted))
}

fn rollout_rows(rows: &RecordBatch, texts: &PromptTexts, step: u64, admitted: bool) -> RecordBatch {
    let count = rows.num_rows();
    let texts = texts.columns(rows);
    let text = |name: &str| texts.iter().find(|(of, _)| *of == name).map(|(_, column)| column);
    let mut columns: Vec<ArrayRef> = vec![
        Arc::new(UInt64Array::from(vec![step; count])),
        Arc::new(BooleanArray::from(vec![admitted; count])),
    ];
    columns.extend(ROLLOUTS.fields().iter().skip(2).map(|field| {
        rows.column_by_name(field.name())
            .or_else(|| text(field.name()))
            .cloned()
            .unwrap_or_else(|| new_null_array(field.data_type(), count))
    }));
    debug_assert!(columns.iter().all(|column| column.len() == count));
    let options = RecordBatchOptions::new().with_row_count(Some(count));
    RecordBatch::try_new_with_options(ROLLOUTS.clone(), columns, &options)
        .expect("invariant: the columns are those of the schema")
}
