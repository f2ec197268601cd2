//! The keys that a recipe may have, read from its types. An unknown key is reported with the most similar known key.

use rollpacker_stages::documented::{Documented, Field};
pub(crate) use rollpacker_stages::fields::fields;
use rollpacker_stages::shape::{Shape, field_shapes, shape_of};
use rollpacker_stages::wrong_value::nearest;
use serde::Serialize;
use serde::de::DeserializeOwned;
use toml::{Table, Value};

use super::aliases::Alias;
use super::error::{RecipeError, unknown_keys};

/// A type that is read from TOML sections.
pub(crate) trait Sections: DeserializeOwned {
    /// Returns the section with this dotted name, or the top level of the file for "". Returns `None` if there is no such section, or if
    /// its keys depend on a name in it.
    fn section(name: &str) -> Option<Section>;

    /// Returns the keys of a section, or `None` in the same cases as [`section`](Self::section).
    fn keys(section: &str) -> Option<&'static [&'static str]> {
        Self::section(section).map(|section| section.keys)
    }

    /// Returns the keys of another framework that overrides accept.
    fn foreign_keys() -> Box<dyn Iterator<Item = &'static str>> {
        Box::new(std::iter::empty())
    }

    /// Returns the aliases that files and overrides accept.
    fn aliases() -> &'static [Alias] {
        &[]
    }

    /// Returns the range of a key in words; `None` if the key has no range.
    fn range(_key: &str) -> Option<String> {
        None
    }

    /// Returns `true` for a key whose value may change when a run is resumed.
    fn is_resumable(_key: &str) -> bool {
        false
    }
}

/// A struct that is written as a section.
#[derive(Clone, Copy)]
pub(crate) struct Section {
    /// The keys that the section may have.
    pub(crate) keys: &'static [&'static str],
    /// The documentation of the keys.
    pub(crate) fields: &'static [Field],
    /// Returns the types of the keys.
    pub(crate) shapes: fn() -> Vec<(&'static str, Shape)>,
    /// Returns the defaults of the keys, by key. Keys without a default are left out.
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
    /// The names of the keys that may change, without the name of the section.
    const RESUMABLE: &'static [&'static str];
}

/// Removes unknown keys at any depth, and top-level values that should be sections but are not tables. Returns the errors.
pub(super) fn take_unknown<T: Sections>(table: &mut Table) -> Vec<RecipeError> {
    let mut unknown = Vec::new();
    collect_unknown::<T>(table, "", &mut unknown);
    let mut errors = Vec::from_iter(unknown_keys(unknown));
    table.retain(|key, value| {
        let is_valid = T::keys(key).is_none() || value.is_table();
        if !is_valid {
            let reason = format!("expected a section, found {}", value.type_str());
            errors.push(RecipeError::Type { key: key.to_owned(), reason });
        }
        is_valid
    });
    errors
}

/// Returns `true` for a key of `T`, for an alias, and for every key of a table whose keys are not known here, such as the options of a
/// schedule.
pub(crate) fn is_known<T: Sections>(key: &str) -> bool {
    let mut section = String::new();
    for part in key.split('.') {
        let Some(keys) = T::keys(&section) else { return true };
        let is_alias = |alias: &Alias| alias.section == section && alias.alias == part;
        if !keys.contains(&part) && !T::aliases().iter().any(is_alias) {
            return false;
        }
        section = dotted_name(&section, part);
    }
    T::keys(&section).is_none()
}

/// Returns `true` for each name that [`is_known`] accepts, and for the name of a section.
pub(crate) fn is_key_or_section<T: Sections>(name: &str) -> bool {
    is_known::<T>(name) || T::keys(name).is_some()
}

/// Returns the type of a key. The type is unknown for a key of a table whose keys are not known here, such as the options of a schedule.
pub(super) fn shape<T: Sections>(key: &str) -> Shape {
    let (section, name) = key.rsplit_once('.').unwrap_or(("", key));
    let shapes = T::section(section).map(|section| (section.shapes)()).unwrap_or_default();
    shape_of(name, &shapes)
}

/// Returns the dotted names of all keys of `T`. A section whose keys depend on a name in it, such as `schedule`, counts as one key.
pub(crate) fn all<T: Sections>() -> Vec<String> {
    let mut keys = Vec::new();
    collect::<T>("", &mut keys);
    keys
}

