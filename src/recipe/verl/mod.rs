//! Overrides with verl's keys: one table determines whether a key is mapped to ours, ignored or refused.

pub(crate) mod entries;
mod overlong;
mod override_text;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use toml::{Table, Value};

use self::entries::{Condition, Use, find};
use self::overlong::{Overlong, PENALTY};
use super::aliases::rename;
use super::error::RecipeError;
use super::keys::{Sections, check, is_known};
use super::table::overlay;
use super::{RawRecipe, Recipe};
pub(crate) use override_text::Override;

/// Overrides with our keys, and the treatment of verl's keys.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    /// The overrides, each `section.key=value`.
    pub(crate) overrides: Vec<String>,
    /// The keys with another name here, and that name.
    pub(crate) renamed: Vec<(String, String)>,
    /// The keys without a meaning here.
    pub(crate) ignored: Vec<String>,
    /// The keys that the other settings do not use, and the setting that would.
    pub(crate) unused: Vec<String>,
    /// Remarks on single keys.
    pub(crate) remarks: Vec<String>,
}

/// Translates overrides for a recipe whose file is `file`. `rewards` are the names of the rewards that it may select.
///
/// Keys that are not verl's stay as they are. Keys with verl's and our name keep their checks, unless a key of verl is among the overrides:
/// then those that verl would not use are left out.
///
/// # Errors
/// [`RecipeError::Verl`] with every key that is refused, and why, and with the unknown keys.
pub(crate) fn translate(
    file: &Table,
    overrides: &[String],
    rewards: &[&str],
) -> Result<Translation, RecipeError> {
    let written =
        overrides.iter().map(|text| Override::parse(text)).collect::<Result<Vec<_>, _>>()?;
    let is_of_verl =
        |one: &Override| !is_known::<RawRecipe>(&one.key) && find(&one.key, false).is_some();
    if !written.iter().any(is_of_verl) {
        let overrides = written.iter().map(Override::text).collect();
        return Ok(Translation { overrides, ..Translation::default() });
    }
    let mut translator = Translator {
        settings: settings(file, &written)?,
        rewards,
        done: Translation::default(),
        refused: Vec::new(),
        overlong: Overlong::default(),
    };
    written.iter().for_each(|one| translator.add(one));
    translator.route();
    let Translator { done, refused, .. } = translator;
    if refused.is_empty() {
        return Ok(done);
    }
    let unknown = unknown_keys(file, &done.overrides).map(Box::new);
    Err(RecipeError::Verl { refused, unknown })
}

/// Returns the error for unknown keys in the file and in overrides, if there are any.
fn unknown_keys(file: &Table, overrides: &[String]) -> Option<RecipeError> {
    let mut table = file.clone();
    overrides.iter().try_for_each(|text| overlay(&mut table, text)).ok()?;
    rename(&mut table, RawRecipe::aliases()).ok()?;
    let error = check::<RawRecipe>(&table).err()?;
    let is_unknown =
        matches!(error, RecipeError::UnknownKey { .. } | RecipeError::UnknownKeys { .. });
    is_unknown.then_some(error)
}

/// Returns the file with the overrides that set a key of ours unconditionally. Conditions look up other settings in it.
fn settings(file: &Table, written: &[Override]) -> Result<Table, RecipeError> {
    let mut table = file.clone();
    for one in written {
        match find(&one.key, true) {
            Some(Use::Key(ours) | Use::KeyIf(ours, _)) => overlay(&mut table, &one.renamed(ours))?,
            None if is_known::<RawRecipe>(&one.key) => overlay(&mut table, &one.text())?,
            _ => {}
        }
    }
    Ok(table)
}

/// The logger that writes TensorBoard's event files.
const EVENT_FILE: &str = "tensorboard";
/// The options of the reward that calls verl's `custom_reward_function`.
const PYTHON: &str = "reward.options.python";

struct Translator<'a> {
    settings: Table,
    rewards: &'a [&'a str],
    done: Translation,
    refused: Vec<(String, String)>,
    overlong: Overlong,
}

