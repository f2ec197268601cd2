//! Event files of TensorBoard, with a scalar per metric and step.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use prost::Message;
use rollpacker_files::{FileError, Inputs, NewFile};
use rollpacker_stages::metrics::Metric;

use super::event::{
    Content, Event, FILE_VERSION, PluginData, ScalarValue, Summary, SummaryMetadata,
};
use super::tf_record;
use crate::run_files::{self, EVENT_FILE};
use crate::run_reader::StepMetrics;
use crate::show::RunRecord;

/// The path and the counts of an event file that was written.
#[derive(Debug)]
pub(crate) struct EventFile {
    pub(crate) path: PathBuf,
    /// The number of different metrics in the file.
    pub(crate) metrics: usize,
    /// The number of scalars in the file, one per metric and step.
    pub(crate) scalars: usize,
}

/// Writes the metrics of a run to an event file in `folder`.
///
/// # Errors
/// If the folder cannot be created, or the file cannot be written or would replace an input, such as the event file that the run itself
/// writes.
pub(crate) fn write(run: &RunRecord, folder: &Path) -> anyhow::Result<EventFile> {
    let failed = |error| FileError::Io { path: folder.to_owned(), operation: "create", error };
    fs::create_dir_all(folder).map_err(failed)?;
    let path = folder.join(EVENT_FILE);
    Inputs::of([run.metrics_file(), run_files::events(&run.folder)]).check_output(&path)?;
    let mut events = EventWriter::of(BufWriter::new(NewFile::create(&path)?));
    let written = events.write_all(&run.lines).and_then(|()| events.out.flush());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    let EventWriter { out, described, scalars, .. } = events;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error);
    file.with_context(|| format!("cannot write {}", path.display()))?.finish()?;
    Ok(EventFile { path, metrics: described.len(), scalars })
}

pub(crate) struct EventWriter<W> {
    pub(crate) out: W,
    /// `true` if the first event, which names the version of the file, is written.
    is_begun: bool,
    /// The metrics that the file has so far.
    described: BTreeSet<String>,
    scalars: usize,
    /// The sum of the durations of the steps so far, in seconds. It replaces the time of a line that records none.
    elapsed_s: f64,
}

impl<W: Write> EventWriter<W> {
    /// Returns the writer of a file that is empty.
    pub(crate) fn of(out: W) -> Self {
        Self { out, is_begun: false, described: BTreeSet::new(), scalars: 0, elapsed_s: 0.0 }
    }

    /// Writes lines of `metrics.jsonl`. Values that are not numbers are left out. A line without a time gets the sum of the durations of
    /// the steps so far.
    pub(crate) fn write_all(&mut self, lines: &[StepMetrics]) -> io::Result<()> {
        lines.iter().try_for_each(|line| {
            self.elapsed_s += line.get("perf/time_per_step").unwrap_or(0.0);
            let time = line.unix_s.unwrap_or(self.elapsed_s);
            let values = line.data.iter();
            let values = values.filter_map(|(name, value)| Some((name.as_str(), value.as_f64()?)));
            self.write(line.step, time, values)
        })
    }

    /// Writes the metrics of a step, reported at `time` in seconds since 1970. The first call also writes the version of the file. The
    /// values must be finite.
    pub(crate) fn write<'a>(
        &mut self,
        step: u64,
        time: f64,
        values: impl Iterator<Item = (&'a str, f64)>,
    ) -> io::Result<()> {
        if !self.is_begun {
            let version = Content::FileVersion(FILE_VERSION.to_owned());
            self.put(&Event { wall_time: time, step: 0, content: Some(version) })?;
            self.is_begun = true;
        }
        let value: Vec<_> = values.map(|(name, value)| self.scalar(name, value)).collect();
        self.scalars += value.len();
        self.put(&Event {
            wall_time: time,
            step: i64::try_from(step).unwrap_or(i64::MAX),
            content: Some(Content::Summary(Summary { value })),
        })
    }

    fn put(&mut self, event: &Event) -> io::Result<()> {
        tf_record::write(&mut self.out, &event.encode_to_vec())
    }

    #[expect(clippy::cast_possible_truncation, reason = "scalars of TensorBoard have 32 bits")]
    fn scalar(&mut self, name: &str, value: f64) -> ScalarValue {
        let is_new = !self.described.contains(name) && self.described.insert(name.to_owned());
        let metadata = if is_new { Metric::find(name).map(described) } else { None };
        ScalarValue { tag: name.to_owned(), simple_value: Some(value as f32), metadata }
    }
}

/// Returns the texts that TensorBoard shows for a metric: its description and its unit, if it has one.
fn described(metric: &Metric) -> SummaryMetadata {
    let unit = match metric.unit {
        "1" => String::new(),
        unit => format!(" Unit: {}.", unit.trim_matches(['{', '}'])),
    };
    SummaryMetadata {
        plugin_data: Some(PluginData { plugin_name: "scalars".to_owned() }),
        summary_description: format!("{}{unit}", metric.description),
    }
}
