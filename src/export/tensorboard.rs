//! Event files of TensorBoard, with a scalar per metric and step.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use prost::Message;
use rollpacker_files::{Inputs, NewFile};
use rollpacker_stages::metrics::Metric;

use super::event::{
    Content, Event, FILE_VERSION, PluginData, ScalarValue, Summary, SummaryMetadata,
};
use super::tf_record;
use crate::run_reader::StepMetrics;
use crate::show::RunRecord;

/// The name of the file. TensorBoard reads files whose names contain `tfevents`. Every export of a run replaces the same file, because
/// TensorBoard would show the values of two files twice.
const FILE: &str = "events.out.tfevents.0.rollpacker";

/// A written event file.
#[derive(Debug)]
pub(crate) struct EventFile {
    /// The file.
    pub(crate) path: PathBuf,
    /// The number of metrics.
    pub(crate) metrics: usize,
    /// The number of scalars.
    pub(crate) scalars: usize,
}

/// Writes the metrics of a run to an event file in `folder`.
///
/// # Errors
/// If the file cannot be written, or would replace an input.
pub(crate) fn write(run: &RunRecord, folder: &Path) -> anyhow::Result<EventFile> {
    fs::create_dir_all(folder).with_context(|| format!("cannot create {}", folder.display()))?;
    let path = folder.join(FILE);
    Inputs::of([run.metrics_file()]).check_output(&path)?;
    let mut out = BufWriter::new(NewFile::create(&path)?);
    let mut events = EventWriter::default();
    let written = events.write_all(&mut out, &run.lines).and_then(|()| out.flush());
    written.with_context(|| format!("cannot write {}", path.display()))?;
    let file = out.into_inner().map_err(io::IntoInnerError::into_error);
    file.with_context(|| format!("cannot write {}", path.display()))?.finish()?;
    Ok(EventFile { path, metrics: events.described.len(), scalars: events.scalars })
}

/// The state of a file that is being written.
#[derive(Default)]
struct EventWriter {
    /// The metrics that the file has so far.
    described: BTreeSet<String>,
    scalars: usize,
    /// The sum of the times of the steps, in seconds: the time of lines that record none.
    elapsed_s: f64,
}

impl EventWriter {
    fn write_all(&mut self, out: &mut impl Write, lines: &[StepMetrics]) -> io::Result<()> {
        let first = lines.first().and_then(|line| line.unix_s).unwrap_or(0.0);
        let version = Content::FileVersion(FILE_VERSION.to_owned());
        let head = Event { wall_time: first, step: 0, content: Some(version) };
        tf_record::write(out, &head.encode_to_vec())?;
        lines.iter().try_for_each(|line| {
            let event = self.event(line);
            tf_record::write(out, &event.encode_to_vec())
        })
    }

    fn event(&mut self, line: &StepMetrics) -> Event {
        self.elapsed_s += line.get("perf/time_per_step").unwrap_or(0.0);
        let value: Vec<_> = line
            .data
            .iter()
            .filter_map(|(name, value)| Some(self.scalar(name, value.as_f64()?)))
            .collect();
        self.scalars += value.len();
        Event {
            wall_time: line.unix_s.unwrap_or(self.elapsed_s),
            step: i64::try_from(line.step).unwrap_or(i64::MAX),
            content: Some(Content::Summary(Summary { value })),
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "scalars of TensorBoard have 32 bits")]
    fn scalar(&mut self, name: &str, value: f64) -> ScalarValue {
        let is_new = !self.described.contains(name) && self.described.insert(name.to_owned());
        let metadata = if is_new { Metric::find(name).map(described) } else { None };
        ScalarValue { tag: name.to_owned(), simple_value: Some(value as f32), metadata }
    }
}

/// Returns the description of a metric with its unit.
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
