//! The keys that a recipe may have, read from its types. An unknown key is reported with the most similar known one.

use rollpacker_stages::documented::{Documented, Field};
pub(crate) use rollpacker_stages::fields::fields;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::aliases::Alias;
use super::error::{RecipeError, nearest};
use super::shape::{Shape, field_shapes};

/// A type that is written as TOML sections.
pub(crate) trait Sections: DeserializeOwned {
    /// Returns the section with this dotted name, or the file itself for "". Returns `None` if the section is not a struct.
    fn section(name: &str) -> Option<Section>;

    /// Returns the keys of a section.
    fn keys(section: &str) -> Option<&'static [&'static str]> {
        Self::section(section).map(|section| section.keys)
    }

    /// Returns the aliases that are accepted for other keys.
    fn aliases() -> &'static [Alias] {
        &[]
    }
}

/// A struct that is written as a section.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    /// The keys, as they are deserialized.
    pub(crate) keys: &'static [&'static str],
    /// The documentation of the keys.
    pub(crate) fields: &'static [Field],
    /// Returns the types of the keys.
    pub(crate) shapes: fn() -> Vec<(&'static str, Shape)>,
    /// Returns the defaults of the keys that have one.
    pub(crate) defaults: fn() -> Table,
}

impl Section {
    pub(crate) fn of<T: DeserializeOwned + Documented + Default + Serialize>() -> Self {
        Self {
            keys: fields::<T>(),
            fields: T::FIELDS,
            shapes: field_shapes::<T>,
            defaults: || Table::try_from(T::default()).unwrap_or_default(),
        }
    }
}

/// A section that declares which of its keys may change when a run is resumed.
pub(crate) trait ResumableKeys {
    /// The names of these keys in the section.
    const RESUMABLE: &'static [&'static str];
}

/// Returns an error for the first key that `T`, or the section that contains it, does not have.
pub(super) fn check<T: Sections>(table: &Table) -> Result<(), RecipeError> {
    for (key, value) in table {
        if T::keys(key).is_some() && !value.is_table() {
            known::<T>(key, T::keys("").unwrap_or_default(), "")?;
            let reason = format!("expected a section, found {}", value.type_str());
            return Err(RecipeError::Type { key: key.clone(), reason });
        }
    }
    check_section::<T>(table, "")
}

/// Returns the dotted names of all keys of `T`. A section that is not a struct counts as one key, because its keys depend on a name in it.
pub(crate) fn all<T: Sections>() -> Vec<String> {
    let mut keys = Vec::new();
    collect::<T>("", &mut keys);
    keys
}

fn collect<T: Sections>(section: &str, into: &mut Vec<String>) {
    for key in T::keys(section).unwrap_or_default() {
        let path = path(section, key);
        if T::keys(&path).is_some() {
            collect::<T>(&path, into);
        } else {
            into.push(path);
        }
    }
}

fn check_section<T: Sections>(table: &Table, section: &str) -> Result<(), RecipeError> {
    let Some(keys) = T::keys(section) else { return Ok(()) };
    for (key, value) in table {
        known::<T>(key, keys, section)?;
        if let Value::Table(inner) = value {
            check_section::<T>(inner, &path(section, key))?;
        }
    }
    Ok(())
}

fn known<T: Sections>(
    key: &str,
    keys: &'static [&'static str],
    section: &str,
) -> Result<(), RecipeError> {
    if keys.contains(&key) {
        return Ok(());
    }
    let aliases = T::aliases().iter().filter(|alias| alias.section == section);
    let candidates = keys.iter().copied().chain(aliases.map(|alias| alias.theirs));
    let nearest = nearest(key, candidates).map(|near| path(section, near));
    Err(RecipeError::UnknownKey { key: path(section, key), nearest })
}

fn path(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}
