//! A run, read as far as it is written.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rollpacker_stages::metrics::Metric;
use serde::Serialize;
use serde_json::Value;

use super::columns::Columns;
use crate::findings::Finding;
use crate::run_files::{METRICS, RECIPE, ROLLOUTS_FOLDER, SUMMARY};
use crate::run_reader::{MetricsFile, ReadError, read_optional, rollout_steps, settings, summary};

/// The metrics whose last values the table of runs shows.
const HEADLINE: [&str; 4] =
    ["critic/score/mean", "val/score", "response_length/mean", "perf/time_per_step"];

/// A run folder and the contents of its files that were read, except rollouts.
#[derive(Debug)]
pub(super) struct Run {
    folder: PathBuf,
    metrics: MetricsFile,
    pub(super) columns: Columns,
    settings: CachedFile<BTreeMap<String, String>>,
    summary: CachedFile<Option<Value>>,
    rollouts: CachedFile<Vec<u64>>,
}

/// The content of a file or folder, and the time of its last modification.
#[derive(Debug, Default)]
struct CachedFile<T> {
    written: Option<SystemTime>,
    content: T,
    error: Option<String>,
}

impl<T: Default> CachedFile<T> {
    /// Reads the content again if the file was written, created or removed since the last call.
    fn refresh(&mut self, path: &Path, read: impl FnOnce() -> Result<T, ReadError>) {
        let written = modified(path);
        if self.written == written {
            return;
        }
        self.written = written;
        (self.content, self.error) = match read() {
            Ok(content) => (content, None),
            Err(error) => (T::default(), Some(error.to_string())),
        };
    }
}

fn modified(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).and_then(|metadata| metadata.modified()).ok()
}

/// A line in the table of runs.
#[derive(Debug, Serialize)]
pub(super) struct RunLine {
    name: String,
    folder: String,
    /// The reason why the run ended; `None` if the run has no readable summary: it is not over, was killed, or failed with an error.
    ended: Option<String>,
    /// The number of the last training step; 0 before the first.
    steps: u64,
    /// The number of lines of metrics. A page reads its curves again if this number or `generation` changes.
    lines: usize,
    /// The number of times that the metrics file was read from its first line; see [`Columns::generation`].
    generation: usize,
    /// The time at which `metrics.jsonl` was last written, in seconds since 1970; 0 if it is unknown.
    written: f64,
    /// The steps with rollouts, as ranges that include both ends.
    rollouts: Vec<[u64; 2]>,
    settings: BTreeMap<String, String>,
    /// The last values of the metrics in `HEADLINE` that the run has.
    last: BTreeMap<&'static str, f64>,
    /// The errors of files and lines of metrics that could not be read.
    warnings: Vec<String>,
}

/// A run with everything that the page of the run shows.
#[derive(Debug, Serialize)]
pub(super) struct RunDetail {
    #[serde(flatten)]
    line: RunLine,
    metrics: Vec<MetricLine>,
    findings: Vec<Finding>,
    summary: Option<Value>,
    recipe: Option<String>,
}

/// A metric with its documentation.
#[derive(Debug, Serialize)]
struct MetricLine {
    name: String,
    unit: &'static str,
    description: &'static str,
}

impl Run {
    /// Returns a run of which nothing has been read yet.
    pub(super) fn of(folder: PathBuf) -> Self {
        Self {
            metrics: MetricsFile::of(&folder),
            folder,
            columns: Columns::default(),
            settings: CachedFile::default(),
            summary: CachedFile::default(),
            rollouts: CachedFile::default(),
        }
    }

    /// Reads what was written since the previous call.
    ///
    /// # Errors
    /// If the metrics cannot be read. An error of another file is a warning of the run.
    pub(super) fn refresh(&mut self) -> Result<(), ReadError> {
        self.metrics.read_new(&mut self.columns)?;
        let folder = &self.folder;
        self.settings.refresh(&folder.join(RECIPE), || settings(folder));
        self.summary.refresh(&folder.join(SUMMARY), || summary(folder));
        self.rollouts.refresh(&folder.join(ROLLOUTS_FOLDER), || Ok(rollout_steps(folder)));
        Ok(())
    }

    pub(super) fn folder(&self) -> &Path {
        &self.folder
    }

    /// Returns the steps that have rollouts, in order.
    pub(super) fn rollout_steps(&self) -> &[u64] {
        &self.rollouts.content
    }

    pub(super) fn line(&self, name: &str) -> RunLine {
        let ended = self.summary.content.as_ref();
        let written = modified(&self.folder.join(METRICS)).unwrap_or(UNIX_EPOCH);
        RunLine {
            name: name.to_owned(),
            folder: self.folder.display().to_string(),
            ended: ended.and_then(|summary| Some(summary.get("ended")?.as_str()?.to_owned())),
            steps: self.columns.steps,
            lines: self.columns.lines,
            generation: self.columns.generation,
            written: written.duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64()),
            rollouts: ranges(self.rollout_steps()),
            settings: self.settings.content.clone(),
            last: HEADLINE
                .iter()
                .filter_map(|name| Some((*name, self.columns.last(name)?)))
                .collect(),
            warnings: self.warnings(),
        }
    }

    /// Returns everything that the page of the run shows.
    pub(super) fn detail(&self, name: &str) -> RunDetail {
        let documented = |name: &str| {
            let metric = Metric::find(name);
            MetricLine {
                name: name.to_owned(),
                unit: metric.map_or("", |metric| metric.unit),
                description: metric.map_or("", |metric| metric.description),
            }
        };
        let recipe = read_optional(&self.folder.join(RECIPE)).ok().flatten();
        RunDetail {
            line: self.line(name),
            metrics: self.columns.names().map(documented).collect(),
            findings: self.columns.findings(),
            summary: self.summary.content.clone(),
            recipe: recipe.map(|(_, text)| text),
        }
    }

    fn warnings(&self) -> Vec<String> {
        let errors = [&self.settings.error, &self.summary.error, &self.rollouts.error];
        errors.into_iter().flatten().cloned().chain(self.columns.warning()).collect()
    }
}

/// Returns sorted numbers as ranges that include both ends.
fn ranges(numbers: &[u64]) -> Vec<[u64; 2]> {
    let mut ranges: Vec<[u64; 2]> = Vec::new();
    for &number in numbers {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == number => *last = number,
            _ => ranges.push([number, number]),
        }
    }
    ranges
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_steps_are_a_range() {
        assert_eq!(ranges(&[1, 2, 3, 7, 9, 10]), [[1, 3], [7, 7], [9, 10]]);
        assert!(ranges(&[]).is_empty());
    }
}
