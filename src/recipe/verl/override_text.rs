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
    pub(super) fn parse(text: &str) -> Result<Self, RecipeError> {
        let written = text.trim_start_matches('+');
        let (key, value) = written
            .split_once('=')
            .ok_or_else(|| RecipeError::Override { text: text.to_owned() })?;
        let (key, value) = (key.trim().to_owned(), value_of(value));
        Ok(Self { written: written.to_owned(), key, value })
    }

    pub(super) fn is_null(&self) -> bool {
        self.value.as_str() == Some(NULL)
    }

    /// Returns the override in the form that recipes read.
    pub(super) fn text(&self) -> String {
        self.renamed(&self.key)
    }

    /// Returns the override for another key.
    pub(super) fn renamed(&self, key: &str) -> String {
        let (_, value) = self.written.split_once('=').unwrap_or_default();
        format!("{key}={value}")
    }
}
