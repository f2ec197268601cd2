//! Which keys a recipe has, read off its types, so that an unknown one is answered with the nearest.

use serde::de::{self, Deserialize, Deserializer, Visitor};
use toml::{Table, Value};

use super::error::{RecipeError, nearest};

/// Something that is written in TOML sections.
pub(crate) trait Sections: serde::de::DeserializeOwned {
    /// Keys of the section of this dotted name, "" for the file itself; none where the section is no struct.
    fn keys(section: &str) -> Option<&'static [&'static str]>;
}

/// Refuses the first key that `T`, or the section it stands in, does not have.
pub(super) fn check<T: Sections>(table: &Table) -> Result<(), RecipeError> {
    for (key, value) in table {
        if T::keys(key).is_some() && !value.is_table() {
            known(key, T::keys("").unwrap_or_default(), "")?;
            let reason = format!("expected a section, found {}", value.type_str());
            return Err(RecipeError::Type { key: key.clone(), reason });
        }
    }
    check_section::<T>(table, "")
}

fn check_section<T: Sections>(table: &Table, section: &str) -> Result<(), RecipeError> {
    let Some(keys) = T::keys(section) else { return Ok(()) };
    let prefix = if section.is_empty() { String::new() } else { format!("{section}.") };
    for (key, value) in table {
        known(key, keys, &prefix)?;
        if let Value::Table(inner) = value {
            check_section::<T>(inner, &format!("{prefix}{key}"))?;
        }
    }
    Ok(())
}

fn known(key: &str, keys: &'static [&'static str], prefix: &str) -> Result<(), RecipeError> {
    if keys.contains(&key) {
        return Ok(());
    }
    let nearest = nearest(key, keys.iter().copied()).map(|near| format!("{prefix}{near}"));
    Err(RecipeError::UnknownKey { key: format!("{prefix}{key}"), nearest })
}

/// The fields that a struct's `Deserialize` asks for, aliases included.
pub(crate) fn fields<'de, T: Deserialize<'de>>() -> &'static [&'static str] {
    let mut fields: &'static [&'static str] = &[];
    // The probe answers every request with an error; what it was asked for is all that is wanted.
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
