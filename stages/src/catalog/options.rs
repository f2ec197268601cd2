//! Options: their deserialization, and the errors about wrong options.

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::shape::{field_shapes, shape_of};
use crate::wrong_value::{keys_to, missing_field, reason};

/// Options by name, as written in a recipe.
pub type Options = serde_json::Map<String, serde_json::Value>;

/// An error of a choice from a [`Catalog`](super::Catalog).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CatalogError {
    /// The catalog has no entry of this name or alias.
    #[error("there is no {kind} `{name}`; there are {known}")]
    Unknown {
        /// The kind of entries that the catalog has.
        kind: &'static str,
        /// The requested name.
        name: String,
        /// The names of the catalog, separated by commas.
        known: String,
    },
    /// An option is invalid or missing, or the options do not fit together.
    #[error("{}{reason}", if key.is_empty() { String::new() } else { format!("`{key}`: ") })]
    Option {
        /// The option; empty if the error does not concern a single option.
        key: String,
        /// The reason: what was expected and what was found.
        reason: String,
    },
    /// The chosen entry failed to start, for example because a process failed, an address is invalid, or the program lacks a feature.
    #[error("{0}")]
    Start(String),
}

impl CatalogError {
    /// Returns the error of an entry that failed to start.
    #[must_use]
    pub fn start(error: impl std::fmt::Display) -> Self {
        Self::Start(error.to_string())
    }

    /// Returns the error for the option `key`, whose value is out of range.
    #[must_use]
    pub fn out_of_range(key: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        Self::Option { key: key.to_owned(), reason: format!("expected {expected}, found {found}") }
    }

    /// Returns `true` if the error concerns a single option. Returns `false` for errors about the entry or about the options as a whole,
    /// such as a missing option.
    pub(super) fn has_option(&self) -> bool {
        matches!(self, Self::Option { key, .. } if !key.is_empty())
    }
}

/// Checks that `value`, the value of the option `key`, is finite and that `fits` accepts it. `expected` describes the accepted values in
/// the error, such as `a number above 0`.
///
/// # Errors
/// Returns [`CatalogError::Option`] if the value is not finite or `fits` rejects it.
pub fn check_range(
    key: &str,
    value: f64,
    fits: impl Fn(f64) -> bool,
    expected: &str,
) -> Result<(), CatalogError> {
    if value.is_finite() && fits(value) {
        Ok(())
    } else {
        Err(CatalogError::out_of_range(key, expected, value))
    }
}

/// Removes the options named by `keys` and returns them. Keys without an option are skipped.
#[must_use]
pub fn take(options: &mut Options, keys: &[&str]) -> Options {
    keys.iter().filter_map(|key| options.remove_entry(*key)).collect()
}

/// Deserializes options.
///
/// # Errors
/// Returns [`CatalogError::Option`] if `O` rejects the options: one is unknown or missing, or has a wrong type or value.
pub fn read<O: DeserializeOwned>(options: Options) -> Result<O, CatalogError> {
    let options = Value::Object(options);
    serde_path_to_error::deserialize(&options).map_err(|error| option_error::<O>(&options, &error))
}

fn option_error<O: DeserializeOwned>(
    options: &Value,
    error: &serde_path_to_error::Error<serde_json::Error>,
) -> CatalogError {
    let path = error.path().to_string();
    let key = if path == "." { String::new() } else { path };
    let reason = reason(&error.inner().to_string());
    let reason = match options.get(&key) {
        Some(found) => {
            let shape = shape_of(&key, &field_shapes::<O>());
            shape.reason(reason, found, found.is_string())
        }
        None => reason,
    };
    CatalogError::Option { key, reason }
}

/// Returns an error for each option that is unknown or has a wrong type, including options in nested tables. For a table without such
/// options, returns an error for its first missing option.
#[must_use]
pub fn type_errors<O: DeserializeOwned>(options: Options) -> Vec<CatalogError> {
    let mut errors = Vec::new();
    let mut removed_from: Vec<Vec<String>> = Vec::new();
    let mut options = Value::Object(options);
    // serde stops at the first error. Therefore each value that causes one is removed, and the rest is read again.
    while let Err(error) = serde_path_to_error::deserialize::<_, O>(&options) {
        let mut keys: Vec<String> = keys_to(error.path()).map(str::to_owned).collect();
        // A field may be missing because it was removed, under its name or an alias.
        let is_missing = missing_field(&error.inner().to_string()).is_some();
        if !(is_missing && removed_from.contains(&keys)) {
            errors.push(option_error::<O>(&options, &error));
        }
        let Some(last) = keys.pop() else { break };
        let table = keys.iter().try_fold(&mut options, |table, key| table.get_mut(key));
        let table = table.and_then(Value::as_object_mut);
        if table.and_then(|table| table.shift_remove(&last)).is_none() {
            break;
        }
        removed_from.push(keys);
    }
    errors
}
