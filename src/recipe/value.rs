//! Values that are written in a recipe and defined elsewhere.

use serde::de::DeserializeOwned;
use toml::Value;

use super::error::{RecipeError, bound, first_line};

/// A value whose keys another crate defines, written under `key`; an error names the key within it.
pub(crate) fn read_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, RecipeError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = if path == "." { String::new() } else { format!(".{path}") };
        let reason = first_line(&error.inner().to_string());
        // serde names the key only in its message, and not in the path.
        let missing =
            reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        match missing {
            Some(missing) => bound(format!("{key}{inner}.{missing}"), "a value", "nothing"),
            None => RecipeError::Type { key: format!("{key}{inner}"), reason },
        }
    })
}
