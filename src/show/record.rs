//! Reads the records of a run folder, also while the run writes them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::run_files::METRICS;
use crate::run_reader::{MetricsFile, MetricsSink, ReadError, StepMetrics, settings, summary};

/// The settings and the metrics of a run.
#[derive(Debug, Serialize)]
pub(crate) struct RunRecord {
    pub(crate) folder: PathBuf,
    /// The reason of the end, from `summary.json`: `finished`, `stopped` or `out_of_time`. `None` if there is no summary: the run is not
    /// over, was killed, or failed with an error.
    pub(crate) ended: Option<String>,
    /// The number of complete steps.
    pub(crate) steps: u64,
    /// The settings of the recipe that describe the run, by their dotted names.
    pub(crate) settings: BTreeMap<String, String>,
    /// The lines of `metrics.jsonl`, including the lines of validations, in order.
    #[serde(skip)]
    pub(crate) lines: Vec<StepMetrics>,
}

impl RunRecord {
    /// Reads `metrics.jsonl`, and `recipe.toml` and `summary.json` if they exist.
    ///
    /// # Errors
    /// If the folder has no `metrics.jsonl`, or a file cannot be read or parsed. The last line of `metrics.jsonl` may be incomplete.
    pub(crate) fn read(folder: &Path) -> Result<Self, ReadError> {
        let lines = metrics(folder)?;
        let ended = summary(folder)?;
        let ended = ended.and_then(|summary| Some(summary.get("ended")?.as_str()?.to_owned()));
        let steps = lines.iter().filter(|line| line.is_step()).map(|line| line.step).max();
        Ok(Self {
            folder: folder.to_owned(),
            ended,
            steps: steps.unwrap_or(0),
            settings: settings(folder)?,
            lines,
        })
    }

    /// Returns the path of `metrics.jsonl`.
    pub(crate) fn metrics_file(&self) -> PathBuf {
        self.folder.join(METRICS)
    }

    /// Returns the lines of training steps.
    pub(crate) fn training_steps(&self) -> impl Iterator<Item = &StepMetrics> {
        self.lines.iter().filter(|line| line.is_step())
    }
}

/// All lines, or the error of the first line that cannot be parsed.
struct Lines(Result<Vec<StepMetrics>, ReadError>);

impl MetricsSink for Lines {
    fn clear(&mut self) {
        self.0 = Ok(Vec::new());
    }

    fn line(&mut self, line: Result<StepMetrics, ReadError>) {
        match (&mut self.0, line) {
            (Ok(lines), Ok(line)) => lines.push(line),
            (Ok(_), Err(error)) => self.0 = Err(error),
            (Err(_), _) => {}
        }
    }
}

fn metrics(folder: &Path) -> Result<Vec<StepMetrics>, ReadError> {
    let mut lines = Lines(Ok(Vec::new()));
    MetricsFile::of(folder).read_new(&mut lines)?;
    lines.0
}
