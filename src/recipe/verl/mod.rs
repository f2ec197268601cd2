//! Overrides with verl's keys: one table determines whether a key is mapped to ours, ignored or refused.

pub(crate) mod entries;
mod overlong;
mod override_text;
#[cfg(test)]
mod page;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use toml::{Table, Value};

use self::entries::{Condition, DYNAMIC, Use, find};
use self::overlong::{Overlong, PENALTY};
use self::override_text::{interpolate, last_of_each_key};
use super::error::RecipeError;
use super::keys::{is_key_or_section, is_known};
use super::table::override_key;
use super::value::value_of;
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
    /// The keys that are not set and whose defaults differ from verl's, each with both.
    pub(crate) defaults: Vec<String>,
    /// Remarks on single keys.
    pub(crate) remarks: Vec<String>,
    /// The errors of overrides that cannot be used.
    pub(crate) errors: Vec<RecipeError>,
}

/// Translates overrides for a recipe whose file is `file`. `rewards` are the names of the rewards that it may select.
///
/// Keys that are not verl's stay as they are. Keys with verl's and our name keep their checks, unless a key of verl is among the overrides:
/// then those that verl would not use are left out. `${key}` in a value is the value of that override, of the file, or the default.
///
/// The [errors](Translation::errors) of the translation are those of overrides that cannot be read or are refused.
pub(crate) fn translate(file: &Table, overrides: &[String], rewards: &[&str]) -> Translation {
    let (mut written, mut errors) = (Vec::new(), Vec::new());
    for text in overrides {
        match Override::parse(text) {
            Ok(read) => written.extend(read),
            Err(error) => errors.push(error),
        }
    }
    let is_of_verl =
        |one: &Override| !is_known::<RawRecipe>(&one.key) && find(&one.key, false).is_some();
    let is_of_verl = written.iter().any(is_of_verl);
    if is_of_verl || written.iter().any(Override::has_reference) {
        written = last_of_each_key(written);
        interpolate(&mut written, |key| setting_or_default(file, key));
    }
    if !is_of_verl {
        // Another text in `${...}`, such as the name of an environment variable, is part of the value.
        let refers = |one: &&Override| one.references().iter().any(|key| is_key(key));
        errors.extend(written.iter().filter(refers).map(unresolved));
        let overrides = written.iter().map(Override::text).collect();
        return Translation { overrides, errors, ..Translation::default() };
    }
    let mut translator = Translator {
        settings: settings(file, &written),
        defaults: Recipe::default_settings(),
        rewards,
        done: Translation { errors, ..Translation::default() },
        overlong: Overlong::default(),
        has_routes: written
            .iter()
            .any(|one| one.key.starts_with("reward.routes") && !one.is_null()),
    };
    written.iter().for_each(|one| translator.add(one));
    translator.route();
    translator.fail_if_exhausted();
    translator.note_defaults();
    translator.done
}

/// Returns the value of a key of ours or of verl in the file or, without one, its default.
fn setting_or_default(file: &Table, key: &str) -> Option<String> {
    let ours = match find(key, true) {
        Some(Use::Key(ours) | Use::If(_, &Use::Key(ours))) => ours,
        _ => key,
    };
    let mut parts = ours.split('.');
    let section = parts.next().and_then(|section| file.get(section));
    let written =
        section.and_then(|section| parts.try_fold(section, |value, part| value.get(part)));
    let value = written
        .cloned()
        .or_else(|| Recipe::default_settings().get(ours).map(|text| value_of(text)));
    value.map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
}

/// Returns `true` for a key of ours or of verl.
fn is_key(key: &str) -> bool {
    is_known::<RawRecipe>(key) || find(key, false).is_some()
}

/// Returns the error of an override that refers to a key without a value.
fn unresolved(one: &Override) -> RecipeError {
    let reason = "a key in `${...}` is not set here".to_owned();
    RecipeError::Verl { text: one.written.clone(), reason }
}

/// Returns the file with the overrides, in which keys that mean the same have our names. Conditions look up other settings in it.
fn settings(file: &Table, written: &[Override]) -> Table {
    let mut table = file.clone();
    for one in written {
        let text = match find(&one.key, true) {
            Some(Use::Key(ours) | Use::If(_, &Use::Key(ours)) | Use::NotNull(ours, _)) => {
                one.renamed(ours)
            }
            Some(Use::NotNegative(ours)) if !is_negative(one) => one.renamed(ours),
            _ => one.text(),
        };
        // One that does not fit into the table, such as a key of a section that is also `null`, is reported when the recipe is read.
        drop(override_key::<RawRecipe>(&mut table, &text));
    }
    table
}

fn is_negative(one: &Override) -> bool {
    one.value.as_integer().is_some_and(|value| value < 0)
}

/// Defaults of verl that change what a run computes and differ from ours, as TOML.
const DEFAULTS: [(&str, &str); 3] =
    [("algorithm.adv_estimator", "\"gae\""), ("rollout.n", "1"), ("data.train_batch_size", "1024")];
