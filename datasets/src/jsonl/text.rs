//! One text of a line, without making the rest of it.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;

/// The text at the end of a path; `None` where there is none, or the line is no object.
pub(super) fn find(line: &[u8], parts: &[String]) -> Option<String> {
    At(parts).deserialize(&mut serde_json::Deserializer::from_slice(line)).ok().flatten()
}

/// What stands at the end of a path.
struct At<'p>(&'p [String]);

impl<'de> DeserializeSeed<'de> for At<'_> {
    type Value = Option<String>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        if !self.0.is_empty() {
            return deserializer.deserialize_map(self);
        }
        let value: Value = serde::Deserialize::deserialize(deserializer)?;
        Ok(if let Value::String(text) = value { Some(text) } else { None })
    }
}

impl<'de> Visitor<'de> for At<'_> {
    type Value = Option<String>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<String>()? {
            if key == self.0[0] {
                found = map.next_value_seed(At(&self.0[1..]))?;
            } else {
                map.next_value::<IgnoredAny>()?;
            }
        }
        Ok(found)
    }
}
