//! Overrides with verl's keys: one table determines whether a key is mapped to ours, ignored or refused.

pub(crate) mod entries;
mod overlong;
mod override_text;
#[cfg(test)]
mod page;
mod settings;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;

use toml::{Table, Value};

use self::entries::{Condition, DYNAMIC, KeyMapping, find};
use self::overlong::{Overlong, PENALTY};
use self::override_text::{interpolate, last_of_each_key};
use self::settings::{Settings, setting_or_default};
use super::RawRecipe;
use super::error::RecipeError;
use super::keys::{is_key_or_section, is_known};
pub(crate) use override_text::Override;

/// Overrides translated to our keys, with notes on the keys of verl among them.
#[derive(Debug, Default)]
pub(crate) struct Translation {
    /// The overrides, each `section.key=value`.
    pub(crate) overrides: Vec<String>,
    /// The keys of verl that were translated to a key of another name, each with that key.
    pub(crate) renamed: Vec<(String, String)>,
    /// The keys of verl that are left out because they have no effect here, or because their values match this program's behavior.
    pub(crate) ignored: Vec<String>,
    /// The keys that have no effect with the other settings, each with the setting that it needs.
    pub(crate) unused: Vec<String>,
    /// The keys of `DEFAULTS` that are not set, each with its default here and its default in verl.
    pub(crate) defaults: Vec<String>,
    /// Remarks on single keys.
    pub(crate) remarks: Vec<String>,
    /// The errors of overrides that cannot be used.
    pub(crate) errors: Vec<RecipeError>,
}

/// Translates overrides for a recipe whose file is `file`. `rewards` are the names of the rewards that the recipe may select.
///
/// Keys that are not verl's stay as they are. If at least one override has a key that only verl has, keys that both programs have are read
/// with verl's meaning, and keys that verl would not use with the other settings are left out. Otherwise the keys of both programs stay as
/// they are, too. `${key}` in a value is replaced by the value of `key` in the overrides, by its value in the file, or by its default, in
/// this order.
///
/// The [errors](Translation::errors) of the translation are the errors of overrides that cannot be read, are refused, or refer to a key
/// without a value.
pub(crate) fn translate(file: &Table, overrides: &[String], rewards: &[&str]) -> Translation {
    let (mut written, mut errors) = (Vec::new(), Vec::new());
    for text in overrides {
        match Override::parse(text) {
            Ok(read) => written.extend(read),
            Err(error) => errors.push(error),
        }
    }
    let is_of_verl = |setting: &Override| {
        !is_known::<RawRecipe>(&setting.key) && find(&setting.key, false).is_some()
    };
    let is_of_verl = written.iter().any(is_of_verl);
    if is_of_verl || written.iter().any(Override::has_reference) {
        written = last_of_each_key(written);
        interpolate(&mut written, |key| setting_or_default(file, key));
    }
    if !is_of_verl {
        // Another text in `${...}`, such as the name of an environment variable, is part of the value.
        let refers = |setting: &&Override| setting.references().iter().any(|key| is_key(key));
        errors.extend(written.iter().filter(refers).map(unresolved_reference));
        let overrides = written.iter().map(Override::text).collect();
        return Translation { overrides, errors, ..Translation::default() };
    }
    let mut translator = Translator {
        settings: Settings::new(file, &written),
        rewards,
        done: Translation { errors, ..Translation::default() },
        overlong: Overlong::default(),
        has_routes: written
            .iter()
            .any(|setting| setting.key.starts_with("reward.routes") && !setting.is_null()),
    };
    written.iter().for_each(|setting| translator.add(setting));
    translator.select_rewards();
    translator.fail_if_exhausted();
    translator.note_defaults();
    translator.done
}

/// Returns `true` for a key of ours or of verl.
fn is_key(key: &str) -> bool {
    is_known::<RawRecipe>(key) || find(key, false).is_some()
}

/// Returns the error of an override that refers to a key without a value.
fn unresolved_reference(setting: &Override) -> RecipeError {
    let reason = "a key in `${...}` is not set here".to_owned();
    RecipeError::Verl { text: setting.written.clone(), reason }
}

fn is_negative(setting: &Override) -> bool {
    setting.value.as_integer().is_some_and(|value| value < 0)
}

