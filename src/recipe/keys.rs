//! Which keys a recipe has, read off its types, so that an unknown one is answered with the nearest.

pub(crate) use rollpacker_stages::fields::fields;
use toml::{Table, Value};

use super::RecipeError;
use super::raw;

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

/// Of `candidates`, the one that is fewest edits away, if it is near at all.
pub(crate) fn nearest<'a>(
    text: &str,
    candidates: impl Iterator<Item = &'a str>,
) -> Option<&'a str> {
    candidates
        .map(|candidate| (strsim::damerau_levenshtein(text, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= 1 + candidate.len() / 3)
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

fn known(key: &str, keys: &'static [&'static str], prefix: &str) -> Result<(), RecipeError> {
    if keys.contains(&key) {
        return Ok(());
    }
    let nearest = nearest(key, keys.iter().copied()).map(|near| format!("{prefix}{near}"));
    Err(RecipeError::UnknownKey { key: format!("{prefix}{key}"), nearest })
}

impl Sections for raw::Raw {
    fn keys(section: &str) -> Option<&'static [&'static str]> {
        Some(match section {
            "" => fields::<Self>(),
            "data" => fields::<raw::Data>(),
            "model" => fields::<raw::Model>(),
            "rollout" => fields::<raw::Rollout>(),
            "pipeline" => fields::<raw::Pipeline>(),
            "reward" => fields::<raw::Reward>(),
            "algorithm" => fields::<raw::Algorithm>(),
            "actor" => fields::<raw::Actor>(),
            "trainer" => fields::<raw::Trainer>(),
            "sft" => fields::<raw::Sft>(),
            // The keys of a schedule depend on its name; it checks them when it is built.
            _ => return None,
        })
    }
}
