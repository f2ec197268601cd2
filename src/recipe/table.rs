//! Recipes as TOML tables: reading files, applying overrides and listing settings.

use std::collections::BTreeMap;
use std::path::Path;

use rollpacker_stages::secret::{
    REDACTED, is_secret_name, is_secret_parameter, without_command_secrets, without_credentials,
};
use toml::{Table, Value};

use super::error::{RecipeError, combine_errors, long_integer, out_of_bounds, reject};
use super::raw::{RawRecipe, Serve};
use super::value::{NULL, read_rest, value_of};
use super::{Recipe, aliases, keys, limits, schedule};

impl Recipe {
    /// Returns the settings by their dotted names, formatted as TOML. Defaults are filled in, credentials are redacted, and optional
    /// settings without a value are omitted.
    #[must_use]
    pub fn settings(&self) -> BTreeMap<String, String> {
        self.raw.settings()
    }

    /// Returns the settings of a recipe that sets nothing, as [`settings`](Self::settings) does.
    #[must_use]
    pub fn default_settings() -> BTreeMap<String, String> {
        RawRecipe::default().settings()
    }

    /// Converts a value that another version recorded among its settings to the form in which this version records it. The versions may
    /// redact different credentials. Returns the value unchanged if this version cannot read it.
    #[cfg(feature = "torch")]
    #[must_use]
    pub(crate) fn recorded_setting(key: &str, recorded: &str) -> String {
        let record_again = || {
            let mut table = Table::new();
            overlay(&mut table, &format!("{key}={recorded}")).ok()?;
            from_table::<RawRecipe>(table).ok()?.settings().remove(key)
        };
        record_again().unwrap_or_else(|| recorded.to_owned())
    }

    /// Returns the recipe as TOML, with defaults filled in and credentials removed.
    ///
    /// # Panics
    /// Never: every value of a recipe can be written as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.raw.redacted()).expect("invariant: recipes are read from TOML")
    }

    /// Returns `true` if the recipe has credentials, which its text omits.
    #[cfg(any(test, all(feature = "torch", feature = "cli")))]
    pub(crate) fn has_credentials(&self) -> bool {
        self.raw != self.raw.redacted()
    }
}

impl RawRecipe {
    fn settings(&self) -> BTreeMap<String, String> {
        let table = Table::try_from(self.redacted());
        let table = table.expect("invariant: recipes are read from TOML");
        let mut settings = BTreeMap::new();
        flatten("", table, &mut settings);
        settings
    }

    /// Returns the recipe as it is printed and recorded, without credentials.
    ///
    /// Options of rewards, engines, trainers and placements are free-form and may contain credentials. Credentials in URLs are removed, as
    /// are strings whose key looks like the name of a secret, secrets in the arguments of an option `command`, and secrets in the command
    /// and the environment of `rollout.serve`.
    fn redacted(&self) -> Self {
        let mut recorded = self.clone();
        recorded.reward.options.values_mut().for_each(remove_credentials);
        remove_credentials(&mut recorded.rollout.engine_options);
        for url in &mut recorded.rollout.servers {
            *url = without_credentials(url).into_owned();
        }
        if let Some(serve) = &mut recorded.rollout.serve {
            remove_serve_credentials(serve);
        }
        remove_credentials(&mut recorded.actor.strategy_options);
        remove_credentials(&mut recorded.placement.options);
        recorded
    }
}

fn remove_serve_credentials(serve: &mut Serve) {
    serve.command = without_command_secrets(&serve.command);
    for (name, value) in &mut serve.env {
        if is_secret_parameter(name) {
            REDACTED.clone_into(value);
        } else {
            *value = without_command_secrets(std::slice::from_ref(value)).concat();
        }
    }
}

fn remove_credentials(table: &mut Table) {
    for (key, value) in table {
        if let ("command", Value::Array(arguments)) = (key.as_str(), &mut *value) {
            redact_command(arguments);
        }
        redact_value(value, is_secret_name(key));
    }
}

fn redact_value(value: &mut Value, is_secret: bool) {
    match value {
        Value::String(text) if is_secret => REDACTED.clone_into(text),
        Value::String(text) => *text = without_credentials(text).into_owned(),
        Value::Array(values) => values.iter_mut().for_each(|value| redact_value(value, is_secret)),
        Value::Table(table) => remove_credentials(table),
        _ => {}
    }
}

