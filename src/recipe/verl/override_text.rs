//! An override as Hydra writes it.

use toml::Value;

use crate::recipe::error::RecipeError;
use crate::recipe::value::{NULL, value_of};

/// An override, `section.key=value`.
#[derive(Clone, Debug)]
pub(crate) struct Override {
    /// The text without Hydra's `+`.
    pub(crate) written: String,
    pub(crate) key: String,
    /// The value, or the string `null` for Hydra's `null`.
    pub(crate) value: Value,
}

impl Override {
    /// Reads an override. Hydra's `+` and `++` before a key are accepted.
    ///
    /// # Errors
    /// If the text has no `=`, or begins with Hydra's `~`, which removes a key.
    pub(super) fn parse(text: &str) -> Result<Self, RecipeError> {
        if let Some(removed) = text.strip_prefix('~') {
            let (key, _) = removed.split_once('=').unwrap_or((removed, ""));
            let reason = format!("expected `{key}=null`, which unsets the key, found `{text}`");
            return Err(RecipeError::Type { key: key.to_owned(), reason });
        }
        let written = text.trim_start_matches('+');
        let (key, value) = written
            .split_once('=')
            .ok_or_else(|| RecipeError::Override { text: text.to_owned() })?;
        let (key, value) = (key.trim().to_owned(), value_of(value));
        Ok(Self { written: written.to_owned(), key, value })
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

    /// Returns the override for another key.
    pub(super) fn renamed(&self, key: &str) -> String {
        format!("{key}={}", self.value_text())
    }

    /// Returns `true` if the value refers to another key, as in `${data.max_prompt_length}`.
    pub(super) fn has_reference(&self) -> bool {
        self.value_text().contains("${")
    }

    /// Returns the value as it is written.
    fn value_text(&self) -> &str {
        self.written.split_once('=').unwrap_or_default().1
    }
}

/// Returns the last override of each key, as Hydra does.
pub(super) fn last_of_each_key(written: Vec<Override>) -> Vec<Override> {
    let is_last = |at: usize| written[at + 1..].iter().all(|later| later.key != written[at].key);
    let kept: Vec<bool> = (0..written.len()).map(is_last).collect();
    written.into_iter().zip(kept).filter_map(|(one, is_kept)| is_kept.then_some(one)).collect()
}

/// Replaces each `${key}` in a value by the value of that override. Others are left as they are.
pub(super) fn interpolate(written: &mut [Override]) {
    // A value may refer to one that refers to another. More levels than keys would be a circle.
    for _ in 0..written.len() {
        if !written.iter().any(Override::has_reference) {
            return;
        }
        let values: Vec<(String, String)> = written
            .iter()
            .map(|one| (format!("${{{}}}", one.key), one.value_text().to_owned()))
            .collect();
        for one in written.iter_mut().filter(|one| one.has_reference()) {
            for (reference, value) in values.iter().filter(|(_, value)| !value.contains("${")) {
                one.written = one.written.replace(reference, value);
            }
            one.value = value_of(one.value_text());
        }
    }
}
