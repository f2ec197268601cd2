//! An incremental reader of `metrics.jsonl`.

use std::collections::BTreeMap;
use std::fs::{File, Metadata};
use std::io::{self, BufRead, BufReader, ErrorKind, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use rollpacker_datasets::without_position;
use serde::Deserialize;
use serde_json::Value;

use super::ReadError;
use crate::findings::MetricLookup;
use crate::run_files::METRICS;

/// The name of the round of a validation that does not belong to a step.
const VALIDATION: &str = "validation";

/// A line of `metrics.jsonl`.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct StepMetrics {
    /// The number of the step from 1; 0 for the validation before the first step.
    pub(crate) step: u64,
    /// The kind of the round, or `validation` for a validation that does not belong to a step. Empty if the line names no kind.
    #[serde(default)]
    pub(crate) round: String,
    /// The time of the report, in seconds since 1970; `None` in files of earlier versions.
    pub(crate) unix_s: Option<f64>,
    /// The time at which the step was complete, in seconds of the run's clock; `None` for a validation, and in files of earlier versions.
    pub(crate) clock_s: Option<f64>,
    pub(crate) data: BTreeMap<String, Value>,
}

impl StepMetrics {
    /// Returns a metric; `None` if the step does not report it as a number.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.data.get(name)?.as_f64()
    }

    /// Returns `true` for a training step, and `false` for a validation before or after the steps.
    pub(crate) fn is_step(&self) -> bool {
        self.round != VALIDATION
    }
}

impl MetricLookup for StepMetrics {
    fn metric(&self, metric: &str) -> Option<f64> {
        self.get(metric)
    }
}

/// Receives the lines of a [`MetricsFile`].
pub(crate) trait MetricsSink {
    /// Discards all lines: the reader begins at the first line of the file, which a run replaces when it starts anew or resumes.
    fn clear(&mut self);
    /// Takes a whole line, or the error of a line that does not contain the metrics of a step.
    fn line(&mut self, line: Result<StepMetrics, ReadError>);
}

/// Device, inode and time of creation of the file that was read. The inode of a removed file may be used again.
type Identity = (u64, u64, Option<SystemTime>);

/// The file `metrics.jsonl` of a run, and the position up to which it was read.
#[derive(Debug)]
pub(crate) struct MetricsFile {
    path: PathBuf,
    identity: Option<Identity>,
    /// The number of bytes read, up to the end of a line.
    offset: u64,
    /// The number of lines read.
    lines: usize,
}

impl MetricsFile {
    /// Returns a reader that begins at the first line.
    pub(crate) fn of(folder: &Path) -> Self {
        Self { path: folder.join(METRICS), identity: None, offset: 0, lines: 0 }
    }

    /// Reads the lines that were added since the previous call. At the first call, and if the file was replaced or has become shorter since
    /// then, clears `sink` and reads all lines.
    ///
    /// A last line without a line break is left to a later call: the run is writing it, or was killed while it wrote it.
    ///
    /// # Errors
    /// If the file does not exist or cannot be read.
    pub(crate) fn read_new(&mut self, sink: &mut impl MetricsSink) -> Result<(), ReadError> {
        let file = File::open(&self.path).map_err(|error| self.read_error(&error))?;
        let failed = ReadError::file(&self.path);
        let metadata = file.metadata().map_err(|error| failed(&error))?;
        if self.is_other(&metadata) {
            (self.identity, self.offset, self.lines) = (Some(identity(&metadata)), 0, 0);
            sink.clear();
        }
        if metadata.len() > self.offset {
            self.read_lines(file, sink).map_err(|error| failed(&error))?;
        }
        Ok(())
    }

    fn is_other(&self, metadata: &Metadata) -> bool {
        self.identity != Some(identity(metadata)) || metadata.len() < self.offset
    }

    fn read_lines(&mut self, mut file: File, sink: &mut impl MetricsSink) -> io::Result<()> {
        file.seek(SeekFrom::Start(self.offset))?;
        let mut reader = BufReader::with_capacity(1 << 16, file);
        let mut line = Vec::new();
        while reader.read_until(b'\n', &mut line)? > 0 && line.ends_with(b"\n") {
            self.offset += line.len() as u64;
            self.lines += 1;
            sink.line(self.parse(&line));
            line.clear();
        }
        Ok(())
    }

    fn parse(&self, line: &[u8]) -> Result<StepMetrics, ReadError> {
        serde_json::from_slice(line).map_err(|error| ReadError::File {
            path: format!("{}, line {}", self.path.display(), self.lines),
            reason: format!("expected the metrics of a step: {}", without_position(&error)),
        })
    }

    fn read_error(&self, error: &io::Error) -> ReadError {
        match error.kind() {
            ErrorKind::NotFound | ErrorKind::NotADirectory => {
                ReadError::no_run(self.path.parent().unwrap_or(Path::new("")))
            }
            _ => ReadError::file(&self.path)(error),
        }
    }
}

fn identity(metadata: &Metadata) -> Identity {
    (metadata.dev(), metadata.ino(), metadata.created().ok())
}

#[cfg(test)]
mod tests {
    use std::fs::{self, OpenOptions};
    use std::io::Write;

    use super::*;

    #[derive(Default)]
    struct Steps(Vec<Option<u64>>);

    impl MetricsSink for Steps {
        fn clear(&mut self) {
            self.0.clear();
        }

        fn line(&mut self, line: Result<StepMetrics, ReadError>) {
            self.0.push(line.ok().map(|line| line.step));
        }
    }

    fn append(folder: &Path, text: &str) {
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).open(folder.join(METRICS)).expect("open");
        file.write_all(text.as_bytes()).expect("written");
    }

    #[test]
    fn only_whole_new_lines_are_read() {
        let directory = tempfile::tempdir().expect("a folder");
        append(directory.path(), "{\"step\":1,\"data\":{}}\n{\"step\":2,");
        let (mut file, mut steps) = (MetricsFile::of(directory.path()), Steps::default());
        file.read_new(&mut steps).expect("read");
        assert_eq!(steps.0, [Some(1)]);
        append(directory.path(), "\"data\":{}}\nbroken\n");
        file.read_new(&mut steps).expect("read");
        assert_eq!(steps.0, [Some(1), Some(2), None]);
        file.read_new(&mut steps).expect("read");
        assert_eq!(steps.0.len(), 3);
    }

    #[test]
    fn a_replaced_file_is_read_from_the_start() {
        let directory = tempfile::tempdir().expect("a folder");
        append(directory.path(), "{\"step\":1,\"data\":{}}\n");
        let (mut file, mut steps) = (MetricsFile::of(directory.path()), Steps::default());
        file.read_new(&mut steps).expect("read");
        // A resumed run replaces the file by a copy, which is as long again before the next reading.
        let (path, other) = (directory.path().join(METRICS), directory.path().join("other"));
        fs::write(&other, "{\"step\":7,\"data\":{}}\n{\"step\":8,\"data\":{}}\n").expect("written");
        fs::rename(&other, &path).expect("renamed");
        file.read_new(&mut steps).expect("read");
        assert_eq!(steps.0, [Some(7), Some(8)]);
    }

    #[test]
    fn a_folder_without_metrics_is_not_a_run() {
        let directory = tempfile::tempdir().expect("a folder");
        let error = MetricsFile::of(directory.path()).read_new(&mut Steps::default());
        assert!(error.expect_err("no run").to_string().contains("it has none"));
    }
}
