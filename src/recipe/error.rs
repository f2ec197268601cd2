//! Errors of recipes, and the checks that return them.

use std::num::IntErrorKind;
use std::path::PathBuf;

use rollpacker_stages::wrong_value::{self, nearest};

/// An error in a recipe.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The path of the recipe.
        path: PathBuf,
        /// The error of the operating system.
        error: std::io::Error,
    },
    /// The file is not valid TOML.
    #[error("{path} is not valid TOML: {reason}")]
    Toml {
        /// The path of the recipe.
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
        /// A suggestion: the most similar valid key, or a setting with which the key is valid, such as `schedule.name = sorted`; `None` if
        /// there is neither.
        nearest: Option<String>,
    },
    /// Several keys do not exist.
    #[error("unknown keys {}", unknown.iter().map(|(key, nearest)| match nearest {
        Some(nearest) => format!("`{key}` (did you mean `{nearest}`?)"),
        None => format!("`{key}`"),
    }).collect::<Vec<_>>().join(", "))]
    UnknownKeys {
        /// The keys as written, each with its suggestion, as in [`UnknownKey`](RecipeError::UnknownKey).
        unknown: Vec<(String, Option<String>)>,
    },
    /// An override with one of verl's keys cannot be used.
    #[error("verl's `{text}` has no equivalent: {reason}")]
    Verl {
        /// The override as written.
        text: String,
        /// The reason why the override has no equivalent.
        reason: String,
    },
    /// Several settings are wrong. The message has a line for each.
    #[error("{}", errors.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))]
    Several {
        /// The errors, at least two.
        errors: Vec<RecipeError>,
    },
    /// A key cannot be used as written: its value has the wrong type, it is set twice, it conflicts with another key, or the catalog entry
    /// that it selects rejects its options.
    #[error("key `{key}`: {reason}")]
    Type {
        /// The full name of the key, with its section.
        key: String,
        /// The cause in words, such as the expected and the found type.
        reason: String,
    },
    /// `trainer.device` names a device that is absent.
    #[cfg(feature = "torch")]
    #[error("key `trainer.device`: {0}")]
    Device(rollpacker_torch::model::TorchError),
    /// A value is out of its bounds.
    #[error("key `{key}`: expected {expected}, found {found}")]
    Bound {
        /// The full name of the key, with its section.
        key: String,
        /// The allowed values.
        expected: String,
        /// The value found, or a description of it, such as `nothing`.
        found: String,
    },
}

impl RecipeError {
    /// Returns the keys that the error names; an empty list for errors of a file or of the text of an override.
    pub(super) fn keys(&self) -> Vec<&str> {
        match self {
            Self::UnknownKey { key, .. } | Self::Type { key, .. } | Self::Bound { key, .. } => {
                vec![key]
            }
            Self::UnknownKeys { unknown } => unknown.iter().map(|(key, _)| key.as_str()).collect(),
            Self::Several { errors } => errors.iter().flat_map(Self::keys).collect(),
            #[cfg(feature = "torch")]
            Self::Device(_) => vec!["trainer.device"],
            Self::Read { .. } | Self::Toml { .. } | Self::Override { .. } | Self::Verl { .. } => {
                Vec::new()
            }
        }
    }

    /// Returns `true` if both errors name a key of the same section.
    pub(super) fn shares_section(&self, other: &Self) -> bool {
        let section = |key: &str| key.split('.').next().map(str::to_owned);
        let own: Vec<_> = self.keys().into_iter().map(section).collect();
        other.keys().into_iter().any(|key| own.contains(&section(key)))
    }
}

#[cfg(feature = "torch")]
impl From<rollpacker_torch::model::TorchError> for RecipeError {
    /// Returns the error of `trainer.device`.
    fn from(error: rollpacker_torch::model::TorchError) -> Self {
        Self::Device(error)
    }
}

/// Returns all errors as one error, or `Ok` if there are none.
pub(crate) fn reject(errors: Vec<RecipeError>) -> Result<(), RecipeError> {
    if errors.is_empty() { Ok(()) } else { Err(combine_errors(errors)) }
}

/// Returns the value. If there is none, adds the error to `errors` and returns the default.
pub(crate) fn or_default<T: Default>(
    value: Result<T, RecipeError>,
    errors: &mut Vec<RecipeError>,
) -> T {
    value.map_err(|error| errors.push(error)).unwrap_or_default()
}

/// Combines one or more errors into a single error. One error is returned unchanged.
pub(crate) fn combine_errors(mut errors: Vec<RecipeError>) -> RecipeError {
    if errors.len() == 1 { errors.remove(0) } else { RecipeError::Several { errors } }
}

/// Returns the error for keys that do not exist, each with its suggestion, or `None` if `unknown` is empty.
pub(crate) fn unknown_keys(mut unknown: Vec<(String, Option<String>)>) -> Option<RecipeError> {
    match unknown.len() {
        0 => None,
        1 => {
            let (key, nearest) = unknown.remove(0);
            Some(RecipeError::UnknownKey { key, nearest })
        }
        _ => Some(RecipeError::UnknownKeys { unknown }),
    }
}

/// Returns the error for the keys of a section that are not `known`, or `None` if all keys are known.
pub(crate) fn unknown_in<'a>(
    section: &str,
    written: impl IntoIterator<Item = &'a String>,
    known: &[&str],
) -> Option<RecipeError> {
    let unknown = written.into_iter().filter(|key| !known.contains(&key.as_str()));
    let unknown = unknown.map(|key| {
        let near = nearest(key, known.iter().copied());
        (format!("{section}.{key}"), near.map(|near| format!("{section}.{near}")))
    });
    unknown_keys(unknown.collect())
}

/// Returns an error for a value that its key does not allow.
pub(crate) fn out_of_bounds(
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl std::fmt::Display,
) -> RecipeError {
    RecipeError::Bound { key: key.into(), expected: expected.into(), found: found.to_string() }
}

/// Rejects a value below `min` or above `max`.
pub(crate) fn between<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    min: T,
    max: T,
) -> Result<(), RecipeError> {
    if value > max {
        return Err(out_of_bounds(key, format!("at most {max}"), value));
    }
    if value < min {
        return Err(out_of_bounds(key, format!("at least {min}"), value));
    }
    Ok(())
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
    Err(out_of_bounds(key, wrong_value::one_of(allowed, value), format!("`{value}`")))
}

/// Returns a more precise reason if `reason` rejects an integer that does not fit into 64 bits, and `None` for other reasons. TOML has no
/// such integers, so an override with one is read as a text, and `reason` only says that a number was expected and a text was found.
/// `range` is the range of the key in words.
pub(super) fn long_integer(reason: &str, range: Option<String>) -> Option<String> {
    let (expected, found) = reason.split_once(", found \"")?;
    let found = found.strip_suffix('"')?;
    let own = match found.replace('_', "").parse::<i64>().err()?.kind() {
        IntErrorKind::PosOverflow => format!("at most {}", i64::MAX),
        IntErrorKind::NegOverflow => format!("at least {}", i64::MIN),
        _ => return None,
    };
    let expected = match (expected, range) {
        ("expected an integer" | "expected a number", Some(range)) => format!("expected {range}"),
        ("expected an integer", None) => format!("expected an integer of {own}"),
        ("expected a number", None) => {
            format!("expected a number with a point, or an integer of {own}")
        }
        _ => return None,
    };
    Some(format!("{expected}, found {found}"))
}
