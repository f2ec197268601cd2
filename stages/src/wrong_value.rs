//! The wording of errors about values that have the wrong type or name.

use std::borrow::Cow;

use serde_path_to_error::Segment;

/// Converts an error message of serde to the form of recipe errors: the expected value, without names of Rust types, and then the value
/// found. Returns the first line of other messages unchanged.
///
/// ```
/// use rollpacker_stages::wrong_value::reason;
///
/// let message = r#"invalid type: string "many", expected u32"#;
/// assert_eq!(reason(message), r#"expected an integer, found "many""#);
/// let message = "unknown variant `adaptiv`, expected `fixed` or `adaptive`";
/// assert_eq!(
///     reason(message),
///     "expected one of fixed, adaptive (did you mean `adaptive`?), found `adaptiv`"
/// );
/// ```
#[must_use]
pub fn reason(message: &str) -> String {
    let message = message.lines().next().unwrap_or_default();
    let of_variant = || message.strip_prefix("unknown variant `").and_then(wrong_name);
    let of_type = || {
        let rest = message.strip_prefix("invalid ")?;
        let (kind, rest) = rest.split_once(": ").unwrap_or(("", rest));
        let (found, expected) = rest.rsplit_once(", expected ")?;
        // A number of the right type may be out of the range of that type.
        let range =
            (kind == "value").then(|| describe_range(expected)).flatten().unwrap_or_default();
        Some(format!(
            "expected {}{range}, found {}",
            describe_type(expected),
            describe_value(found)
        ))
    };
    of_variant().or_else(of_type).unwrap_or_else(|| message.to_owned())
}

/// Returns the keys that lead to the value that an error concerns, up to the first list or enum on the way. If the value is in a list, the
/// keys lead to the list.
pub fn keys_to(path: &serde_path_to_error::Path) -> impl Iterator<Item = &str> {
    path.iter().map_while(|segment| match segment {
        Segment::Map { key } => Some(key.as_str()),
        _ => None,
    })
}

/// Returns the name of the missing field from a message of serde; `None` for other messages. An error of serde has this name only in its
/// message.
#[must_use]
pub fn missing_field(message: &str) -> Option<&str> {
    message.strip_prefix("missing field `")?.split('`').next()
}

/// Returns the candidate with the smallest edit distance to `text`. A candidate must differ in at most a third of the letters, or in one
/// letter, or begin with `text` if that has at least 3 letters. Returns `None` if there is no such candidate.
///
/// ```
/// use rollpacker_stages::wrong_value::nearest;
///
/// assert_eq!(nearest("mth", ["code", "math"].into_iter()), Some("math"));
/// assert_eq!(nearest("max", ["min_s", "max_s"].into_iter()), Some("max_s"));
/// assert_eq!(nearest("nope", ["code", "math"].into_iter()), None);
/// ```
#[must_use]
pub fn nearest<'a>(text: &str, candidates: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|(edits, candidate)| {
            let is_prefix = text.len() >= 3 && candidate.starts_with(text);
            is_prefix || *edits <= candidate.len().max(text.len()).max(3) / 3
        })
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Returns the text `one of ...`, which lists `names`, with a hint at the name that is most similar to `found`, if one is similar.
#[must_use]
pub fn one_of(names: &[&str], found: &str) -> String {
    let near = nearest(found, names.iter().copied());
    let hint = near.map(|near| format!(" (did you mean `{near}`?)")).unwrap_or_default();
    format!("one of {}{hint}", names.join(", "))
}

/// Returns the message for a wrong name, from the rest of an error of serde after "unknown variant `"; `None` if the error does not list
/// the expected names.
fn wrong_name(rest: &str) -> Option<String> {
    let (found, expected) = rest.split_once("`, expected ")?;
    // Names are between backquotes, and words between names are not.
    let names: Vec<&str> = expected.split('`').skip(1).step_by(2).collect();
    Some(format!("expected {}, found `{found}`", one_of(&names, found)))
}

/// The prefix with which errors of serde name an internally tagged enum.
pub(crate) const TAGGED_ENUM: &str = "internally tagged enum ";

/// The beginning of the reason for a list with more values than its type has. Errors of JSON and TOML do not name the expected length.
pub(crate) const LONG_LIST: &str = "expected a shorter list";