fn collect<T: Sections>(section: &str, into: &mut Vec<String>) {
    for key in T::keys(section).unwrap_or_default() {
        let path = dotted_name(section, key);
        if T::keys(&path).is_some() {
            collect::<T>(&path, into);
        } else {
            into.push(path);
        }
    }
}

/// Removes the unknown keys and collects them, each with the key that was probably meant.
fn collect_unknown<T: Sections>(
    table: &mut Table,
    section: &str,
    into: &mut Vec<(String, Option<String>)>,
) {
    let Some(keys) = T::keys(section) else { return };
    table.retain(|key, value| {
        let is_known = keys.contains(&key);
        match value {
            value if !is_known => add_unknown::<T>(section, key, value, into),
            Value::Table(inner) => collect_unknown::<T>(inner, &dotted_name(section, key), into),
            _ => {}
        }
        is_known
    });
}

/// Adds an unknown key. If the key is a section that resembles no known key, the keys in the section are added instead, so that each of
/// them gets a suggestion.
fn add_unknown<T: Sections>(
    section: &str,
    key: &str,
    value: &Value,
    into: &mut Vec<(String, Option<String>)>,
) {
    let written = dotted_name(section, key);
    let near = nearest_in_section::<T>(section, key);
    match (near, value) {
        (None, Value::Table(inner)) if !inner.is_empty() && T::keys(&written).is_none() => {
            for (key, value) in inner {
                add_unknown::<T>(&written, key, value, into);
            }
        }
        (near, _) => {
            into.push((written.clone(), near.or_else(|| nearest_in_other_sections::<T>(&written))))
        }
    }
}

fn nearest_in_section<T: Sections>(section: &str, key: &str) -> Option<String> {
    let keys = T::keys(section)?.iter().copied();
    let aliases = T::aliases().iter().filter(|alias| alias.section == section);
    let candidates = keys.chain(aliases.map(|alias| alias.alias));
    nearest(key, candidates).map(|near| dotted_name(section, near))
}

/// Returns the most similar key of the other framework. If the other framework has no similar key, returns a key of `T` that has the same
/// last part in any section.
fn nearest_in_other_sections<T: Sections>(written: &str) -> Option<String> {
    let (_, last) = written.rsplit_once('.')?;
    let all = all::<T>();
    let same = all.iter().find(|key| key.rsplit('.').next() == Some(last)).cloned();
    // Sections that both keys have are not compared, because a long one would make all of its keys similar.
    let mut sections = written.rmatch_indices('.').map(|(at, _)| &written[..=at]);
    let shared = sections.find(|section| T::foreign_keys().any(|key| key.starts_with(section)));
    let foreign = shared.and_then(|section| {
        let below = T::foreign_keys().filter_map(|key| key.strip_prefix(section));
        nearest(&written[section.len()..], below).map(|near| format!("{section}{near}"))
    });
    foreign.or(same)
}

/// Returns the dotted name of a key of a section; an empty `section` is the top level of the file.
pub(crate) fn dotted_name(section: &str, key: &str) -> String {
    if section.is_empty() { key.to_owned() } else { format!("{section}.{key}") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recipe::RawRecipe;

    #[test]
    fn documented_types_are_those_that_are_parsed() {
        let shape = super::shape::<RawRecipe>;
        assert_eq!(shape("actor.lr"), Shape::Named("number"));
        assert_eq!(shape("actor.betas"), Shape::Tuple(2));
        assert_eq!(shape("actor.strategy_options"), Shape::Named("table"));
        assert_eq!(shape("actor.clip_ratio"), Shape::Named("number"));
        assert_eq!(shape("trainer.default_local_dir"), Shape::Named("string"));
        assert_eq!(shape("trainer.on_stall"), Shape::Choice(&["warn", "fail"]));
        let several = |words: &str| Shape::Several(words.to_owned());
        assert_eq!(shape("trainer.stall_timeout"), several("seconds, or a text such as `1h30m`"));
        assert_eq!(shape("trainer.max_wall_time"), several("seconds, or a text such as `1h30m`"));
        let threshold = shape("algorithm.rollout_correction.rollout_is_threshold");
        assert_eq!(threshold, several("a number, or a text `low_high`"));
    }
}
