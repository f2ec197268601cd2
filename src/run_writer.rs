//! The thread that writes the run folder, so that a slow disk does not delay the worker that reports.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker_dataflow::bridge::{Panicked, Reply, ServiceThread};
use rollpacker_dataflow::clock::unix_seconds;
use rollpacker_operators::report::StepReport;
use rollpacker_operators::schedule::operator::Stop;
use rollpacker_stages::train::Metrics;
use serde::Serialize;

use crate::run_folder::{LineTime, RecordError, RunFolder, RunFolderExtent};

/// The maximum number of unwritten records. The caller of a further record waits. Each unwritten step holds all of its responses in memory.
const MAX_UNWRITTEN: usize = 2;

/// Writes records into a [`RunFolder`] on a thread of its own, in the order of the calls.
///
/// The first record that cannot be written requests the end of the run. Dropping the writer waits until all records are written.
pub(crate) struct RunWriter {
    path: PathBuf,
    thread: ServiceThread<RunFolder>,
    /// The records that are possibly still unwritten, oldest first.
    unwritten: VecDeque<Reply<()>>,
    failure: Failure,
    stop: Stop,
}

impl RunWriter {
    /// Starts the thread. `stop` is requested at the first failure.
    #[must_use]
    pub(crate) fn start(folder: RunFolder, stop: Stop) -> Self {
        let path = folder.path().to_owned();
        let Ok(thread) = ServiceThread::spawn("run-folder", || Ok::<_, Infallible>(folder));
        Self { path, thread, unwritten: VecDeque::new(), failure: Failure::default(), stop }
    }

    #[must_use]
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the records of a step; see [`RunFolder::step`].
    pub(crate) fn step(&mut self, report: StepReport, round: String, metrics: Metrics) {
        let unix_s = unix_seconds();
        self.write(move |folder| folder.step(&report, &round, unix_s, &metrics));
    }

    /// Writes metrics that do not belong to a training step; see [`RunFolder::write_metrics`].
    pub(crate) fn write_metrics(&mut self, step: u64, round: &'static str, metrics: Metrics) {
        let time = LineTime { unix_s: unix_seconds(), clock_s: None };
        self.write(move |folder| folder.write_metrics(step, round, time, &metrics));
    }

    /// Returns a function for the thread that writes a snapshot. It waits for the records so far, and returns the extent of the folder
    /// after them with the files to synchronize to the disk.
    ///
    /// The function fails if one of these records could not be written: a resumed run relies on all records.
    pub(crate) fn save(
        &self,
        steps: u64,
    ) -> impl FnOnce() -> io::Result<(RunFolderExtent, Vec<File>)> + Send + use<> {
        let failure = self.failure.clone();
        let saved = self.thread.call(
            || {},
            move |folder| match failure.message() {
                Some(message) => Err(io::Error::other(message)),
                None => folder.save(steps),
            },
        );
        move || saved.wait_outcome().map_err(io::Error::other)
    }

    /// Waits until all records are written, and writes `summary.json` if no record has failed since the last
    /// [`take_failure`](Self::take_failure).
    ///
    /// # Errors
    /// If such a record or the summary could not be written. Returns the first error.
    pub(crate) fn finish(
        &mut self,
        summary: impl Serialize + Send + 'static,
    ) -> Result<(), RecordError> {
        if let Some(error) = self.take_failure() {
            return Err(error);
        }
        self.write(move |folder| folder.summary(&summary));
        self.take_failure().map_or(Ok(()), Err)
    }

    /// Waits until all records are written, and takes the first error. Returns `None` if all records could be written.
    pub(crate) fn take_failure(&mut self) -> Option<RecordError> {
        while let Some(oldest) = self.unwritten.pop_front() {
            self.record_panic(oldest.wait());
        }
        self.failure.take()
    }

    /// Writes a record, unless another process has taken the folder. Waits first if [`MAX_UNWRITTEN`] records are unwritten, so that a disk
    /// that is too slow limits the speed of the run and not its memory.
    fn write(
        &mut self,
        record: impl FnOnce(&mut RunFolder) -> Result<(), RecordError> + Send + 'static,
    ) {
        while self.is_full()
            && let Some(oldest) = self.unwritten.pop_front()
        {
            self.record_panic(oldest.wait());
        }
        let (failure, stop) = (self.failure.clone(), self.stop.clone());
        let written = self.thread.call(
            || {},
            move |folder| {
                if let Err(error) = folder.check_owner().and_then(|()| record(folder)) {
                    failure.set(error);
                    stop.request();
                }
            },
        );
        self.unwritten.push_back(written);
    }

    /// Removes the oldest records from the queue that are written by now. Returns `true` if at least [`MAX_UNWRITTEN`] records are left.
    fn is_full(&mut self) -> bool {
        while let Some(written) = self.unwritten.front().and_then(Reply::poll) {
            self.unwritten.pop_front();
            self.record_panic(written);
        }
        self.unwritten.len() >= MAX_UNWRITTEN
    }

    /// Records that the thread panicked, if it did.
    fn record_panic(&self, written: Result<(), Panicked>) {
        if let Err(panicked) = written {
            let (path, reason) = (self.path.clone(), panicked.to_string());
            self.failure.set(RecordError::Write { path, reason });
            self.stop.request();
        }
    }
}

/// The first error of a writer. Clones share it.
#[derive(Clone, Default)]
struct Failure(Arc<Mutex<Option<RecordError>>>);

