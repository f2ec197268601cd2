//! Reads values of a recipe: overrides, values whose types other crates define, and tables in which some values have a wrong type.

use rollpacker_stages::shape::{field_shapes, shape_of};
use rollpacker_stages::wrong_value::{keys_to, reason};
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::choice::option_error;
use super::error::RecipeError;

/// Deserializes a value written under `key` whose type another crate defines. Errors name the full key.
pub(crate) fn read_value<T: DeserializeOwned>(key: &str, value: Value) -> Result<T, RecipeError> {
    serde_path_to_error::deserialize(value.clone()).map_err(|error| {
        let path = error.path().to_string();
        let inner = if path == "." { "" } else { &path };
        let found = value.get(&path).unwrap_or(&value);
        let reason = reason(&error.inner().to_string());
        let shape = shape_of(&path, &field_shapes::<T>());
        option_error(key, inner, shape.reason(reason, found, found.is_str()))
    })
}

/// Deserializes a table without its values of a wrong type. Calls `wrong` for each of these values with its path, the value and serde's
/// reason.
///
/// # Errors
/// If an error concerns no single key. The error is the path and serde's reason.
pub(super) fn read_rest<T: DeserializeOwned>(
    table: Table,
    mut wrong: impl FnMut(String, &Value, String),
) -> Result<T, (String, String)> {
    let mut table = Value::Table(table);
    // Each pass removes the value at which it stopped, so that the next pass finds the next error. If a section as a whole is wrong, the
    // errors in it are not found.
    loop {
        let error = match serde_path_to_error::deserialize::<_, T>(table.clone()) {
            Ok(read) => return Ok(read),
            Err(error) => error,
        };
        let (key, reason) = (error.path().to_string(), reason(&error.inner().to_string()));
        match remove(&mut table, error.path()) {
            Some(found) => wrong(key, &found, reason),
            None => return Err((key, reason)),
        }
    }
}

/// Removes the innermost table key on a path and returns its value. Returns `None` if the table has no such key.
fn remove(value: &mut Value, path: &serde_path_to_error::Path) -> Option<Value> {
    let keys: Vec<&str> = keys_to(path).collect();
    let (last, sections) = keys.split_last()?;
    let section = sections.iter().try_fold(value, |value, key| value.get_mut(*key));
    section?.as_table_mut()?.remove(*last)
}

/// The value of an override that unsets its key. TOML has no null.
pub(crate) const NULL: &str = "null";

/// Reads the value of an override: TOML, Hydra's `True` and `False` in any case, Hydra's lists without quotes, numbers such as `.5`, or
/// otherwise a string. For Hydra's `null`, `None` and `~`, returns the string [`NULL`].
pub(crate) fn value_of(text: &str) -> Value {
    let parsed = format!("value = {text}").parse::<Table>();
    // A text of several lines may parse as a document with several keys. Such a text is taken as a string, so that no line is lost.
    let parsed = parsed.ok().filter(|table| table.len() == 1);
    if let Some(value) = parsed.and_then(|mut table| table.remove("value")) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_of_several_lines_keeps_all_of_them() {
        for text in ["\"warm\"\n[rollout]\nn=9", "1\nx=2"] {
            assert_eq!(value_of(text), Value::String(text.to_owned()));
        }
        assert_eq!(value_of("[1,\n 2]"), Value::Array(vec![1.into(), 2.into()]));
    }
}