/// Returns the name that recipe errors use for a type that serde expects.
fn describe_type(expected: &str) -> Cow<'_, str> {
    let lists = ["a tuple of size ", "an array of length "];
    if let Some(length) = lists.iter().find_map(|list| expected.strip_prefix(list)) {
        return format!("a list of {length} values").into();
    }
    let words = match expected {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "an integer",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "an integer",
        "f32" | "f64" => "a number",
        "a boolean" => "true or false",
        "a sequence" | "a tuple" => "a list",
        "fewer elements in array" | "fewer elements in sequence" => "a shorter list",
        "a map" => "a table",
        "string or map" | "string only" | "path string" => "a string",
        of_rust if of_rust.starts_with("struct ") => "a table",
        of_rust if of_rust.starts_with(TAGGED_ENUM) => "a table",
        other => other,
    };
    words.into()
}

/// Returns the range of an integer type in words; `None` for signed types of 64 bits or more, and for types that are not integers.
fn describe_range(expected: &str) -> Option<String> {
    let (min, max): (i64, i64) = match expected {
        "u8" => (0, u8::MAX.into()),
        "u16" => (0, u16::MAX.into()),
        "u32" => (0, u32::MAX.into()),
        "u64" | "u128" | "usize" => return Some(" of at least 0".to_owned()),
        "i8" => (i8::MIN.into(), i8::MAX.into()),
        "i16" => (i16::MIN.into(), i16::MAX.into()),
        "i32" => (i32::MIN.into(), i32::MAX.into()),
        _ => return None,
    };
    Some(format!(" from {min} to {max}"))
}

/// Returns a value from a message of serde in the notation of recipes.
fn describe_value(found: &str) -> Cow<'_, str> {
    let quoted = ["boolean `", "integer `", "floating point `", "character `"];
    let quoted = quoted.iter().find_map(|kind| found.strip_prefix(kind)?.strip_suffix('`'));
    let text = || found.strip_prefix("string ").filter(|text| text.starts_with('"'));
    match found {
        "sequence" => "a list".into(),
        "map" => "a table".into(),
        "null" | "unit value" | "Option value" => "nothing".into(),
        found => {
            let length = || found.strip_prefix("length ");
            quoted.or_else(text).or_else(length).unwrap_or(found).into()
        }
    }
}

#[cfg(test)]
mod tests {
    use serde::Deserialize;
    use serde_json::{Value, json};

    use super::*;

    fn error<'de, T: Deserialize<'de>>(value: Value) -> String {
        reason(&T::deserialize(value).err().expect("of another type").to_string())
    }

    #[derive(Deserialize)]
    #[serde(rename_all = "snake_case")]
    enum Only {
        One,
    }

    #[derive(Deserialize)]
    struct Point {
        #[expect(dead_code, reason = "only deserialized")]
        x: f64,
    }

    #[test]
    fn messages_have_no_types_of_rust() {
        assert_eq!(error::<f64>(json!("abc")), r#"expected a number, found "abc""#);
        assert_eq!(error::<u32>(json!(-1)), "expected an integer from 0 to 4294967295, found -1");
        assert_eq!(error::<u64>(json!(1.5)), "expected an integer, found 1.5");
        assert_eq!(error::<u64>(json!(-1)), "expected an integer of at least 0, found -1");
        assert_eq!(error::<i8>(json!(128)), "expected an integer from -128 to 127, found 128");
        assert_eq!(error::<(f64, f64)>(json!([1])), "expected a list of 2 values, found 1");
        assert_eq!(error::<(f64, f64)>(json!([1, 2, 3])), "expected a shorter list, found 3");
        assert_eq!(error::<i64>(json!(null)), "expected an integer, found nothing");
        assert_eq!(error::<bool>(json!(3)), "expected true or false, found 3");
        assert_eq!(error::<String>(json!([1])), "expected a string, found a list");
        assert_eq!(error::<std::path::PathBuf>(json!(3)), "expected a string, found 3");
        assert_eq!(error::<Vec<f64>>(json!({"a": 1})), "expected a list, found a table");
        assert_eq!(error::<Point>(json!(true)), "expected a table, found true");
        assert_eq!(error::<Only>(json!("two")), "expected one of one, found `two`");
        assert!(matches!(Only::deserialize(json!("one")), Ok(Only::One)));
    }

    #[test]
    fn a_text_with_the_words_of_serde_is_kept() {
        let found = "invalid type: \", expected f64";
        let expected = "expected a number, found \"invalid type: \\\", expected f64\"";
        assert_eq!(error::<f64>(json!(found)), expected);
        assert_eq!(reason("missing field `x`\nin `y`"), "missing field `x`");
    }
}
