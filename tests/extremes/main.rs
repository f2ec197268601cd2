//! Tests every numeric key and flag of every command at its extremes. The result must be an error that names the key or a normal exit,
//! never a panic, a crash, a hang or the use of all memory.
//!
//! The keys and flags are read from the program: keys of recipes and jobs, options of schedules, losses, estimators and rewards, command
//! line flags, and sizes in `config.json`. A new setting is therefore tested without a change here.
#![cfg(feature = "torch")]

mod flags;
mod jobs;
mod memory;
mod models;
mod program;
mod recipes;
mod rewards;
#[path = "../workspace/mod.rs"]
mod workspace;

use serde::Serialize;
use serde_json::Value;

/// Values of a setting, as TOML: bounds of integer types and numbers next to them, very small and very large floats, infinities and NaN.
pub(crate) const EXTREMES: [&str; 16] = [
    "-9223372036854775808",
    "-1",
    "0",
    "1",
    "2147483648",
    "4294967295",
    "4294967296",
    "9223372036854775807",
    "5e-324",
    "1e-30",
    "-1e30",
    "1e30",
    "1.7976931348623157e308",
    "nan",
    "inf",
    "-inf",
];

/// Returns `true` if the error says that a number was written where a value of another type, or no such key, is expected.
pub(crate) fn is_of_another_type(error: &str) -> bool {
    let types = ["a string", "true or false", "a list", "a table", "a section", "one of"];
    let of_numbers = ["an integer, found", "a number, found"];
    let mut types = types.into_iter().chain(of_numbers);
    types.any(|expected| error.contains(&format!("expected {expected}")))
        || ["unknown", "duplicate field"].iter().any(|words| error.contains(words))
}

/// A key, and the settings that it needs to have an effect.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) with_settings: Vec<String>,
}

impl Key {
    /// Returns all settings that give the key a value.
    pub(crate) fn settings(&self, value: &str) -> Vec<String> {
        let own = format!("{}={value}", self.name);
        self.with_settings.iter().cloned().chain([own]).collect()
    }

    /// Returns the names that an error may contain: the key, in full or within its section, and the keys set together with it.
    pub(crate) fn named(&self) -> Vec<String> {
        let last = self.name.rsplit('.').next().unwrap_or_default();
        let with_settings = self.with_settings.iter().filter_map(|setting| setting.split_once('='));
        let with_settings = with_settings.map(|(key, _)| key.to_owned());
        [self.name.clone(), format!("`{last}`")].into_iter().chain(with_settings).collect()
    }

    /// Returns `true` if an error contains one of these names.
    pub(crate) fn is_named_by(&self, error: &str) -> bool {
        let named = self.named();
        names(error, &named.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// Returns the numbers in a table, or in a value that serializes to one, with their dotted names.
pub(crate) fn numbers(table: &impl Serialize) -> Vec<(String, Value)> {
    let mut all = Vec::new();
    collect("", &serde_json::to_value(table).expect("JSON"), &mut all);
    all
}

fn collect(prefix: &str, value: &Value, into: &mut Vec<(String, Value)>) {
    let dot = if prefix.is_empty() { "" } else { "." };
    match value {
        Value::Object(fields) => fields
            .iter()
            .for_each(|(name, value)| collect(&format!("{prefix}{dot}{name}"), value, into)),
        Value::Number(_) => into.push((prefix.to_owned(), value.clone())),
        _ => {}
    }
}

/// Returns `true` if an error names one of `keys` and does not show that the program itself failed.
pub(crate) fn names(error: &str, keys: &[&str]) -> bool {
    let broken = ["panicked", "overflow", "RUST_BACKTRACE"];
    keys.iter().any(|key| error.contains(key)) && !broken.iter().any(|word| error.contains(word))
}