/// Replaces the secrets in the arguments of a command. A list that contains values other than strings is no command and is left unchanged.
fn redact_command(arguments: &mut [Value]) {
    let texts: Option<Vec<String>> =
        arguments.iter().map(|argument| argument.as_str().map(str::to_owned)).collect();
    let shown = texts.map(|texts| without_command_secrets(&texts)).unwrap_or_default();
    arguments.iter_mut().zip(shown).for_each(|(argument, shown)| *argument = Value::String(shown));
}

fn flatten(prefix: &str, table: Table, settings: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        match value {
            Value::Table(table) => flatten(&format!("{prefix}{key}."), table, settings),
            value => drop(settings.insert(format!("{prefix}{key}"), value.to_string())),
        }
    }
}

/// Reads a TOML file.
pub(crate) fn read_table(path: &Path) -> Result<Table, RecipeError> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| RecipeError::Read { path: path.to_owned(), error })?;
    text.parse().map_err(|error| RecipeError::Toml {
        path: path.to_owned(),
        reason: toml_reason(&error, &text),
    })
}

/// Returns the message of an error in a TOML text, with the line that has the error. A line that is too long to print, as in a file that is
/// not TOML, is replaced by its number.
fn toml_reason(error: &toml::de::Error, text: &str) -> String {
    const MAX_LINE_BYTES: usize = 1000;
    let message = error.to_string();
    if message.lines().all(|line| line.len() <= MAX_LINE_BYTES) {
        return message.trim_end().to_owned();
    }
    let start = error.span().map_or(0, |span| span.start);
    let line = 1 + text.bytes().take(start).filter(|&byte| byte == b'\n').count();
    format!("line {line}: {}", error.message())
}

/// Deserializes a table.
///
/// # Errors
/// If a key does not exist or is set under two names, or if a value has a wrong type or is too large or too small for float32. The error
/// lists all such keys and values.
pub(crate) fn from_table<T: keys::Sections>(table: Table) -> Result<T, RecipeError> {
    let (read, errors) = read_valid(table, Vec::new())?;
    reject(errors)?;
    Ok(read)
}

/// Deserializes the valid part of a table. Returns it with `errors` and the errors found in the table. Unknown keys, numbers that are too
/// large or too small for float32, and values of a wrong type are removed. A key that is set under two names keeps the value of its alias.
///
/// # Errors
/// If one of the errors concerns no single key. The returned error then contains all errors.
pub(super) fn read_valid<T: keys::Sections>(
    mut table: Table,
    mut errors: Vec<RecipeError>,
) -> Result<(T, Vec<RecipeError>), RecipeError> {
    errors.extend(aliases::rename(&mut table, T::aliases()));
    errors.extend(keys::take_unknown::<T>(&mut table));
    errors.extend(limits::remove_extremes("", &mut table, T::range));
    let read = read_rest(table, |key, found, reason| {
        let reason = keys::shape::<T>(&key).reason(reason, found, found.is_str());
        let reason = long_integer(&reason, T::range(&key)).unwrap_or(reason);
        errors.push(RecipeError::Type { key, reason });
    });
    match read {
        Ok(read) => Ok((read, errors)),
        Err((key, reason)) => {
            errors.push(RecipeError::Type { key, reason });
            Err(combine_errors(errors))
        }
    }
}

/// Splits an override into its key and the text of its value, at the first equals sign outside of quotes. Returns `None` if there is none.
pub(crate) fn split_override(text: &str) -> Option<(&str, &str)> {
    let mut quote = None;
    let at = text.find(|next: char| {
        match quote {
            Some(open) if next == open => quote = None,
            None if matches!(next, '"' | '\'') => quote = Some(next),
            _ => {}
        }
        quote.is_none() && next == '='
    })?;
    Some((text[..at].trim(), &text[at + 1..]))
}

