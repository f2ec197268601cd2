//! The list of keys as JSON.

use serde_json::{Value, json};

use super::{Key, SectionKeys};

/// Returns the keys as a list of objects. Fields without a value are `null`, or an empty list.
pub(crate) fn json(sections: &[SectionKeys]) -> Value {
    sections.iter().flat_map(|section| &section.keys).map(object).collect()
}

fn object(key: &Key) -> Value {
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let aliases: Vec<Value> = key
        .aliases
        .iter()
        .map(|(name, frameworks)| json!({ "name": name, "frameworks": frameworks }))
        .collect();
    json!({
        "key": key.name,
        "of": key.belongs_to,
        "type": text(&key.kind),
        "unit": text(key.unit),
        "default": key.default,
        "range": key.range,
        "meaning": text(&key.meaning),
        "verl": key.verl,
        "trl": key.trl,
        "aliases": aliases,
        "resumable": key.is_resumable,
    })
}
