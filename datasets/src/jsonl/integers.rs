//! Integers of more than 64 bits.
//!
//! serde_json reads them as floats and loses digits. A ground truth of a math problem may be such an integer. This module
//! restores them as text with all digits.

use std::collections::BTreeMap;

use serde_json::Value;
use serde_json::value::RawValue;

use super::JsonObject;

/// Restores the integers of `object` that serde_json has rounded: each becomes text with all its digits, which are taken from `line`.
pub(super) fn restore(line: &[u8], object: &mut JsonObject) {
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

    use crate::jsonl::object;

    #[test]
    fn an_array_in_place_of_lines_is_named() {
        let error = object(b"[{\"prompt\": \"x\"},").unwrap_err().at_line(1);
        assert!(error.starts_with("the start of an array"), "{error}");
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
        assert_eq!(serde_json::Value::Object(object(line).unwrap()), expected);
    }
}
