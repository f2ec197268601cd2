//! Parses overrides in Hydra's syntax.

use std::collections::BTreeSet;

use toml::Value;

use crate::recipe::RawRecipe;
use crate::recipe::error::RecipeError;
use crate::recipe::keys::is_key_or_section;
use crate::recipe::split_override;
use crate::recipe::value::{NULL, value_of};

/// An override, `section.key=value`.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    /// The text `key=value`, without Hydra's `+`.
    pub(crate) written: String,
    /// The dotted name of the key.
    pub(crate) key: String,
    /// The value, or the string `null` for Hydra's `null`.
    pub(crate) value: Value,
}

impl Override {
    /// Reads an override. A dictionary as Hydra writes it, `{key: value}`, gives an override for each entry, unless the key is ours.
    /// Hydra's `+` and `++` before a key are accepted.
    ///
    /// # Errors
    /// If the text has no `=`, or begins with Hydra's `~`, which removes a key.
    pub(super) fn parse(text: &str) -> Result<Vec<Self>, RecipeError> {
        if let Some(removed) = text.strip_prefix('~') {
            let (key, _) = removed.split_once('=').unwrap_or((removed, ""));
            let reason = format!("expected `{key}=null`, which unsets the key, found `{text}`");
            return Err(RecipeError::Type { key: key.to_owned(), reason });
        }
        let written = text.trim_start_matches('+');
        let (key, value) = split_override(written)
            .ok_or_else(|| RecipeError::Override { text: text.to_owned() })?;
        let mut read = Vec::new();
        add_entries(key, value, &mut read);
        Ok(read)
    }

    /// Returns `true` for `null` and for an empty table.
    pub(super) fn is_null(&self) -> bool {
        let is_empty = self.value.as_table().is_some_and(toml::Table::is_empty);
        self.value.as_str() == Some(NULL) || is_empty
    }

    /// Returns the override in the form that recipes read.
    pub(super) fn text(&self) -> String {
        self.renamed(&self.key)
    }

    /// Returns the text of the override with `key` in place of its own key.
    pub(super) fn renamed(&self, key: &str) -> String {
        format!("{key}={}", self.value_text())
    }

    /// Returns `true` if the value refers to another key, as in `${data.max_prompt_length}`.
    pub(super) fn has_reference(&self) -> bool {
        self.value_text().contains("${")
    }

    /// Returns the keys that the value refers to.
    pub(super) fn references(&self) -> Vec<String> {
        let parts = self.value_text().split("${").skip(1);
        parts.filter_map(|part| Some(part.split_once('}')?.0.to_owned())).collect()
    }

    /// Returns the text of the value; empty if there is none.
    fn value_text(&self) -> &str {
        split_override(&self.written).map_or("", |(_, text)| text)
    }
}

/// Adds the override `key=text`. If `text` is a dictionary and `key` is not a key of ours, adds an override for each entry of the
/// dictionary instead.
fn add_entries(key: &str, text: &str, into: &mut Vec<Override>) {
    let value = value_of(text);
    // Values of our keys may be tables, or texts that look like a dictionary.
    let of_entries: Vec<(String, String)> = match &value {
        _ if is_key_or_section::<RawRecipe>(key) => Vec::new(),
        Value::Table(table) if table.keys().all(|inner| is_key(inner)) => {
            table.iter().map(|(inner, value)| (inner.clone(), value.to_string())).collect()
        }
        Value::String(_) => entries(text).unwrap_or_default(),
        _ => Vec::new(),
    };
    if of_entries.is_empty() {
        into.push(Override { written: format!("{key}={text}"), key: key.to_owned(), value });
    }
    for (inner, text) in &of_entries {
        add_entries(&format!("{key}.{inner}"), text, into);
    }
}

/// Returns the entries of a dictionary as Hydra writes it, or `None` for any other text.
fn entries(text: &str) -> Option<Vec<(String, String)>> {
    let inner = text.trim().strip_prefix('{')?.strip_suffix('}')?;
    let entries = parts(inner)?.into_iter().map(|entry| {
        let (key, value) = entry.split_once(':')?;
        let key = key.trim().trim_matches(['"', '\'']);
        is_key(key).then(|| (key.to_owned(), value.trim().to_owned()))
    });
    entries.collect()
}

/// Returns `true` if the name of an entry can be a part of a key. Distinguishes a dictionary from a prompt template, which may also begin
/// with a brace.
fn is_key(text: &str) -> bool {
    !text.is_empty()
        && text.chars().all(|letter| letter.is_alphanumeric() || "_-/*".contains(letter))
}

/// Splits a text at the commas outside of brackets and quotes. Returns `None` if brackets or quotes are unbalanced.
fn parts(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut depth, mut quote) = (Vec::new(), 0, 0_usize, None);
    let mut letters = text.char_indices();
    while let Some((at, letter)) = letters.next() {
        match letter {
            '\\' if quote.is_some() => drop(letters.next()),
            letter if quote == Some(letter) => quote = None,
            _ if quote.is_some() => {}
            '"' | '\'' => quote = Some(letter),
            '{' | '[' | '(' => depth += 1,
            '}' | ']' | ')' => depth = depth.checked_sub(1)?,
            ',' if depth == 0 => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    let last = &text[start..];
    // A comma may follow the last entry.
    parts.extend((!last.trim().is_empty()).then_some(last));
    (quote.is_none() && depth == 0).then_some(parts)
}

/// Returns the last override of each key, as Hydra does. `null` also replaces the entries of an earlier dictionary.
pub(super) fn last_of_each_key(written: Vec<Override>) -> Vec<Override> {
    let replaces = |later: &Override, key: &str| {
        let rest = key.strip_prefix(later.key.as_str());
        let is_entry = rest.is_some_and(|rest| rest.starts_with('.'));
        later.key == key || is_entry && later.value.as_str() == Some(NULL)
    };
    let is_last =
        |at: usize| !written[at + 1..].iter().any(|later| replaces(later, &written[at].key));
    let kept: Vec<bool> = (0..written.len()).map(is_last).collect();
    written.into_iter().zip(kept).filter_map(|(one, is_kept)| is_kept.then_some(one)).collect()
}

/// Replaces each `${key}` in a value by the value of the override of `key`. If no override sets `key`, uses the value that `known` returns.
/// References without a value are left as they are.
pub(super) fn interpolate(written: &mut [Override], known: impl Fn(&str) -> Option<String>) {
    let referred: BTreeSet<String> = written.iter().flat_map(Override::references).collect();
    let is_written = |key: &String| written.iter().any(|one| one.key == *key);
    let others: Vec<(String, String)> = referred
        .into_iter()
        .filter(|key| !is_written(key))
        .filter_map(|key| Some((format!("${{{key}}}"), known(&key)?)))
        .collect();
    // References may be nested. A chain that is longer than the number of overrides is a cycle.
    for _ in 0..written.len() {
        if !written.iter().any(Override::has_reference) {
            return;
        }
        let values: Vec<(String, String)> = written
            .iter()
            .map(|one| (format!("${{{}}}", one.key), one.value_text().to_owned()))
            .chain(others.iter().cloned())
            .collect();
        for one in written.iter_mut().filter(|one| one.has_reference()) {
            for (reference, value) in values.iter().filter(|(_, value)| !value.contains("${")) {
                one.written = one.written.replace(reference, value);
            }
            one.value = value_of(one.value_text());
        }
    }
}