impl Translator<'_> {
    fn add(&mut self, one: &Override) {
        let exact = find(&one.key, true);
        let is_ours = exact.is_none() && is_known::<RawRecipe>(&one.key);
        let meaning = exact.or_else(|| find(&one.key, false).filter(|_| !is_ours));
        match meaning {
            // An unknown key is reported when the recipe is read, together with those of the file.
            None => self.done.overrides.push(one.text()),
            Some(Use::Key(ours)) => self.set(one, ours),
            Some(Use::KeyIf(ours, condition)) if self.holds(condition) => self.set(one, ours),
            Some(Use::KeyIf(_, condition)) => {
                let of = condition.values.join(" or ");
                self.done.unused.push(format!("{} (needs {} = {of})", one.key, condition.key));
            }
            Some(Use::NotNegative(ours)) => match one.value.as_integer() {
                Some(value) if value < 0 => self.done.ignored.push(one.key.clone()),
                _ => self.set(one, ours),
            },
            Some(Use::Only(values, reason)) => self.only(one, values, reason),
            Some(Use::SameAs(ours, reason)) => self.same(one, &[], ours, reason),
            Some(Use::OneOrSame(values, ours, reason)) => self.same(one, values, ours, reason),
            Some(Use::Noted(values, reason)) => self.noted(one, values, reason),
            Some(Use::Ignored) => self.done.ignored.push(one.key.clone()),
            Some(Use::Refused(_)) if one.is_null() => self.done.ignored.push(one.key.clone()),
            Some(Use::Refused(reason)) => self.refuse(one, reason),
            Some(Use::Engine) => self.engine(one),
            Some(Use::Loggers) => self.loggers(one),
            Some(Use::RewardFile) => self.reward(one, "file"),
            Some(Use::RewardFunction) => self.reward(one, "function"),
            Some(Use::RewardArguments) => {
                let (_, name) = one.key.split_once(".reward_kwargs.").unwrap_or_default();
                self.reward(one, &format!("kwargs.{name}"));
            }
            Some(Use::Overlong(part)) => self.overlong.add(part, one),
        }
    }

    fn set(&mut self, one: &Override, ours: &str) {
        self.done.overrides.push(one.renamed(ours));
        if one.key != ours {
            self.done.renamed.push((one.key.clone(), ours.to_owned()));
        }
    }

    fn only(&mut self, one: &Override, values: &[&str], reason: &str) {
        if is_one_of(one, values) {
            self.done.ignored.push(one.key.clone());
        } else {
            self.refuse(one, reason);
        }
    }

    /// Accepts these values and the one of the key `ours`.
    fn same(&mut self, one: &Override, values: &[&str], ours: &str, reason: &str) {
        let value = self.setting(ours).unwrap_or_else(|| "nothing".to_owned());
        let others: String = values.first().map(|value| format!("{value} or ")).unwrap_or_default();
        let reason = format!("it must be {others}that of {ours}, {value}: {reason}");
        self.only(one, &[values, &[value.as_str()]].concat(), &reason);
    }

    fn noted(&mut self, one: &Override, values: &[&str], reason: &str) {
        if is_one_of(one, values) {
            self.done.ignored.push(one.key.clone());
        } else {
            self.done.remarks.push(format!("`{}` is left out: {reason}", one.written));
        }
    }

    fn refuse(&mut self, one: &Override, reason: &str) {
        self.refused.push((one.written.clone(), reason.to_owned()));
    }

    /// vLLM and SGLang run as servers here. Without any, the engine of the recipe samples from the same distribution.
    fn engine(&mut self, one: &Override) {
        let rollout = self.settings.get("rollout").and_then(Value::as_table);
        let has = |key| rollout.is_some_and(|rollout| rollout.contains_key(key));
        if has("servers") || has("serve") {
            self.set(one, "rollout.engine");
        } else {
            let engine = self.setting("rollout.engine").unwrap_or_default();
            self.done.remarks.push(format!(
                "`{}` is left out: rollout.engine = {engine} generates, because neither rollout.servers nor rollout.serve is set (docs/servers.md)",
                one.written
            ));
        }
    }

    fn loggers(&mut self, one: &Override) {
        let alone = std::slice::from_ref(&one.value);
        let all = one.value.as_array().map_or(alone, Vec::as_slice);
        let is_event_file = |logger: &Value| logger.as_str() == Some(EVENT_FILE);
        if all.iter().any(is_event_file) {
            self.done.overrides.push(format!("{}=[\"{EVENT_FILE}\"]", one.key));
        }
        if !all.iter().all(is_event_file) {
            self.done.ignored.push(one.key.clone());
        }
    }

    fn reward(&mut self, one: &Override, option: &str) {
        if one.is_null() {
            self.done.ignored.push(one.key.clone());
        } else if !self.rewards.contains(&"python") {
            self.refuse(one, "this program has no reward `python`");
        } else {
            self.set(one, &format!("{PYTHON}.{option}"));
        }
    }

    /// Selects the rewards of all data sources if verl's keys select any: a function in Python, and DAPO's penalty.
    fn route(&mut self) {
        let is_python = self.name_function();
        let overlong = std::mem::take(&mut self.overlong);
        if let Some(enable) = overlong.enabled() {
            self.penalize(&overlong, enable, if is_python { "python" } else { "math" });
            return;
        }
        self.done.ignored.extend(overlong.keys().map(|(verl, _)| verl));
        if is_python {
            self.done.overrides.push("reward.routes={\"*\" = \"python\"}".to_owned());
        }
    }

    /// Returns `true` if the file of a function is set. verl's default is the function `compute_score`.
    fn name_function(&mut self) -> bool {
        let overrides = &mut self.done.overrides;
        let sets = |overrides: &[String], option: &str| {
            overrides.iter().any(|text| text.starts_with(&format!("{PYTHON}.{option}=")))
        };
        let has_file = sets(overrides, "file");
        if has_file && !sets(overrides, "function") {
            overrides.push(format!("{PYTHON}.function=compute_score"));
        }
        has_file
    }

    /// Adds DAPO's penalty to the scores of the reward `base`.
    fn penalize(&mut self, overlong: &Overlong, enable: &Override, base: &str) {
        let reward = self.settings.get("reward").and_then(Value::as_table);
        let has_routes = reward.is_some_and(|reward| reward.contains_key("routes"));
        let longest = self.setting("data.max_response_length").unwrap_or_default();
        let missing = [base, PENALTY].into_iter().find(|name| !self.rewards.contains(name));
        match (missing, has_routes, overlong.overrides(base, &longest)) {
            (Some(name), ..) => {
                self.refuse(enable, &format!("this program has no reward `{name}`"))
            }
            (_, true, _) => self.refuse(
                enable,
                "reward.routes is set: add the reward `soft_overlong` to it, see docs/rewards.md",
            ),
            (.., None) => {
                self.refuse(enable, "the number of tokens is missing: set `len` beside it")
            }
            (.., Some(overrides)) => {
                self.done.overrides.extend(overrides);
                self.done.renamed.extend(overlong.keys());
            }
        }
    }

    fn holds(&self, condition: Condition) -> bool {
        let found = self.setting(condition.key);
        let is_set = found.is_some_and(|found| condition.values.contains(&found.as_str()));
        // The other setting may have no effect itself.
        match find(condition.key, true) {
            Some(Use::KeyIf(_, outer)) => is_set && self.holds(outer),
            _ => is_set,
        }
    }

    /// Returns a setting of the recipe, or its default, as TOML.
    fn setting(&self, key: &str) -> Option<String> {
        let mut parts = key.split('.');
        let section = parts.next().and_then(|section| self.settings.get(section));
        let written =
            section.and_then(|value| parts.try_fold(value, |value, part| value.get(part)));
        let written = written.map(Value::to_string);
        written.or_else(|| Recipe::default_settings().remove(key))
    }
}

