//! What is wrong with a recipe, and the checks that say so.

use std::path::PathBuf;

/// Why a recipe cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RecipeError {
    /// The file cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is no TOML.
    #[error("{path} is no TOML: {reason}")]
    Toml {
        /// The file.
        path: PathBuf,
        /// Where and why.
        reason: String,
    },
    /// An override is not `key=value`.
    #[error("override `{text}`: expected key=value")]
    Override {
        /// What was typed.
        text: String,
    },
    /// A key does not exist.
    #[error("unknown key `{key}`{}", nearest.as_ref().map(|key| format!("; did you mean `{key}`?")).unwrap_or_default())]
    UnknownKey {
        /// What was written.
        key: String,
        /// The valid key that is nearest.
        nearest: Option<String>,
    },
    /// A value is of the wrong type.
    #[error("key `{key}`: {reason}")]
    Type {
        /// The key.
        key: String,
        /// Expected and found.
        reason: String,
    },
    /// A value is out of its bounds.
    #[error("key `{key}`: expected {expected}, found {found}")]
    Bound {
        /// The key.
        key: String,
        /// What is allowed.
        expected: String,
        /// What was written.
        found: String,
    },
}

/// A value that is not what is expected of its key.
pub(crate) fn bound(
    key: impl Into<String>,
    expected: impl Into<String>,
    found: impl std::fmt::Display,
) -> RecipeError {
    RecipeError::Bound { key: key.into(), expected: expected.into(), found: found.to_string() }
}

/// Refuses a value below `least`.
pub(crate) fn at_least<T: PartialOrd + std::fmt::Display>(
    key: impl Into<String>,
    value: T,
    least: T,
) -> Result<(), RecipeError> {
    if value >= least { Ok(()) } else { Err(bound(key, format!("at least {least}"), value)) }
}

/// Refuses a value below `least` or above `most`.
pub(crate) fn between<T: PartialOrd + std::fmt::Display>(
    key: &str,
    value: T,
    least: T,
    most: T,
) -> Result<(), RecipeError> {
    if value > most {
        return Err(bound(key, format!("at most {most}"), value));
    }
    at_least(key, value, least)
}

/// Refuses a number that is not finite or does not fit.
pub(crate) fn within(
    key: impl Into<String>,
    value: f64,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<(), RecipeError> {
    if value.is_finite() && fits(value) { Ok(()) } else { Err(bound(key, expected, Number(value))) }
}

/// A number as errors quote it: in scientific notation where it would have many zeros.
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

/// Refuses a name that is not allowed, and tells the nearest that is.
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
    Err(bound(key, format!("one of {}{hint}", allowed.join(", ")), format!("`{value}`")))
}

/// Of `candidates`, the one that is fewest edits away, if it is near at all.
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

/// The first line of a message: toml repeats the key in further ones.
pub(crate) fn first_line(message: &str) -> String {
    message.lines().next().unwrap_or_default().to_owned()
}
