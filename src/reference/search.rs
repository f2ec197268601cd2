//! Finds keys by the beginning of their name.

use rollpacker_stages::wrong_value::nearest;

use super::{Key, SectionKeys};

/// Returns the sections with the keys whose names begin with `prefix`.
///
/// # Errors
/// If no key begins with `prefix`. The error lists at most five keys and sections with similar names, and is empty if there are none.
pub(crate) fn matching(
    sections: Vec<SectionKeys>,
    prefix: &str,
) -> Result<Vec<SectionKeys>, Vec<String>> {
    let suggestions = suggestions(&sections, prefix);
    let filtered = sections.into_iter().map(|mut section| {
        section.keys.retain(|key| key.name.starts_with(prefix));
        section
    });
    let found: Vec<_> = filtered.filter(|section| !section.keys.is_empty()).collect();
    if found.is_empty() { Err(suggestions) } else { Ok(found) }
}

/// Returns at most five keys and sections that are similar to a name. Keys that have this name in other frameworks or other sections come
/// first.
fn suggestions(sections: &[SectionKeys], name: &str) -> Vec<String> {
    let keys = || sections.iter().flat_map(|section| &section.keys);
    let last = name.rsplit('.').next().unwrap_or(name);
    let same = keys().filter(|key| other_names(key).any(|other| other == name || other == last));
    let mut found: Vec<String> = same.map(|key| key.name.clone()).collect();
    let names = sections.iter().map(|section| section.name.as_str());
    found
        .extend(nearest(name, names.chain(keys().map(|key| key.name.as_str()))).map(str::to_owned));
    let ends = |key: &&Key| key.belongs_to.is_none() && is_near(last, last_segment(key));
    found.extend(keys().filter(ends).map(|key| key.name.clone()));
    let mut seen = std::collections::BTreeSet::new();
    found.retain(|name| seen.insert(name.clone()));
    found.truncate(5);
    found
}

/// Returns the names of the key in other frameworks, and the last part of its own name.
fn other_names(key: &Key) -> impl Iterator<Item = &str> {
    let aliases = key.aliases.iter().map(|(alias, _)| alias.as_str());
    let ends = key.aliases.iter().filter_map(|(alias, _)| alias.rsplit('.').next());
    key.verl
        .iter()
        .chain(&key.trl)
        .map(String::as_str)
        .chain(aliases)
        .chain(ends)
        .chain([last_segment(key)])
}

fn last_segment(key: &Key) -> &str {
    key.name.rsplit('.').next().unwrap_or(&key.name)
}

fn is_near(name: &str, other: &str) -> bool {
    nearest(name, std::iter::once(other)).is_some()
}