impl Failure {
    fn set(&self, error: RecordError) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }

    fn take(&self) -> Option<RecordError> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    fn message(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).as_ref().map(ToString::to_string)
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::sync::mpsc::{Sender, channel};
    use std::time::Duration;

    use rollpacker_dataflow::clock::Nanos;
    use serde_json::{Value, json};

    use super::*;

    /// Starts a writer of a new folder, without rollouts.
    fn writer(folder: &Path) -> (RunWriter, Stop) {
        let stop = Stop::default();
        let folder = RunFolder::create(&folder.join("run"), "", false).expect("made");
        (RunWriter::start(folder, stop.clone()), stop)
    }

    /// Keeps the thread busy, like a slow disk, until the sender is dropped. A caller that waits for the disk waits for ten seconds.
    fn block_writer(writer: &mut RunWriter) -> Sender<()> {
        let (release, held) = channel();
        writer.write(move |_| {
            let _ = held.recv_timeout(Duration::from_secs(10));
            Ok(())
        });
        release
    }

    fn metrics(folder: &Path) -> String {
        fs::read_to_string(folder.join("run/metrics.jsonl")).expect("metrics")
    }

    #[test]
    fn a_run_ends_once_another_has_taken_its_folder() {
        let folder = tempfile::tempdir().expect("a folder");
        let (mut first, stop) = writer(folder.path());
        first.write_metrics(0, "test", Metrics::new());
        assert!(first.take_failure().is_none());
        let (mut second, _) = writer(folder.path());
        first.write_metrics(1, "test", Metrics::new());
        let error = first.take_failure().expect("the folder is taken").to_string();
        assert!(error.contains("another process has begun a run in this folder"), "{error}");
        assert!(stop.is_requested());
        first.finish(json!({})).expect_err("no summary of the first run");
        second.write_metrics(0, "test", Metrics::new());
        second.finish(json!({})).expect("the folder is its own");
        assert_eq!(metrics(folder.path()).lines().count(), 1);
    }

    /// Returns the lines without the times of the reports. Checks that each time is plausible.
    fn timeless(metrics: &str) -> Vec<Value> {
        let lines = metrics.lines().map(|line| serde_json::from_str::<Value>(line).expect("JSON"));
        let timeless = lines.map(|mut line| {
            let time = line.as_object_mut().expect("an object").shift_remove("unix_s");
            assert!(time.and_then(|time| time.as_f64()) > Some(1.57e9));
            line
        });
        timeless.collect()
    }

    #[test]
    fn a_slow_disk_blocks_no_caller_and_loses_no_record() {
        let directory = tempfile::tempdir().expect("a folder");
        let (mut writer, stop) = writer(directory.path());
        writer.write_metrics(0, "validation", Metrics::new());
        let release = block_writer(&mut writer);
        let mut report = StepReport::default();
        report.closed = Nanos(2_500_000_000);
        writer.step(report, "full".into(), Metrics::from([("a".into(), 1.0)]));
        // `step` has returned although the disk is still held up.
        assert!(!metrics(directory.path()).contains("full"));
        let save = writer.save(1);
        drop(release);
        let (extent, files) = save().expect("saved");
        let written = metrics(directory.path());
        assert_eq!(extent, RunFolderExtent { steps: 1, metrics: written.len() as u64 });
        let expected = [
            json!({"step": 0, "round": "validation", "data": {}}),
            json!({"step": 1, "round": "full", "clock_s": 2.5, "data": {"a": 1.0}}),
        ];
        assert_eq!((timeless(&written), files.len()), (expected.to_vec(), 1));
        writer.finish("over").expect("finished");
        let summary = fs::read_to_string(directory.path().join("run/summary.json"));
        assert_eq!(summary.expect("a summary"), "\"over\"");
        assert!(!stop.is_requested());
    }

    #[test]
    fn a_disk_that_is_too_slow_bounds_the_unwritten_records() {
        let directory = tempfile::tempdir().expect("a folder");
        let (mut writer, _) = writer(directory.path());
        let release = block_writer(&mut writer);
        assert!(!writer.is_full());
        (1..MAX_UNWRITTEN).for_each(|_| writer.write_metrics(0, "validation", Metrics::new()));
        assert!(writer.is_full());
        drop(release);
        // Waits for the oldest record.
        writer.write_metrics(0, "validation", Metrics::new());
        assert!(writer.unwritten.len() <= MAX_UNWRITTEN);
        assert!(writer.take_failure().is_none() && writer.unwritten.is_empty());
        assert_eq!(metrics(directory.path()).lines().count(), MAX_UNWRITTEN);
    }

    #[test]
    fn the_first_error_stops_the_run_and_is_in_no_snapshot() {
        let directory = tempfile::tempdir().expect("a folder");
        let (mut writer, stop) = writer(directory.path());
        let failed = |reason: &str| -> Result<(), RecordError> {
            let (path, reason) = ("run/rollouts".into(), reason.to_owned());
            Err(RecordError::Write { path, reason })
        };
        let before = writer.save(0);
        writer.write(move |_| failed("full"));
        writer.write(move |_| failed("gone"));
        let after = writer.save(1);
        assert!(before().is_ok(), "the record after it is not part of a snapshot");
        let expected = "cannot write run/rollouts: full";
        assert_eq!(after().expect_err("a record is missing").to_string(), expected);
        assert!(stop.is_requested());
        let error = writer.finish("over").expect_err("a record is missing");
        assert_eq!(error.to_string(), expected);
        assert!(!directory.path().join("run/summary.json").exists());
    }
}
