//! Errors of recipes, and the checks that return them.

use std::path::PathBuf;

/// An error in a recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The error of the operating system.
        source: std::io::Error,
    },
    /// The file is not valid TOML.
    #[error("{path} is not valid TOML: {reason}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// The position and the cause.
        reason: String,
    },
    /// An override is not `key=value`.
    #[error("override `{text}`: expected key=value")]
    Override {
        /// The override as written.
        text: String,
    },
    /// A key does not exist.
    #[error("unknown key `{key}`{}", nearest.as_ref().map(|key| format!("; did you mean `{key}`?")).unwrap_or_default())]
    UnknownKey {
        /// The key as written.
        key: String,
        /// The most similar valid key, if any.
        nearest: Option<String>,
    },
    /// Several keys do not exist.
    #[error("unknown keys {}", unknown.iter().map(|(key, nearest)| match nearest {
        Some(nearest) => format!("`{key}` (did you mean `{nearest}`?)"),
        None => format!("`{key}`"),
    }).collect::<Vec<_>>().join(", "))]
    UnknownKeys {
        /// The keys as written, each with the most similar valid key, if any.
        unknown: Vec<(String, Option<String>)>,
    },
    /// Overrides with verl's keys cannot be used.
    #[error("{}{}", refused.iter().map(|(text, reason)| format!("verl's `{text}` has no equivalent: {reason}")).collect::<Vec<_>>().join("\n"), unknown.as_ref().map(|unknown| format!("\n{unknown}")).unwrap_or_default())]
    Verl {
        /// The overrides as written, each with the reason.
        refused: Vec<(String, String)>,
        /// The unknown keys, if there are any.
        unknown: Option<Box<RecipeError>>,
    },
    /// A value is of the wrong type.
    #[error("key `{key}`: {reason}")]
    Type {
        /// The key.
        key: String,
        /// The expected and the found type or value.
        reason: String,
    },
    /// `trainer.device` does not name a device, or names one that is absent.
    #[cfg(feature = "torch")]
    #[error("key `trainer.device`: {0}")]
    Device(#[from] rollpacker_torch::model::TorchError),
    /// A value is out of its bounds.
    #[error("key `{key}`: expected {expected}, found {found}")]
    Bound {
        /// The key.
        key: String,
        /// The allowed values.
        expected: String,
        /// The value as written.
        found: String,
    },
}

/// Returns an error for a value that its key does not allow.
pub(crate) fn out_of_bounds(
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl std::fmt::Display,
) -> RecipeError {
    RecipeError::Bound { key: key.into(), expected: expected.into(), found: found.to_string() }
}

/// Rejects a value below `least`.
pub(crate) fn at_least<T: PartialOrd + std::fmt::Display>(
    key: impl Into<String>,
    value: T,
    least: T,
) -> Result<(), RecipeError> {
    if value >= least {
        Ok(())
    } else {
        Err(out_of_bounds(key, format!("at least {least}"), value))
    }
}

/// Rejects a value below `least` or above `most`.
pub(crate) fn between<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), RecipeError> {
    if value > most {
        return Err(out_of_bounds(key, format!("at most {most}"), value));
    }
    at_least(key, value, least)
}

/// Rejects a number that is not finite or for which `fits` returns `false`.
pub(crate) fn within(
    key: impl Into<String>,
    value: f64,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<(), RecipeError> {
    if value.is_finite() && fits(value) {
        Ok(())
    } else {
        Err(out_of_bounds(key, expected, Number(value)))
    }
}

/// A number as error messages print it. Very large and very small numbers use scientific notation.
pub(crate) struct Number(pub(crate) f64);

impl std::fmt::Display for Number {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(value) = *self;
        match value.abs() {
            size if size == 0.0 || !size.is_finite() => write!(f, "{value}"),
            size if (1e-5..1e16).contains(&size) => write!(f, "{value}"),
            _ => write!(f, "{value:e}"),
        }
    }
}

/// Rejects a name that is not in `allowed`, and suggests the most similar allowed name.
pub(crate) fn one_of(
    key: impl Into<String>,
    value: &str,
    allowed: &[&str],
) -> Result<(), RecipeError> {
    if allowed.contains(&value) {
        return Ok(());
    }
    let nearest = nearest(value, allowed.iter().copied());
    let hint = nearest.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    Err(out_of_bounds(key, format!("one of {}{hint}", allowed.join(", ")), format!("`{value}`")))
}

/// Returns the candidate with the smallest edit distance to `text`, if the distance is at most one plus a third of its length.
pub(crate) fn nearest<'a>(
    text: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= 1 + candidate.len() / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Returns the first line of a message. The TOML parser repeats the key in later lines.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}