/// Keys that a run with verl's keys notes if they are not set, because their defaults differ from verl's. Each has verl's default, as TOML.
/// The list is not complete: `docs/verl.md` describes the other differences.
const DEFAULTS: [(&str, &str); 5] = [
    ("algorithm.adv_estimator", "\"gae\""),
    ("rollout.n", "1"),
    ("data.train_batch_size", "1024"),
    (MINI_BATCH, "256"),
    ("trainer.total_epochs", "30"),
];
/// The setting that selects the advantage estimator, and thereby decides if there is a critic.
const ESTIMATOR: &str = "algorithm.adv_estimator";
/// The key of the number of prompts of an update. The default is `data.train_batch_size`.
const MINI_BATCH: &str = "actor.ppo_mini_batch_size";

/// The logger that writes TensorBoard's event files.
const EVENT_FILE: &str = "tensorboard";
/// The section with the options of the reward that calls verl's `custom_reward_function`.
const PYTHON: &str = "reward.options.python";

struct Translator<'a> {
    settings: Settings,
    /// The names of the rewards that the recipe may select.
    rewards: &'a [&'a str],
    /// The translation of the overrides that were read so far.
    done: Translation,
    /// The settings of DAPO's penalty that were read so far.
    overlong: Overlong,
    /// `true` if an override sets routes of rewards.
    has_routes: bool,
}

