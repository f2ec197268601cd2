//! The settings of a recipe with the overrides applied. The conditions of verl's keys are evaluated on these settings.

use std::collections::BTreeMap;

use toml::{Table, Value};

use super::super::table::override_key;
use super::super::value::value_of;
use super::super::{RawRecipe, Recipe};
use super::entries::{Condition, KeyMapping, find};
use super::{Override, is_negative};

/// The settings of a recipe with the overrides applied, and the defaults.
pub(super) struct Settings {
    /// The settings of the file with the overrides applied.
    table: Table,
    /// The settings of a recipe that sets nothing.
    defaults: BTreeMap<String, String>,
}

impl Settings {
    /// Returns the settings of `file` with the overrides applied. Conditions look up other settings in them, so keys of verl that have an
    /// equivalent are stored under our names.
    pub(super) fn new(file: &Table, written: &[Override]) -> Self {
        let mut table = file.clone();
        for setting in written {
            let text = match find(&setting.key, true) {
                Some(
                    KeyMapping::Key(ours)
                    | KeyMapping::If(_, &KeyMapping::Key(ours))
                    | KeyMapping::Switch(_, _, &KeyMapping::Key(ours))
                    | KeyMapping::NotNull(ours, _),
                ) => setting.renamed(ours),
                Some(KeyMapping::NotNegative(ours)) if !is_negative(setting) => {
                    setting.renamed(ours)
                }
                _ => setting.text(),
            };
            // An override that does not fit into the table, such as a key of a section that is also set to `null`, is reported when the
            // recipe is read.
            drop(override_key::<RawRecipe>(&mut table, &text));
        }
        Self { table, defaults: Recipe::default_settings() }
    }

    /// Returns the value of a key that the file or an override sets.
    pub(super) fn value(&self, key: &str) -> Option<&Value> {
        value_at(&self.table, key)
    }

    /// Returns a setting that the file or an override sets, as TOML.
    pub(super) fn explicit(&self, key: &str) -> Option<String> {
        self.value(key).map(Value::to_string)
    }

    /// Returns a setting of the recipe, or its default, as TOML.
    pub(super) fn get(&self, key: &str) -> Option<String> {
        self.explicit(key).or_else(|| self.defaults.get(key).cloned())
    }

    /// Returns the condition that does not hold, or `None` if all conditions hold. The setting that `condition` names may depend on a
    /// condition itself, which is checked first.
    pub(super) fn unmet_condition(&self, condition: Condition) -> Option<Condition> {
        let outer = find(condition.key, true).and_then(|meaning| self.unmet_condition_of(meaning));
        if outer.is_some() {
            return outer;
        }
        let holds = match condition.values {
            [] => self.value(condition.key).is_some(),
            values => {
                let found = self.get(condition.key);
                found.is_some_and(|found| values.contains(&found.as_str()))
            }
        };
        (!holds).then_some(condition)
    }

    /// Returns the first condition of a meaning that does not hold, or `None` if all conditions hold.
    fn unmet_condition_of(&self, meaning: KeyMapping) -> Option<Condition> {
        match meaning {
            KeyMapping::If(condition, inner) => {
                self.unmet_condition(condition).or_else(|| self.unmet_condition_of(*inner))
            }
            KeyMapping::Switch(condition, inner, other) => {
                self.unmet_condition_of(if self.unmet_condition(condition).is_none() {
                    *inner
                } else {
                    *other
                })
            }
            _ => None,
        }
    }
}

/// Returns the value of a key of ours or of verl in the file. If the file does not set the key, returns the default, or `None` if the key
/// has no default.
pub(super) fn setting_or_default(file: &Table, key: &str) -> Option<String> {
    let ours = match find(key, true) {
        Some(KeyMapping::Key(ours) | KeyMapping::If(_, &KeyMapping::Key(ours))) => ours,
        _ => key,
    };
    let default = || Recipe::default_settings().get(ours).map(|text| value_of(text));
    let value = value_at(file, ours).cloned().or_else(default);
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Returns the value at a dotted key; `None` if a part of the key is absent.
fn value_at<'a>(table: &'a Table, key: &str) -> Option<&'a Value> {
    let mut parts = key.split('.');
    let section = table.get(parts.next()?)?;
    parts.try_fold(section, |value, part| value.get(part))
}