/// Splits a key into its parts, at the dots outside of quotes. Returns `None` if a part is empty, or has quotes that are not around the
/// whole part. Quotes around a plain name are refused, too, because other code compares keys as texts.
fn parts_of_key(key: &str) -> Option<Vec<&str>> {
    let (mut parts, mut rest) = (Vec::new(), key);
    loop {
        let (part, after) = match rest.strip_prefix(['"', '\'']) {
            Some(quoted) => {
                let (part, after) = quoted.split_once(rest.chars().next()?)?;
                let is_plain = |part: &str| !part.contains(['.', '=', '"', '\'', '*']);
                (Some(part).filter(|part| !is_plain(part))?, after)
            }
            None => rest.split_at(rest.find('.').unwrap_or(rest.len())),
        };
        parts.push(Some(part).filter(|part| !part.is_empty())?);
        match after.strip_prefix('.') {
            Some(after) => rest = after,
            None => return after.is_empty().then_some(parts),
        }
    }
}

/// The key that names the schedule. Its options are the other keys of its section.
const SCHEDULE_NAME: &str = "schedule.name";

/// The keys that name an entry of a catalog, each with the keys of its section that set the entry's options. Without such keys, all other
/// keys of the section are options.
const ENTRIES: [(&str, &[&str]); 5] = [
    ("actor.policy_loss.loss_mode", &[]),
    ("actor.strategy", &["strategy_options"]),
    ("pipeline.placement", &["placement_options"]),
    ("placement.kind", &[]),
    ("rollout.engine", &["engine_options", "serve", "server_timeout", "servers"]),
];

/// Removes a key if its section exists. If the key names a catalog entry, also removes the options of the entry, unless the default is the
/// same entry.
fn unset(table: &mut Table, path: &[&str], key: &str) {
    let section = path.iter().try_fold(table, |table, part| table.get_mut(*part)?.as_table_mut());
    let Some(section) = section else { return };
    let Some(previous) = section.remove(key) else { return };
    let dotted = [path, &[key]].concat().join(".");
    if dotted == SCHEDULE_NAME {
        return schedule::drop_keys_of(previous.as_str().unwrap_or_default(), section);
    }
    let Some((_, options)) = ENTRIES.iter().find(|(name, _)| *name == dotted) else { return };
    if Recipe::default_settings().get(&dotted) != Some(&previous.to_string()) {
        section.retain(|key, _| !options.is_empty() && !options.contains(&key));
    }
}

/// Applies one override to a recipe or a job, as [`overlay`] does. The key may be an alias. If `table` sets the key under another name, the
/// override replaces that value.
pub(crate) fn override_key<T: keys::Sections>(
    table: &mut Table,
    text: &str,
) -> Result<(), RecipeError> {
    let key = split_override(text).unwrap_or_default().0;
    aliases::remove_other_names(table, T::aliases(), key);
    overlay(table, text)
}

/// Applies one override, `section.key=value`, to a table.
///
/// A part of the key in quotes may contain dots and equals signs: `reward.routes."a.b"=math`. The value is parsed as TOML and falls back to
/// a plain string. `null` unsets the key. If the key names a catalog entry, `null` also removes the options of the entry. Sections that do
/// not exist are created. Overriding `schedule.name` drops the keys of the previous schedule that the new schedule does not have.
///
/// # Errors
/// If the text is not of this form, or if a part of the key before the last part is not a table.
pub(crate) fn overlay(table: &mut Table, text: &str) -> Result<(), RecipeError> {
    let wrong = || RecipeError::Override { text: text.to_owned() };
    let (key, value) = split_override(text).ok_or_else(wrong)?;
    let mut path = parts_of_key(key).ok_or_else(wrong)?;
    let last = path.pop().ok_or_else(wrong)?;
    let value = value_of(value);
    if value.as_str() == Some(NULL) {
        unset(table, &path, last);
        return Ok(());
    }
    let mut section = table;
    for (depth, part) in path.iter().enumerate() {
        let entry = section.entry(*part).or_insert_with(|| Value::Table(Table::new()));
        section = match entry {
            Value::Table(section) => section,
            other => {
                let expected = format!("a table, in which `{text}` sets a key");
                return Err(out_of_bounds(path[..=depth].join("."), expected, &*other));
            }
        };
    }
    let previous = section.insert(last.to_owned(), value);
    if key == SCHEDULE_NAME {
        let previous = previous.as_ref().and_then(Value::as_str);
        schedule::drop_keys_of(previous.unwrap_or(schedule::DEFAULT), section);
    }
    Ok(())
}
