//! The field names that a struct deserializes. Error messages suggest the nearest of these names.

use serde::de::{self, Deserialize, Deserializer, Visitor};

/// Returns the fields that the `Deserialize` implementation of a struct requests, aliases included.
///
/// Returns an empty slice if `T` is not a struct, or flattens another struct.
#[must_use]
pub fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The probe records the requested fields and answers every request with an error, which is discarded.
    drop(T::deserialize(Probe(&mut fields)));
    fields
}

struct Probe<'a>(&'a mut &'static [&'static str]);

impl<'de> Deserializer<'de> for Probe<'_> {
    type Error = de::value::Error;

    fn deserialize_struct<V: Visitor<'de>>(
        self,
        _name: &'static str,
        fields: &'static [&'static str],
        _visitor: V,
    ) -> Result<V::Value, Self::Error> {
        *self.0 = fields;
        Err(de::Error::custom("asked"))
    }

    fn deserialize_any<V: Visitor<'de>>(self, _visitor: V) -> Result<V::Value, Self::Error> {
        Err(de::Error::custom("not a struct"))
    }

    serde::forward_to_deserialize_any! {
        bool i8 i16 i32 i64 i128 u8 u16 u32 u64 u128 f32 f64 char str string bytes byte_buf option unit unit_struct
        newtype_struct seq tuple tuple_struct map enum identifier ignored_any
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(serde::Deserialize)]
    struct Point {
        #[serde(alias = "abscissa")]
        _x: f64,
        _y: f64,
    }

    #[test]
    fn fields_are_those_that_deserialize_requests() {
        assert_eq!(fields::<Point>(), ["_x", "abscissa", "_y"]);
        assert!(fields::<Vec<f64>>().is_empty());
    }
}