/// Returns `true` for one of these values, and for `null`.
fn is_one_of(one: &Override, values: &[&str]) -> bool {
    let found = one.value.to_string();
    one.is_null() || values.iter().any(|value| is_same(value, &found))
}

/// Compares two values in TOML. Numbers may be written differently.
fn is_same(one: &str, other: &str) -> bool {
    match (one.parse::<f64>(), other.parse::<f64>()) {
        (Ok(one), Ok(other)) => one == other,
        _ => one == other,
    }
}

impl Translation {
    /// Returns the lines that describe how verl's keys were translated.
    pub(crate) fn notes(&self) -> Vec<String> {
        let codes = |keys: &[String]| {
            let keys: BTreeSet<_> = keys.iter().map(|key| format!("`{key}`")).collect();
            keys.into_iter().collect::<Vec<_>>().join(", ")
        };
        let renamed: Vec<_> =
            self.renamed.iter().map(|(verl, ours)| format!("`{verl}` sets `{ours}`")).collect();
        let lines = [
            ("verl's keys: ", renamed.join(", ")),
            (
                "without effect here, because they concern devices, memory, loggers or names, or are what happens anyway: ",
                codes(&self.ignored),
            ),
            ("without effect with the other settings: ", self.unused.join(", ")),
        ];
        let lines = lines.into_iter().filter(|(_, keys)| !keys.is_empty());
        let lines = lines.map(|(start, keys)| format!("note: {start}{keys}"));
        lines.chain(self.remarks.iter().map(|remark| format!("note: {remark}"))).collect()
    }
}
