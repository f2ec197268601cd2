//! The lists of all keys of recipes and of simulated jobs, for `rollpacker keys`, `docs/recipes.md` and `docs/simulator-keys.md`. They are
//! read from the types, checks and catalogs.

mod json;
#[cfg(test)]
mod markdown;
mod options;
mod prose;
mod search;
mod terminal;
#[cfg(test)]
mod tests;

use rollpacker_stages::shape::{Shape, shape_of};
use toml::{Table, Value};

use crate::code_list::code_list;
use crate::recipe::choices::choices_of;
use crate::recipe::error::Number;
use crate::recipe::keys::{Section, Sections, dotted_name};
pub(crate) use json::json;
#[cfg(test)]
use markdown::markdown;
pub(crate) use options::{Entries, ListedEntries};
use prose::Prose;
pub(crate) use search::matching;
pub(crate) use terminal::text;

/// Pairs of a recipe key and the names that are valid values of the key.
pub(crate) type Names<'a> = Vec<(&'static str, Vec<&'a str>)>;

/// A key, or an option of an entry that a recipe selects by name.
#[derive(Clone, Debug, Default)]
pub(crate) struct Key {
    /// The dotted name of the key, such as `rollout.n`.
    pub(crate) name: String,
    /// The entry that has the option, such as "schedule `sorted`"; `None` for a key of every recipe.
    pub(crate) belongs_to: Option<String>,
    /// The type of the value, such as `integer`; empty if it is unknown.
    pub(crate) kind: String,
    /// The unit of the value; empty if it has none.
    pub(crate) unit: &'static str,
    /// The default as TOML, or in words; `None` if the key has no default.
    pub(crate) default: Option<String>,
    /// The range or the choices, in words; `None` if none is known.
    pub(crate) range: Option<String>,
    /// The meaning, in sentences.
    pub(crate) meaning: String,
    /// The full names of verl's keys that mean the same.
    pub(crate) verl: Vec<String>,
    /// The names of TRL's settings that mean the same.
    pub(crate) trl: Vec<String>,
    /// Other accepted names of the key, with the frameworks that use them.
    pub(crate) aliases: Vec<(String, &'static str)>,
    /// `true` if a run may be resumed with another value of the key.
    pub(crate) is_resumable: bool,
}

/// The keys of a section, and the options of entries that it selects.
#[derive(Clone, Debug)]
pub(crate) struct SectionKeys {
    pub(crate) name: String,
    /// The meaning of the section, in sentences.
    pub(crate) about: String,
    pub(crate) keys: Vec<Key>,
}

/// Returns all keys of a recipe or of a job by section, in the order of their definition.
pub(crate) fn all<T: Sections>(names: &Names<'_>, entries: &Entries<'_>) -> Vec<SectionKeys> {
    let mut sections = Vec::new();
    collect::<T>("", "", names, entries, &mut sections);
    sections
}

fn collect<T: Sections>(
    path: &str,
    about: &str,
    names: &Names<'_>,
    entries: &Entries<'_>,
    into: &mut Vec<SectionKeys>,
) {
    let Some(section) = T::section(path) else {
        return into.extend(selected_by_name::<T>(path, about, names, entries));
    };
    let (shapes, defaults) = ((section.shapes)(), (section.defaults)());
    let mut own = SectionKeys { name: path.to_owned(), about: about.to_owned(), keys: Vec::new() };
    let mut inner = Vec::new();
    for key in section.keys {
        let (path, text) = (dotted_name(path, key), key_documentation(&section, key));
        if T::section(&path).is_some() || Entries::is_section(&path) {
            collect::<T>(&path, &prose::about(&text), names, entries, &mut inner);
            continue;
        }
        let shape = shape_of(key, &shapes);
        let unit = section.fields.iter().find(|field| field.key() == *key);
        let unit = unit.map_or("", |field| field.unit);
        let default = default_of(&defaults, key);
        let mut own_key = described::<T>(path.clone(), &text, shape, unit, default, names);
        own_key.meaning += &entries.summaries(&path);
        own.keys.push(own_key);
        own.keys.extend(entries.options_below(&path));
    }
    into.extend((!own.keys.is_empty()).then_some(own));
    into.extend(inner);
}

/// Returns a section that selects an entry by its name, which determines further keys of the section; `None` for other sections.
fn selected_by_name<T: Sections>(
    path: &str,
    about: &str,
    names: &Names<'_>,
    entries: &Entries<'_>,
) -> Option<SectionKeys> {
    let (fields, default) = Entries::own_keys(path)?;
    let (mut shape, mut default) = (Shape::Named("string"), Some(Value::String(default)));
    let mut keys = Vec::new();
    for field in fields {
        let name = dotted_name(path, field.key());
        keys.push(described::<T>(name, &field.text(), shape, "", default.take(), names));
        // The keys after the name are tables.
        shape = Shape::Named("table");
    }
    keys[0].meaning += &entries.summaries(path);
    keys.extend(entries.options_below(path));
    Some(SectionKeys { name: path.to_owned(), about: about.to_owned(), keys })
}

/// Returns a key with the information from its documentation, its type and the tables of `T`.
fn described<T: Sections>(
    name: String,
    text: &str,
    shape: Shape,
    unit: &'static str,
    default: Option<Value>,
    names: &Names<'_>,
) -> Key {
    let prose = Prose::parse(text);
    let is_empty = |value: &Value| ["[]", "{}", "\"\""].contains(&value.to_string().as_str());
    let written = default.filter(|value| !is_empty(value)).map(|value| format_default(&value));
    let range = choices(&name, shape.clone(), names).or_else(|| T::range(&name));
    let (meaning, range) = prose.meaning_with(range);
    let aliases: Vec<_> = T::aliases()
        .iter()
        .filter(|alias| dotted_name(alias.section, alias.key) == name)
        .map(|alias| (dotted_name(alias.section, alias.alias), alias.peers))
        .collect();
    let trl = aliases.iter().filter(|(_, peers)| peers.contains("TRL"));
    let mut trl: Vec<String> =
        trl.filter_map(|(alias, _)| alias.rsplit('.').next().map(str::to_owned)).collect();
    trl.extend(prose.trl.filter(|named| !trl.contains(named)));
    Key {
        is_resumable: T::is_resumable(&name),
        belongs_to: None,
        kind: shape.type_name().to_owned(),
        unit,
        default: written.or(prose.default),
        range,
        meaning,
        verl: prose.verl.map(|key| full_name(&key)).into_iter().collect(),
        trl,
        aliases,
        name,
    }
}

/// Returns the names that are valid values of a key, as code; `None` if the values of the key are not names of a known list.
fn choices(key: &str, shape: Shape, names: &Names<'_>) -> Option<String> {
    let listed = names.iter().find(|(of, _)| match key {
        "algorithm.kl_penalty" => *of == "actor.kl_loss_type",
        // Its values are tables of names.
        "reward.routes" => false,
        key => *of == key,
    });
    match (listed, choices_of(key), shape) {
        (Some((_, names)), _, _) => Some(code_list(names)),
        (_, Some(names), _) | (_, _, Shape::Choice(names)) => Some(code_list(names)),
        _ => None,
    }
}

/// Formats a default. Small and large numbers have an exponent.
fn format_default(default: &Value) -> String {
    match default {
        Value::Float(number) => Number(*number).to_string(),
        default => default.to_string(),
    }
}

/// Returns the full name of a verl key. The documentation of keys leaves out the section `actor_rollout_ref`.
fn full_name(key: &str) -> String {
    let is_short = ["actor.", "rollout."].iter().any(|section| key.starts_with(section));
    if is_short { format!("actor_rollout_ref.{key}") } else { key.to_owned() }
}

fn key_documentation(section: &Section, key: &str) -> String {
    let field = section.fields.iter().find(|field| field.key() == key);
    field.map(|field| field.text()).unwrap_or_default()
}

fn default_of(defaults: &Table, key: &str) -> Option<Value> {
    defaults.get(key).cloned()
}
