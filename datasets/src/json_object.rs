//! JSON objects of prompts.
//!
//! serde_json reads integers of more than 64 bits as floats and loses digits. A ground truth of a math problem may be such an integer.
//! [`parse_object`] restores them as text with all digits.

use std::collections::BTreeMap;

use serde_json::value::RawValue;
use serde_json::{Map, Value};

use crate::error::{text_error, unsupported_format, without_position};
use crate::messages::describe;

pub(crate) type JsonObject = Map<String, Value>;

/// Parses a JSON object. Integers of more than 64 bits become text with the same digits.
pub(crate) fn parse_object(text: &[u8]) -> Result<JsonObject, NoObject> {
    match serde_json::from_slice(text) {
        Ok(Value::Object(mut object)) => {
            restore_integers(text, &mut object);
            Ok(object)
        }
        Ok(other) => Err(NoObject::Other(describe(&other))),
        Err(_) if text.trim_ascii_start().starts_with(b"[") => Err(NoObject::Other(
            "the start of an array: write each of its objects into a line of its own".to_owned(),
        )),
        Err(error) => Err(unsupported_format(text).map_or_else(
            || NoObject::invalid(text, error),
            |format| NoObject::Other(format.to_owned()),
        )),
    }
}

/// The reason why a text is not a JSON object.
#[derive(Debug)]
pub(crate) enum NoObject {
    /// Something else, by its description.
    Other(String),
    /// Text that is not JSON, with the constant at the position of the error if Python wrote one.
    Invalid(serde_json::Error, Option<&'static str>),
}

/// The numbers without a JSON equivalent, as Python's `json.dumps` writes them.
const PYTHON_CONSTANTS: [&str; 3] = ["NaN", "-Infinity", "Infinity"];

impl NoObject {
    fn invalid(text: &[u8], error: serde_json::Error) -> Self {
        let line = text.split(|byte| *byte == b'\n').nth(error.line().saturating_sub(1));
        let (before, after) = line
            .and_then(|line| line.split_at_checked(error.column().saturating_sub(1)))
            .unwrap_or_default();
        // For a negative number, the position is that after the sign.
        let constant =
            PYTHON_CONSTANTS.into_iter().find(|constant| match constant.strip_prefix('-') {
                Some(positive) => before.ends_with(b"-") && after.starts_with(positive.as_bytes()),
                None => after.starts_with(constant.as_bytes()),
            });
        Self::Invalid(error, constant)
    }

    /// Describes what was found in a line of a file. `line` is the number of this line, from 1.
    pub(crate) fn at_line(self, line: u64) -> String {
        match self {
            Self::Other(found) => found,
            Self::Invalid(error, None) => {
                format!("{} at line {line} column {}", without_position(&error), error.column())
            }
            Self::Invalid(error, Some(constant)) => {
                let column = error.column();
                format!(
                    "`{constant}` at line {line} column {column}, which is not JSON: write null"
                )
            }
        }
    }

    /// Describes what was found in the text of a value.
    pub(crate) fn in_text(self) -> String {
        match self {
            Self::Other(found) => found,
            Self::Invalid(error, None) => text_error(&error),
            Self::Invalid(error, Some(constant)) => {
                let (line, column) = (error.line(), error.column());
                format!(
                    "`{constant}` at line {line} column {column} of the text, which is not JSON: write null"
                )
            }
        }
    }
}

/// Returns the value at the path `parts`, or `None` if a field is missing.
pub(crate) fn descend<'a, S: AsRef<str>>(object: &'a JsonObject, parts: &[S]) -> Option<&'a Value> {
    let (root, rest) = parts.split_first()?;
    rest.iter().try_fold(object.get(root.as_ref())?, |value, part| value.get(part.as_ref()))
}

/// Restores the integers of `object` that serde_json has rounded: each becomes text with all its digits, which are taken from `line`.
fn restore_integers(line: &[u8], object: &mut JsonObject) {
    if !object.values().any(may_be_rounded) {
        return;
    }
    let fields = serde_json::from_slice::<BTreeMap<String, &RawValue>>(line).unwrap_or_default();
    restore_fields(&fields, object);
}

fn may_be_rounded(value: &Value) -> bool {
    match value {
        Value::Number(number) => {
            number.is_f64() && number.as_f64().is_some_and(|number| number.abs() >= 2_f64.powi(63))
        }
        Value::Array(items) => items.iter().any(may_be_rounded),
        Value::Object(fields) => fields.values().any(may_be_rounded),
        _ => false,
    }
}

fn restore_value(raw: &RawValue, value: &mut Value) {
    match value {
        Value::Number(_) if may_be_rounded(value) && is_integer(raw.get()) => {
            *value = raw.get().into();
        }
        Value::Array(items) => {
            let all = serde_json::from_str::<Vec<&RawValue>>(raw.get()).unwrap_or_default();
            all.into_iter().zip(items).for_each(|(raw, item)| restore_value(raw, item));
        }
        Value::Object(fields) => {
            restore_fields(&serde_json::from_str(raw.get()).unwrap_or_default(), fields);
        }
        _ => {}
    }
}

fn restore_fields(raw: &BTreeMap<String, &RawValue>, fields: &mut JsonObject) {
    for (name, value) in fields {
        if let Some(raw) = raw.get(name) {
            restore_value(raw, value);
        }
    }
}

fn is_integer(number: &str) -> bool {
    number.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_array_in_place_of_lines_is_named() {
        let error = parse_object(b"[{\"prompt\": \"x\"},").unwrap_err().at_line(1);
        assert!(error.starts_with("the start of an array"), "{error}");
    }

    #[test]
    fn constants_of_python_are_named() {
        let error = |text: &str| parse_object(text.as_bytes()).unwrap_err();
        assert_eq!(
            error(r#"{"prompt":"a2","ground_truth":NaN}"#).at_line(7),
            "`NaN` at line 7 column 31, which is not JSON: write null"
        );
        for constant in ["Infinity", "-Infinity"] {
            let found = error(&format!("{{\n\"é\": [1, {constant}]}}")).in_text();
            assert!(found.starts_with(&format!("`{constant}` at line 2 column ")), "{found}");
            assert!(found.ends_with(" of the text, which is not JSON: write null"), "{found}");
        }
        assert_eq!(
            error(r#"{"a": "NaN" b}"#).at_line(1),
            "expected `,` or `}` at line 1 column 13"
        );
    }

    #[test]
    fn only_integers_beyond_64_bits_become_text() {
        let line = br#"{"a":1267650600228229401496703205376,"b":[{"c":-9223372036854775809},1e30],
            "d":18446744073709551615,"e":-9223372036854775808,"f":0.5,"a\u0062":18446744073709551616}"#;
        let expected = json!({
            "a": "1267650600228229401496703205376",
            "b": [{"c": "-9223372036854775809"}, 1e30],
            "d": u64::MAX,
            "e": i64::MIN,
            "f": 0.5,
            "ab": "18446744073709551616",
        });
        assert_eq!(Value::Object(parse_object(line).unwrap()), expected);
    }
}
