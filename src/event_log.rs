//! A writer that adds the metrics of each step to the TensorBoard event file in the run folder while the run trains.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use rollpacker_files::NewFile;
use rollpacker_stages::train::Metrics;

use crate::export::tensorboard::EventWriter;
use crate::run_files::events;
use crate::run_folder::RecordError;
use crate::show::RunRecord;

/// The TensorBoard event file in a run folder, with the metrics that the run has reported so far.
pub(crate) struct EventLog {
    path: PathBuf,
    events: EventWriter<BufWriter<File>>,
}

impl EventLog {
    /// Creates the event file of a run and writes the metrics of its `metrics.jsonl` into it. The file of a resumed run thus has no steps
    /// after the snapshot.
    ///
    /// # Errors
    /// If `metrics.jsonl`, `recipe.toml` or `summary.json` cannot be read, or the event file cannot be written.
    pub(crate) fn create(run: &Path) -> Result<Self, RecordError> {
        let path = events(run);
        let failed = RecordError::of(&path);
        let folder = path.parent().unwrap_or(run);
        fs::create_dir_all(folder).map_err(|error| RecordError::of(folder)(&error))?;
        let record = RunRecord::read(run).map_err(|error| failed(&error))?;
        let mut events = EventWriter::of(BufWriter::new(NewFile::create(&path)?.rename()?));
        events
            .write_all(&record.lines)
            .and_then(|()| events.out.flush())
            .map_err(|error| failed(&error))?;
        Ok(Self { path, events })
    }

    /// Adds the finite metrics of a step that was reported at `unix_s`, in seconds since 1970. Flushes the file, so that TensorBoard can
    /// read the step.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub(crate) fn write(
        &mut self,
        step: u64,
        unix_s: f64,
        metrics: &Metrics,
    ) -> Result<(), RecordError> {
        let values = metrics.iter().map(|(name, value)| (name.as_str(), *value));
        self.events
            .write(step, unix_s, values.filter(|(_, value)| value.is_finite()))
            .and_then(|()| self.events.out.flush())
            .map_err(|error| RecordError::of(&self.path)(&error))
    }
}
