//! The names of the files in a run folder.

use std::path::{Path, PathBuf};

/// The resolved recipe, which a run writes at its start.
pub(crate) const RECIPE: &str = "recipe.toml";
/// The metrics: one JSON line per step, and per validation outside of the steps.
pub(crate) const METRICS: &str = "metrics.jsonl";
/// The summary, which a run writes at its end.
pub(crate) const SUMMARY: &str = "summary.json";
/// The folder of the rollouts: one Parquet file per step.
pub(crate) const ROLLOUTS_FOLDER: &str = "rollouts";
/// The name of TensorBoard's event files. TensorBoard reads files whose names contain `tfevents`. Every export of a run replaces the same
/// file, because TensorBoard would show the values of two files twice.
pub(crate) const EVENT_FILE: &str = "events.out.tfevents.0.rollpacker";
/// The folder of the event file that a run writes while it trains.
pub(crate) const EVENTS_FOLDER: &str = "tensorboard";
/// The folder of the placements: one JSON file per step.
#[cfg(any(feature = "torch", feature = "view"))]
pub(crate) const PLACEMENTS_FOLDER: &str = "placements";

/// The folder of the responses of validations: one Parquet file per validated policy.
#[cfg(feature = "torch")]
pub(crate) const VALIDATION_FOLDER: &str = "validation";

/// Returns the path of the rollouts of a step, counted from 1.
pub(crate) fn rollouts(folder: &Path, step: u64) -> PathBuf {
    folder.join(ROLLOUTS_FOLDER).join(step_file(step, "parquet"))
}

/// Returns the path of the event file that a run writes while it trains.
pub(crate) fn events(folder: &Path) -> PathBuf {
    folder.join(EVENTS_FOLDER).join(EVENT_FILE)
}

/// Returns the name of a file of a step, counted from 1. The file of the validation before the first step has the number 0.
pub(crate) fn step_file(step: u64, extension: &str) -> String {
    format!("step_{step:05}.{extension}")
}

/// Returns the step in a file name of [`step_file`]; `None` for other files.
pub(crate) fn step_of(path: &Path) -> Option<u64> {
    path.file_stem()?.to_str()?.strip_prefix("step_")?.parse().ok()
}
