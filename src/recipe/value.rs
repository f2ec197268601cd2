//! Values of a recipe whose types other crates define.

use serde::de::DeserializeOwned;
use toml::Value;

use super::error::{RecipeError, first_line, out_of_bounds};

/// Deserializes a value written under `key` whose type another crate defines. Errors name the full key.
pub(crate) fn read_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, RecipeError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let path = error.path().to_string();
        let inner = if path == "." { String::new() } else { format!(".{path}") };
        let reason = first_line(&error.inner().to_string());
        // serde reports a missing field only in the message, not in the path.
        let missing =
            reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        match missing {
            Some(missing) => out_of_bounds(format!("{key}{inner}.{missing}"), "a value", "nothing"),
            None => RecipeError::Type { key: format!("{key}{inner}"), reason },
        }
    })
}