impl Translator<'_> {
    fn add(&mut self, setting: &Override) {
        let exact = find(&setting.key, true);
        let is_ours = exact.is_none() && is_known::<RawRecipe>(&setting.key);
        let meaning = exact.or_else(|| find(&setting.key, false).filter(|_| !is_ours));
        match meaning {
            // Unsetting an unknown key changes nothing, so that reading the recipe would not report it.
            None if setting.is_null() && !is_key_or_section::<RawRecipe>(&setting.key) => {
                self.refuse(setting, "there is no such key");
            }
            // Another unknown key is reported when the recipe is read, together with those of the file.
            None => self.done.overrides.push(setting.text()),
            Some(meaning) => self.apply(setting, meaning),
        }
    }

    fn apply(&mut self, setting: &Override, meaning: KeyMapping) {
        match meaning {
            KeyMapping::Key(ours) => self.set(setting, ours),
            KeyMapping::If(condition, inner) => match self.settings.unmet_condition(condition) {
                None => self.apply(setting, *inner),
                // `null` may unset a key that the file sets.
                Some(_) if setting.is_null() => self.apply(setting, *inner),
                Some(unmet_condition) => self.note_unused(setting, unmet_condition),
            },
            KeyMapping::Switch(condition, inner, other) => {
                self.apply(
                    setting,
                    if self.settings.unmet_condition(condition).is_none() {
                        *inner
                    } else {
                        *other
                    },
                );
            }
            KeyMapping::NotNegative(_) if is_negative(setting) => {
                self.done.ignored.push(setting.key.clone())
            }
            KeyMapping::NotNegative(ours) => self.set(setting, ours),
            KeyMapping::NotNull(_, reason) if setting.is_null() => self.add_remark(setting, reason),
            KeyMapping::NotNull(ours, _) => self.set(setting, ours),
            KeyMapping::Only(values, reason) => self.require_value(setting, values, reason),
            KeyMapping::SameAs(ours, reason) => self.require_same(setting, ours, reason),
            KeyMapping::Noted(values, _) if is_one_of(setting, values) => {
                self.done.ignored.push(setting.key.clone());
            }
            KeyMapping::Noted(_, reason) => self.add_remark(setting, reason),
            KeyMapping::Ignored => self.done.ignored.push(setting.key.clone()),
            KeyMapping::Refused(_) if setting.is_null() => {
                self.done.ignored.push(setting.key.clone())
            }
            KeyMapping::Refused(reason) => self.refuse(setting, reason),
            KeyMapping::Engine => self.set_engine(setting),
            KeyMapping::Loggers => self.set_loggers(setting),
            KeyMapping::RewardFile => self.set_reward(setting, "file"),
            KeyMapping::RewardFunction => self.set_reward(setting, "function"),
            KeyMapping::RewardArguments => {
                let (_, name) = setting.key.split_once(".reward_kwargs.").unwrap_or_default();
                self.set_reward(setting, &format!("kwargs.{name}"));
            }
            KeyMapping::Overlong(part) => self.overlong.add(part, setting),
            KeyMapping::Context => self.check_context_length(setting),
        }
    }

    fn set(&mut self, setting: &Override, ours: &str) {
        if setting.has_reference() {
            self.done.errors.push(unresolved_reference(setting));
            return;
        }
        self.done.overrides.push(setting.renamed(ours));
        if setting.key != ours {
            self.done.renamed.push((setting.key.clone(), ours.to_owned()));
        }
    }

    /// Records a key that only has an effect under a condition that does not hold. A key of the critic is refused if
    /// `algorithm.adv_estimator` is not set, because verl's default estimator has a critic.
    fn note_unused(&mut self, setting: &Override, unmet_condition: Condition) {
        let wants_critic = setting.key.starts_with("critic.") && unmet_condition.key == ESTIMATOR;
        if wants_critic && !setting.is_null() && self.settings.explicit(ESTIMATOR).is_none() {
            self.refuse(setting, "verl's default estimator has a critic, and ours has none: set algorithm.adv_estimator");
            return;
        }
        let values = unmet_condition.values.join(" or ");
        let equals = if values.is_empty() { "" } else { " = " };
        self.done
            .unused
            .push(format!("{} (needs {}{equals}{values})", setting.key, unmet_condition.key));
    }

    fn add_remark(&mut self, setting: &Override, reason: &str) {
        self.done.remarks.push(format!("`{}` is left out: {reason}", setting.written));
    }

    /// Ignores a maximum context length that is null or at least the sum of `data.max_prompt_length` and `data.max_response_length`, and
    /// refuses a lower one.
    fn check_context_length(&mut self, setting: &Override) {
        let limit = |key| self.settings.get(key).and_then(|value| value.parse::<i64>().ok());
        let limits = [limit("data.max_prompt_length"), limit("data.max_response_length")];
        let longest: i64 = limits.into_iter().flatten().sum();
        if setting.is_null() || setting.value.as_integer().is_some_and(|max| max >= longest) {
            self.done.ignored.push(setting.key.clone());
        } else {
            let reason = format!(
                "it must be at least data.max_prompt_length + data.max_response_length = {longest}, which are the limits here"
            );
            self.refuse(setting, &reason);
        }
    }

    /// Sets `schedule.on_exhausted=fail` for verl's dynamic sampling, unless the recipe sets the key, because verl ends a run whose batches
    /// are exhausted.
    fn fail_if_exhausted(&mut self) {
        const VERL: &str = "algorithm.filter_groups.enable";
        const OURS: &str = "schedule.on_exhausted";
        let is_filtered = self.settings.explicit(VERL).is_some_and(|value| value == "true");
        if is_filtered
            && self.settings.unmet_condition(DYNAMIC).is_none()
            && self.settings.explicit(OURS).is_none()
        {
            self.done.overrides.push(format!("{OURS}=fail"));
            self.done.renamed.push((VERL.to_owned(), OURS.to_owned()));
        }
    }

    /// Notes the keys of `DEFAULTS` that are not set, each with its default here and its default in verl, unless both are equal.
    fn note_defaults(&mut self) {
        for (key, verl) in DEFAULTS {
            let ours = self.value_or_default(key);
            if self.settings.explicit(key).is_none() && ours != verl {
                self.done.defaults.push(format!("`{key}` is {ours} (verl: {verl})"));
            }
        }
    }

    /// Returns the value of a key, or its default, as TOML; `nothing` for a key without a default.
    fn value_or_default(&self, key: &str) -> String {
        let of_step = || (key == MINI_BATCH).then(|| self.settings.get("data.train_batch_size"));
        let value = self.settings.get(key).or_else(|| of_step().flatten());
        value.unwrap_or_else(|| "nothing".to_owned())
    }

    fn require_value(&mut self, setting: &Override, values: &[&str], reason: &str) {
        if is_one_of(setting, values) {
            self.done.ignored.push(setting.key.clone());
        } else {
            self.refuse(setting, reason);
        }
    }

    /// Accepts a key that is `null` or has the same value as the key `ours`, and refuses it otherwise. `reason` is the cause of a refusal.
    fn require_same(&mut self, setting: &Override, ours: &str, reason: &str) {
        let value = self.value_or_default(ours);
        let reason = format!("it must be that of {ours}, {value}: {reason}");
        self.require_value(setting, &[value.as_str()], &reason);
    }

    fn refuse(&mut self, setting: &Override, reason: &str) {
        let (text, reason) = (setting.written.clone(), reason.to_owned());
        self.done.errors.push(RecipeError::Verl { text, reason });
    }

    /// Sets `rollout.engine` if the recipe has inference servers, because vLLM and SGLang only run as servers here. Otherwise leaves the
    /// key out with a note, because the recipe's engine samples from the same distribution.
    fn set_engine(&mut self, setting: &Override) {
        let has = |key| self.settings.value(key).is_some();
        if has("rollout.servers") || has("rollout.serve") {
            self.set(setting, "rollout.engine");
        } else {
            let engine = self.settings.get("rollout.engine").unwrap_or_default();
            self.done.remarks.push(format!(
                "`{}` is left out: rollout.engine = {engine} generates, because neither rollout.servers nor rollout.serve is set (docs/servers.md)",
                setting.written
            ));
        }
    }

    fn set_loggers(&mut self, setting: &Override) {
        let alone = std::slice::from_ref(&setting.value);
        let all = setting.value.as_array().map_or(alone, Vec::as_slice);
        let is_event_file = |logger: &Value| logger.as_str() == Some(EVENT_FILE);
        let kept = all.iter().filter(|logger| is_event_file(logger)).count();
        if kept > 0 {
            self.done.overrides.push(format!("{}=[\"{EVENT_FILE}\"]", setting.key));
        }
        if kept < all.len() {
            if kept > 0 {
                let remark =
                    format!("of `{}`, only `{EVENT_FILE}` has an effect here", setting.written);
                self.done.remarks.push(remark);
            } else {
                self.done.ignored.push(setting.key.clone());
            }
        }
    }

    fn set_reward(&mut self, setting: &Override, option: &str) {
        if setting.is_null() {
            self.done.ignored.push(setting.key.clone());
        } else if !self.rewards.contains(&"python") {
            self.refuse(setting, "this program has no reward `python`");
        } else if self.has_routes && !self.routes_name_python() {
            let reason = "reward.routes is set and names no reward `python`: add it, or leave reward.routes out";
            self.refuse(setting, reason);
        } else {
            self.set(setting, &format!("{PYTHON}.{option}"));
        }
    }

    fn routes_name_python(&self) -> bool {
        let routes = self.settings.value("reward.routes");
        let mut routes = routes.and_then(Value::as_table).into_iter().flat_map(Table::values);
        routes.any(|route| route.as_str() == Some("python") || route.get("python").is_some())
    }

    /// Selects the rewards of all data sources if verl's keys select any: a function in Python, and DAPO's penalty.
    fn select_rewards(&mut self) {
        let is_python = self.set_default_function();
        let overlong = std::mem::take(&mut self.overlong);
        if let Some(enable) = overlong.enabled() {
            self.add_overlong_penalty(&overlong, enable, if is_python { "python" } else { "math" });
            return;
        }
        self.done.ignored.extend(overlong.keys().map(|(verl, _)| verl));
        if is_python && !self.has_routes {
            self.done.overrides.push("reward.routes={\"*\" = \"python\"}".to_owned());
        }
    }

    /// Returns `true` if the file of a Python reward is set. Adds verl's default function, `compute_score`, if no function is set.
    fn set_default_function(&mut self) -> bool {
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

    /// Adds DAPO's penalty to the scores of the reward `base`. Refuses `enable`, the override that enables the penalty, if the program
    /// lacks a reward, `reward.routes` is set, or the length of the penalty is missing.
    fn add_overlong_penalty(&mut self, overlong: &Overlong, enable: &Override, base: &str) {
        let has_routes = self.settings.value("reward.routes").is_some();
        let longest = self.settings.get("data.max_response_length").unwrap_or_default();
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
}

/// Returns `true` if the value of `setting` is one of `values` or `null`.
fn is_one_of(setting: &Override, values: &[&str]) -> bool {
    let found = setting.value.to_string();
    setting.is_null() || values.iter().any(|value| is_same_value(value, &found))
}

/// Returns `true` if two TOML values are equal. Numbers are equal if they have the same value.
fn is_same_value(one: &str, other: &str) -> bool {
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
