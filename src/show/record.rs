//! The records of a run folder, as they are while it is written.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_json::Value;
use toml::Table;

use crate::run_files::{METRICS, RECIPE, SUMMARY};

/// The name of the round of the validation before the first step.
const VALIDATION: &str = "validation";

/// An error in reading a run folder.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ShowError {
    /// The folder is not that of a run.
    #[error(
        "{folder}: expected the folder of a run, with `metrics.jsonl` (`trainer.default_local_dir` or `--out` of `rollpacker train`); \
         {found}"
    )]
    NoRun {
        /// The folder.
        folder: PathBuf,
        /// The reason why it is not.
        found: String,
    },
    /// A file cannot be read, or has other content than a run writes.
    #[error("{path}: {reason}")]
    File {
        /// The file, with the line if it has lines.
        path: String,
        /// The error of the system or of the parser.
        reason: String,
    },
    /// The selected responses are not there.
    #[error("{0}")]
    NoResponses(String),
}

impl ShowError {
    pub(crate) fn file(path: &Path) -> impl Fn(&dyn std::fmt::Display) -> Self + use<> {
        let path = path.display().to_string();
        move |reason| Self::File { path: path.clone(), reason: reason.to_string() }
    }
}

/// The settings and the metrics of a run.
#[derive(Debug, Serialize)]
pub(crate) struct RunRecord {
    /// The run folder.
    pub(crate) folder: PathBuf,
    /// The reason of the end, from `summary.json`: `finished`, `stopped` or `out_of_time`. `None` if the run is not over, or was killed.
    pub(crate) ended: Option<String>,
    /// The number of complete steps.
    pub(crate) steps: u64,
    /// The settings of the recipe that tell most, by their dotted names.
    pub(crate) settings: BTreeMap<String, String>,
    /// The metrics of the complete steps, in order.
    #[serde(skip)]
    pub(crate) lines: Vec<StepMetrics>,
}

/// A line of `metrics.jsonl`.
#[derive(Debug, Deserialize)]
pub(crate) struct StepMetrics {
    /// The number of the step from 1; 0 for the validation before the first step.
    pub(crate) step: u64,
    /// The kind of the round.
    #[serde(default)]
    pub(crate) round: String,
    /// The time of the report, in seconds since 1970.
    pub(crate) unix_s: Option<f64>,
    /// The time at which the step was complete, in seconds of the run's clock.
    pub(crate) clock_s: Option<f64>,
    /// The metrics by name.
    pub(crate) data: BTreeMap<String, Value>,
}

impl StepMetrics {
    /// Returns a metric; `None` if the step does not report it as a number.
    #[must_use]
    pub(crate) fn get(&self, name: &str) -> Option<f64> {
        self.data.get(name)?.as_f64()
    }

    pub(crate) fn is_step(&self) -> bool {
        self.round != VALIDATION
    }
}

impl RunRecord {
    /// Reads `metrics.jsonl`, and `recipe.toml` and `summary.json` if they are there.
    ///
    /// # Errors
    /// If the folder has no `metrics.jsonl`, or a file cannot be read or parsed. The last line of `metrics.jsonl` may be incomplete.
    pub(crate) fn read(folder: &Path) -> Result<Self, ShowError> {
        let lines = metrics(folder)?;
        let summary = optional(&folder.join(SUMMARY))?;
        let summary: Option<Value> = match &summary {
            Some((path, text)) => {
                Some(serde_json::from_str(text).map_err(|error| ShowError::file(path)(&error))?)
            }
            None => None,
        };
        let ended = summary.and_then(|summary| Some(summary.get("ended")?.as_str()?.to_owned()));
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

/// Reads a file that a run may not have written yet.
fn optional(path: &Path) -> Result<Option<(PathBuf, String)>, ShowError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ShowError::file(path)(&error)),
    }
}

fn metrics(folder: &Path) -> Result<Vec<StepMetrics>, ShowError> {
    let path = folder.join(METRICS);
    let text = fs::read_to_string(&path).map_err(|error| match error.kind() {
        ErrorKind::NotFound | ErrorKind::NotADirectory => ShowError::NoRun {
            folder: folder.to_owned(),
            found: if folder.is_dir() { "it has none" } else { "it is no folder" }.to_owned(),
        },
        _ => ShowError::file(&path)(&error),
    })?;
    // The run writes whole lines, so a last line without its end is being written, or was when the run was killed.
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let parsed = whole.enumerate().map(|(index, line)| {
        let failed = |error| ShowError::File {
            path: format!("{}, line {}", path.display(), index + 1),
            reason: format!("expected the metrics of a step: {error}"),
        };
        serde_json::from_str(line).map_err(failed)
    });
    parsed.collect()
}

/// The settings that say what the run is.
const SETTINGS: [&str; 9] = [
    "model.path",
    "data.train_files",
    "data.train_batch_size",
    "rollout.engine",
    "rollout.n",
    "schedule.name",
    "algorithm.adv_estimator",
    "actor.lr",
    "trainer.total_training_steps",
];

fn settings(folder: &Path) -> Result<BTreeMap<String, String>, ShowError> {
    let Some((path, text)) = optional(&folder.join(RECIPE))? else {
        return Ok(BTreeMap::new());
    };
    let recipe: Table = toml::from_str(&text).map_err(|error| ShowError::file(&path)(&error))?;
    let setting = |name: &str| {
        let (section, key) = name.split_once('.')?;
        Some((name.to_owned(), shown(recipe.get(section)?.get(key)?)))
    };
    Ok(SETTINGS.iter().filter_map(|name| setting(name)).collect())
}

/// Formats a value without the quotes of strings.
fn shown(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => values.iter().map(shown).collect::<Vec<_>>().join(", "),
        value => value.to_string(),
    }
}
