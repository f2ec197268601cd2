//! The JSON in which datasets write tests.

use std::collections::BTreeMap;

use rollpacker_stages::reward::RewardError;
use serde_json::value::RawValue;

/// The fields of an object, each as written.
pub(super) type Object = BTreeMap<String, Box<RawValue>>;

/// JSON as datasets write it: an object or a list, possibly encoded as a string. Everything else is text.
pub(super) enum Node {
    Object(Object),
    List(Vec<Box<RawValue>>),
    Text(String),
}

impl Node {
    pub(super) fn read(text: &str) -> Self {
        let parsed = match text.trim_start().chars().next() {
            Some('{') => serde_json::from_str(text).map(Self::Object),
            Some('[') => serde_json::from_str(text).map(Self::List),
            Some('"') => serde_json::from_str::<String>(text).map(|inner| Self::read(&inner)),
            _ => return Self::Text(text.to_owned()),
        };
        parsed.unwrap_or_else(|_| Self::Text(text.to_owned()))
    }

    pub(super) fn list(self, field: &str) -> Result<Vec<Box<RawValue>>, RewardError> {
        match self {
            Self::List(items) => Ok(items),
            Self::Object(_) => Err(wrong(field, "a list", "an object")),
            Self::Text(text) => Err(wrong(field, "a list", &brief(&text))),
        }
    }
}

/// Returns a string as it is, a list as one line per element, and anything else as its JSON text.
pub(super) fn text_of(raw: &RawValue) -> String {
    if let Ok(text) = serde_json::from_str(raw.get()) {
        return text;
    }
    serde_json::from_str::<Vec<Box<RawValue>>>(raw.get()).map_or_else(
        |_| raw.get().to_owned(),
        |lines| lines.iter().map(|line| text_of(line)).collect::<Vec<_>>().join("\n"),
    )
}

pub(super) fn string(object: &Object, field: &str) -> Result<Option<String>, RewardError> {
    let Some(raw) = object.get(field) else { return Ok(None) };
    serde_json::from_str(raw.get()).map_err(|_| wrong(field, "a string", &brief(raw.get())))
}

/// Returns the text in a field; `None` if the field is absent or has another type.
pub(super) fn text(object: &Object, field: &str) -> Option<String> {
    string(object, field).ok().flatten()
}

pub(super) fn keys(object: &Object) -> String {
    object.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
}

pub(super) fn brief(text: &str) -> String {
    let end = text.char_indices().nth(60).map_or(text.len(), |(at, _)| at);
    format!("`{}`", &text[..end])
}

pub(super) fn wrong(field: &str, expected: &str, found: &str) -> RewardError {
    RewardError::fatal(format_args!("field `{field}`: expected {expected}, found {found}"))
}
