//! Values of a recipe: those of overrides, and those whose types other crates define.

use rollpacker_stages::shape::{Shape, field_shapes, shape_of};
use rollpacker_stages::wrong_value::{one_of, reason};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::error::{RecipeError, out_of_bounds};

/// Deserializes a value written under `key` whose type another crate defines. Errors name the full key.
pub(crate) fn read_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, RecipeError> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let path = error.path().to_string();
        let inner = if path == "." { String::new() } else { format!(".{path}") };
        let reason = reason(&error.inner().to_string());
        // serde reports a missing field only in the message, not in the path.
        let missing =
            reason.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`'));
        match missing {
            Some(missing) => out_of_bounds(format!("{key}{inner}.{missing}"), "a value", "nothing"),
            None => {
                let shape = shape_of(&path, &field_shapes::<T>());
                let found = value.get(path).unwrap_or(&value);
                wrong_type(format!("{key}{inner}"), shape, found, reason)
            }
        }
    })
}

/// Returns an error for each option in the table `key` that has a wrong type. Each is removed and the rest is read again, because serde
/// stops at the first one. Missing options are not reported.
pub(super) fn option_errors<T: DeserializeOwned>(
    key: &str,
    mut options: Table,
) -> Vec<RecipeError> {
    let mut errors = Vec::new();
    while let Err(error) = read_value::<T>(key, Value::Table(options.clone())) {
        let RecipeError::Type { key: found, .. } = &error else { break };
        let path = found.strip_prefix(key).and_then(|rest| rest.strip_prefix('.'));
        let option = path.and_then(|path| path.split(['.', '[']).next());
        if option.is_none_or(|option| options.remove(option).is_none()) {
            break;
        }
        errors.push(error);
    }
    errors
}

/// Returns the error of a value of a wrong type. `reason` is that of serde, which does not name what is expected in place of a value that is
/// no name or is none of several types.
pub(super) fn wrong_type(key: String, shape: Shape, found: &Value, reason: String) -> RecipeError {
    let reason = match shape {
        Shape::Choice(names) if !found.is_str() => {
            format!("expected {}, found {found}", one_of(names, ""))
        }
        Shape::Several(expected) if expected == reason => {
            format!("expected {expected}, found {found}")
        }
        _ => reason,
    };
    RecipeError::Type { key, reason }
}

/// The override that unsets a key. TOML has no such value.
pub(crate) const NULL: &str = "null";

/// Reads the value of an override: TOML, Hydra's `True`, `False`, `None` and lists without quotes, or a string.
pub(crate) fn value_of(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>();
    if let Some(value) = parsed.ok().and_then(|mut table| table.remove("value")) {
        return value;
    }
    // Hydra ignores the case of these words.
    match text.trim().to_ascii_lowercase().as_str() {
        "true" => return Value::Boolean(true),
        "false" => return Value::Boolean(false),
        "null" | "none" | "~" => return Value::String(NULL.to_owned()),
        _ => {}
    }
    let text = match text.trim() {
        // TOML needs a digit on both sides of the point.
        number if number.starts_with(['.', '-', '+']) || number.ends_with('.') => {
            return number.parse().map_or_else(|_| Value::String(text.to_owned()), Value::Float);
        }
        list if list.starts_with('[') && list.ends_with(']') => {
            let items = list[1..list.len() - 1].split(',').map(str::trim);
            return Value::Array(items.filter(|item| !item.is_empty()).map(value_of).collect());
        }
        _ => text,
    };
    Value::String(text.to_owned())
}
