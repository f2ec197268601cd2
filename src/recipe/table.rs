//! Recipes as tables: read from files, overridden, and taken apart by keys.

use std::collections::BTreeMap;
use std::path::Path;

use rollpacker_stages::secret::{REDACTED, is_secret_name, without_credentials};
use toml::{Table, Value};

use super::error::{RecipeError, first_line};
use super::raw::Raw;
use super::{aliases, keys, most, schedule};

impl Raw {
    /// The settings by their dotted names, as they are written in TOML; defaults filled in, without those that have none, and without
    /// credentials.
    ///
    /// # Panics
    /// Never: every value of a recipe is TOML.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, String> {
        let table = Table::try_from(self.recorded());
        let table = table.expect("invariant: recipes are read from TOML");
        let mut settings = BTreeMap::new();
        flatten("", table, &mut settings);
        settings
    }

    /// Returns the recipe as it is printed and written down. Options of rewards are written by users and may have credentials: those in
    /// URLs are left out, and so are texts whose key has the name of a secret.
    pub(crate) fn recorded(&self) -> Self {
        let mut recorded = self.clone();
        recorded.reward.options.values_mut().for_each(leave_out_credentials);
        recorded
    }

    /// Returns whether [`recorded`](Self::recorded) leaves something out.
    pub(crate) fn has_credentials(&self) -> bool {
        self.reward.options != self.recorded().reward.options
    }
}

fn leave_out_credentials(table: &mut Table) {
    for (key, value) in table {
        leave_out_of(value, is_secret_name(key));
    }
}

fn leave_out_of(value: &mut Value, is_secret: bool) {
    match value {
        Value::String(text) if is_secret => REDACTED.clone_into(text),
        Value::String(text) => *text = without_credentials(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| leave_out_of(value, is_secret)),
        Value::Table(table) => leave_out_credentials(table),
        _ => {}
    }
}

fn flatten(prefix: &str, table: Table, settings: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            Value::Table(table) => flatten(&format!("{prefix}{key}."), table, settings),
            value => drop(settings.insert(format!("{prefix}{key}"), value.to_string())),
        }
    }
}

/// Reads a TOML file, and lays `overrides`, each `section.key=value`, over it.
pub(crate) fn read_table(path: &Path, overrides: &[String]) -> Result<Table, RecipeError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| RecipeError::Read { path: path.to_owned(), source })?;
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| RecipeError::Toml {
        path: path.to_owned(),
        reason: error.to_string().trim_end().to_owned(),
    })?;
    for text in overrides {
        overlay(&mut table, text)?;
    }
    Ok(table)
}

/// What is written in a table, every key known and of its type.
pub(crate) fn from_table<T: keys::Sections>(mut table: Table) -> Result<T, RecipeError> {
    aliases::rename(&mut table, T::aliases())?;
    keys::check::<T>(&table)?;
    let table = Value::Table(table);
    most::check_magnitudes("", &table)?;
    serde_path_to_error::deserialize(table).map_err(|error| RecipeError::Type {
        key: error.path().to_string(),
        reason: first_line(&error.inner().to_string()),
    })
}

/// Lays `section.key=value` over a table. The value is TOML if it reads as such, otherwise text. Another schedule leaves the keys of the
/// one before behind.
pub(crate) fn overlay(table: &mut Table, text: &str) -> Result<(), RecipeError> {
    let wrong = || RecipeError::Override { text: text.to_owned() };
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path.pop().filter(|last| !last.is_empty()).ok_or_else(wrong)?;
    let mut section = table;
    for part in path {
        let entry = section.entry(part).or_insert_with(|| Value::Table(Table::new()));
        section = entry.as_table_mut().ok_or_else(wrong)?;
    }
    let parsed = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"));
    section.insert(last.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned())));
    if key.trim() == "schedule.name" {
        schedule::leave_others(section);
    }
    Ok(())
}
