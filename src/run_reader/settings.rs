//! Reads `recipe.toml` and `summary.json` of a run folder.

use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde_json::Value;
use toml::Table;

use super::ReadError;
use crate::run_files::{RECIPE, SUMMARY};

/// The dotted names of the settings that `rollpacker show` and `rollpacker view` print.
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

/// Reads a file that a run may not have written yet. Returns the path and the text; `None` if the file does not exist.
///
/// # Errors
/// If it exists and cannot be read.
pub(crate) fn read_optional(path: &Path) -> Result<Option<(PathBuf, String)>, ReadError> {
    match fs::read_to_string(path) {
        Ok(text) => Ok(Some((path.to_owned(), text))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(ReadError::file(path)(&error)),
    }
}

/// Reads the summary, which a run writes at its end; `None` if it does not exist.
///
/// # Errors
/// If it exists and cannot be read or parsed.
pub(crate) fn summary(folder: &Path) -> Result<Option<Value>, ReadError> {
    let Some((path, text)) = read_optional(&folder.join(SUMMARY))? else { return Ok(None) };
    serde_json::from_str(&text).map(Some).map_err(|error| ReadError::file(&path)(&error))
}

/// Reads the settings of the recipe that describe the run, by their dotted names. Settings that the recipe does not contain are left out.
/// Returns an empty map if the recipe does not exist.
///
/// # Errors
/// If the recipe exists and cannot be read or parsed.
pub(crate) fn settings(folder: &Path) -> Result<BTreeMap<String, String>, ReadError> {
    let Some((path, text)) = read_optional(&folder.join(RECIPE))? else {
        return Ok(BTreeMap::new());
    };
    let recipe: Table = toml::from_str(&text).map_err(|error| ReadError::file(&path)(&error))?;
    let setting = |name: &str| {
        let (section, key) = name.split_once('.')?;
        Some((name.to_owned(), display_value(recipe.get(section)?.get(key)?)))
    };
    Ok(SETTINGS.iter().filter_map(|name| setting(name)).collect())
}

/// Formats a value: strings without quotes, and the values of an array separated by commas.
fn display_value(value: &toml::Value) -> String {
    match value {
        toml::Value::String(text) => text.clone(),
        toml::Value::Array(values) => {
            values.iter().map(display_value).collect::<Vec<_>>().join(", ")
        }
        value => value.to_string(),
    }
}
