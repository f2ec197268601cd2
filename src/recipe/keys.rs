//! Which keys a recipe has, read off its types, so that an unknown one is answered with the nearest.

pub(crate) use rollpacker_stages::fields::fields;
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
