//! Every numeric key and flag at its extremes, for every command: an error that names it, or a normal end; never a panic, a crash, a hang or
//! all of the memory.
//!
//! What is tried is read off the program (keys of recipes and jobs, options of schedules, losses, estimators and rewards, flags of the
//! command line, sizes in `config.json`), so that a new setting is tried without a change here.
#![cfg(feature = "torch")]

mod flags;
mod jobs;
mod memory;
mod models;
mod program;
mod recipes;
mod rewards;
#[path = "../workplace/mod.rs"]
mod workplace;

use serde::Serialize;
use serde_json::Value;

/// Values of a setting, as TOML: the least and greatest of every type of number, beside the least that may be usual.
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

/// A numeric key, and the settings beside which it has an effect.
pub(crate) struct Key {
    pub(crate) name: String,
    pub(crate) beside: Vec<String>,
}

impl Key {
    /// All that is set for the key to have a value.
    pub(crate) fn settings(&self, value: &str) -> Vec<String> {
        let own = format!("{}={value}", self.name);
        self.beside.iter().cloned().chain([own]).collect()
    }

    /// What an error may name: the key, in full or within its section, and those beside it.
    pub(crate) fn named(&self) -> Vec<String> {
        let last = self.name.rsplit('.').next().unwrap_or_default();
        let beside = self.beside.iter().filter_map(|setting| setting.split_once('='));
        let beside = beside.map(|(key, _)| key.to_owned());
        [self.name.clone(), format!("`{last}`")].into_iter().chain(beside).collect()
    }

    /// Whether an error names one of them.
    pub(crate) fn is_named_by(&self, error: &str) -> bool {
        let named = self.named();
        names(error, &named.iter().map(String::as_str).collect::<Vec<_>>())
    }
}

/// The numbers of a table, or of what makes one, by their dotted names in it.
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

/// Whether an error says what was wrong with one of `keys`, and not how the program broke.
pub(crate) fn names(error: &str, keys: &[&str]) -> bool {
    let broken = ["panicked", "overflow", "RUST_BACKTRACE"];
    keys.iter().any(|key| error.contains(key)) && !broken.iter().any(|word| error.contains(word))
}
