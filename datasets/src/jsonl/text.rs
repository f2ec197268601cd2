//! Extraction of one text from a line, without parsing the rest into values.

use std::fmt;

use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::value::RawValue;

/// Returns the text at the end of a path; `None` if the path ends early or in null.
///
/// # Errors
/// If the line is not an object, or the value at the end of the path is not text.
pub(super) fn find(line: &[u8], parts: &[String]) -> Result<Option<String>, serde_json::Error> {
    let (root, rest) = parts.split_first().expect("invariant: a path has a root");
    let mut found = field(line, root)?;
    for part in rest {
        found = match found {
            Some(value) if value.get().starts_with('{') => field(value.get().as_bytes(), part)?,
            _ => return Ok(None),
        };
    }
    found.map_or(Ok(None), |value| serde_json::from_str(value.get()))
}

/// Returns a field of an object. If the name occurs several times, the last one counts, as usual in JSON.
fn field<'a>(object: &'a [u8], name: &str) -> Result<Option<&'a RawValue>, serde_json::Error> {
    let mut json = serde_json::Deserializer::from_slice(object);
    let found = json.deserialize_map(Field(name))?;
    json.end().map(|()| found)
}

struct Field<'n>(&'n str);

impl<'de> Visitor<'de> for Field<'_> {
    type Value = Option<&'de RawValue>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.0 {
                found = Some(map.next_value()?);
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