/// The setting that selects a critic.
const ESTIMATOR: &str = "algorithm.adv_estimator";
/// The number of prompts of an update; `data.train_batch_size` unless it is set.
const MINI_BATCH: &str = "actor.ppo_mini_batch_size";

/// The logger that writes TensorBoard's event files.
const EVENT_FILE: &str = "tensorboard";
/// The options of the reward that calls verl's `custom_reward_function`.
const PYTHON: &str = "reward.options.python";

struct Translator<'a> {
    settings: Table,
    /// The settings of a recipe that sets nothing.
    defaults: BTreeMap<String, String>,
    rewards: &'a [&'a str],
    done: Translation,
    overlong: Overlong,
    /// `true` if an override sets routes of rewards.
    has_routes: bool,
}

impl Translator<'_> {
    fn add(&mut self, one: &Override) {
        let exact = find(&one.key, true);
        let is_ours = exact.is_none() && is_known::<RawRecipe>(&one.key);
        let meaning = exact.or_else(|| find(&one.key, false).filter(|_| !is_ours));
        match meaning {
            // Unsetting an unknown key changes nothing, so that reading the recipe would not report it.
            None if one.is_null() && !is_key_or_section::<RawRecipe>(&one.key) => {
                self.refuse(one, "there is no such key");
            }
            // Another unknown key is reported when the recipe is read, together with those of the file.
            None => self.done.overrides.push(one.text()),
            Some(meaning) => self.apply(one, meaning),
        }
    }

    fn apply(&mut self, one: &Override, meaning: Use) {
        match meaning {
            Use::Key(ours) => self.set(one, ours),
            Use::If(condition, inner) => match self.failing(condition) {
                None => self.apply(one, *inner),
                // The file may set the key.
                Some(_) if one.is_null() => self.apply(one, *inner),
                Some(failing) => self.unused(one, failing),
            },
            Use::Switch(condition, inner, other) => {
                self.apply(one, if self.failing(condition).is_none() { *inner } else { *other });
            }
            Use::NotNegative(_) if is_negative(one) => self.done.ignored.push(one.key.clone()),
            Use::NotNegative(ours) => self.set(one, ours),
            Use::NotNull(_, reason) if one.is_null() => self.remark(one, reason),
            Use::NotNull(ours, _) => self.set(one, ours),
            Use::Only(values, reason) => self.only(one, values, reason),
            Use::SameAs(ours, reason) => self.same(one, ours, reason),
            Use::Noted(values, _) if is_one_of(one, values) => {
                self.done.ignored.push(one.key.clone());
            }
            Use::Noted(_, reason) => self.remark(one, reason),
            Use::Ignored => self.done.ignored.push(one.key.clone()),
            Use::Refused(_) if one.is_null() => self.done.ignored.push(one.key.clone()),
            Use::Refused(reason) => self.refuse(one, reason),
            Use::Engine => self.engine(one),
            Use::Loggers => self.loggers(one),
            Use::RewardFile => self.reward(one, "file"),
            Use::RewardFunction => self.reward(one, "function"),
            Use::RewardArguments => {
                let (_, name) = one.key.split_once(".reward_kwargs.").unwrap_or_default();
                self.reward(one, &format!("kwargs.{name}"));
            }
            Use::Overlong(part) => self.overlong.add(part, one),
            Use::Context => self.context(one),
        }
    }

    fn set(&mut self, one: &Override, ours: &str) {
        if one.has_reference() {
            self.done.errors.push(unresolved(one));
            return;
        }
        self.done.overrides.push(one.renamed(ours));
        if one.key != ours {
            self.done.renamed.push((one.key.clone(), ours.to_owned()));
        }
    }

    /// Records a key that only has an effect under a condition that does not hold. A key of the critic is refused if verl's default would
    /// use it.
    fn unused(&mut self, one: &Override, failing: Condition) {
        let wants_critic = one.key.starts_with("critic.") && failing.key == ESTIMATOR;
        if wants_critic && !one.is_null() && self.written(ESTIMATOR).is_none() {
            self.refuse(one, "verl's default estimator has a critic, and ours has none: set algorithm.adv_estimator");
            return;
        }
        let values = failing.values.join(" or ");
        let equals = if values.is_empty() { "" } else { " = " };
        self.done.unused.push(format!("{} (needs {}{equals}{values})", one.key, failing.key));
    }

    fn remark(&mut self, one: &Override, reason: &str) {
        self.done.remarks.push(format!("`{}` is left out: {reason}", one.written));
    }

    /// Accepts a limit that no prompt with its response can exceed.
    fn context(&mut self, one: &Override) {
        let limit = |key| self.setting(key).and_then(|value| value.parse::<i64>().ok());
        let limits = [limit("data.max_prompt_length"), limit("data.max_response_length")];
        let longest: i64 = limits.into_iter().flatten().sum();
        if one.is_null() || one.value.as_integer().is_some_and(|most| most >= longest) {
            self.done.ignored.push(one.key.clone());
        } else {
            let reason = format!(
                "it must be at least data.max_prompt_length + data.max_response_length = {longest}, which are the limits here"
            );
            self.refuse(one, &reason);
        }
    }

    /// Ends a run with verl's dynamic sampling if its batches are exhausted, as verl does, unless the recipe says otherwise.
    fn fail_if_exhausted(&mut self) {
        const VERL: &str = "algorithm.filter_groups.enable";
        const OURS: &str = "schedule.on_exhausted";
        let is_filtered = self.written(VERL).is_some_and(|value| value == "true");
        if is_filtered && self.failing(DYNAMIC).is_none() && self.written(OURS).is_none() {
            self.done.overrides.push(format!("{OURS}=fail"));
            self.done.renamed.push((VERL.to_owned(), OURS.to_owned()));
        }
    }

    /// Lists the defaults that differ from verl's.
    fn note_defaults(&mut self) {
        for (key, verl) in DEFAULTS {
            if self.written(key).is_none() {
                let ours = self.setting(key).unwrap_or_default();
                self.done.defaults.push(format!("`{key}` is {ours} (verl: {verl})"));
            }
        }
    }

    fn only(&mut self, one: &Override, values: &[&str], reason: &str) {
        if is_one_of(one, values) {
            self.done.ignored.push(one.key.clone());
        } else {
            self.refuse(one, reason);
        }
    }

    /// Accepts the value of the key `ours`.
    fn same(&mut self, one: &Override, ours: &str, reason: &str) {
        let of_step = || (ours == MINI_BATCH).then(|| self.setting("data.train_batch_size"));
        let value = self.setting(ours).or_else(|| of_step().flatten());
        let value = value.unwrap_or_else(|| "nothing".to_owned());
        let reason = format!("it must be that of {ours}, {value}: {reason}");
        self.only(one, &[value.as_str()], &reason);
    }

    fn refuse(&mut self, one: &Override, reason: &str) {
        let (text, reason) = (one.written.clone(), reason.to_owned());
        self.done.errors.push(RecipeError::Verl { text, reason });
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
        let kept = all.iter().filter(|logger| is_event_file(logger)).count();
        if kept > 0 {
            self.done.overrides.push(format!("{}=[\"{EVENT_FILE}\"]", one.key));
        }
        if kept < all.len() {
            if kept > 0 {
                let remark =
                    format!("of `{}`, only `{EVENT_FILE}` has an effect here", one.written);
                self.done.remarks.push(remark);
            } else {
                self.done.ignored.push(one.key.clone());
            }
        }
    }

    fn reward(&mut self, one: &Override, option: &str) {
        if one.is_null() {
            self.done.ignored.push(one.key.clone());
        } else if !self.rewards.contains(&"python") {
            self.refuse(one, "this program has no reward `python`");
        } else if self.has_routes && !self.routes_name_python() {
            let reason = "reward.routes is set and names no reward `python`: add it, or leave reward.routes out";
            self.refuse(one, reason);
        } else {
            self.set(one, &format!("{PYTHON}.{option}"));
        }
    }

    fn routes_name_python(&self) -> bool {
        let routes = self.settings.get("reward").and_then(|reward| reward.get("routes"));
        let mut routes = routes.and_then(Value::as_table).into_iter().flat_map(Table::values);
        routes.any(|route| route.as_str() == Some("python") || route.get("python").is_some())
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
        if is_python && !self.has_routes {
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

    /// Returns the condition that does not hold: this one, or that of the setting that it names, which may have no effect itself.
    fn failing(&self, condition: Condition) -> Option<Condition> {
        let outer = find(condition.key, true).and_then(|meaning| self.unmet(meaning));
        if outer.is_some() {
            return outer;
        }
        let holds = match condition.values {
            [] => self.written(condition.key).is_some(),
            values => {
                let found = self.setting(condition.key);
                found.is_some_and(|found| values.contains(&found.as_str()))
            }
        };
        (!holds).then_some(condition)
    }

    /// Returns the first condition of a meaning that does not hold, if there is one.
    fn unmet(&self, meaning: Use) -> Option<Condition> {
        match meaning {
            Use::If(condition, inner) => self.failing(condition).or_else(|| self.unmet(*inner)),
            Use::Switch(condition, inner, other) => {
                self.unmet(if self.failing(condition).is_none() { *inner } else { *other })
            }
            _ => None,
        }
    }

    /// Returns a setting of the recipe, or its default, as TOML.
    fn setting(&self, key: &str) -> Option<String> {
        self.written(key).or_else(|| self.defaults.get(key).cloned())
    }

    /// Returns a setting that the file or an override sets, as TOML.
    fn written(&self, key: &str) -> Option<String> {
        let mut parts = key.split('.');
        let section = parts.next().and_then(|section| self.settings.get(section));
        let value = section.and_then(|value| parts.try_fold(value, |value, part| value.get(part)));
        value.map(Value::to_string)
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
            ("not set, and not verl's defaults: ", self.defaults.join(", ")),
        ];
        let lines = lines.into_iter().filter(|(_, keys)| !keys.is_empty());
        let lines = lines.map(|(start, keys)| format!("note: {start}{keys}"));
        lines.chain(self.remarks.iter().map(|remark| format!("note: {remark}"))).collect()
    }
}
