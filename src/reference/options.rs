//! The options of schedules, placements, engines, rewards and algorithms, as far as their catalogs list them.

use rollpacker_rewards::{Guard, Registry};
use rollpacker_stages::catalog::{About, ListedEntry, OptionDocs};
use rollpacker_stages::documented::{Documented, Field};
use rollpacker_stages::shape::{Shape, shape_of};
use serde_json::Value;

use super::Key;
use super::prose::Prose;
use crate::code_list::code_list;
use crate::recipe::choices::choices_of;
use crate::recipe::keys::dotted_name;
use crate::recipe::schedule::{ScheduleSection, Schedules};
use crate::recipe::{Placement, PolicyLoss, Recipe};
use crate::rewards::CommonOptions;

/// The entries of a catalog: the key of the table with their options, the noun for an entry, and the entries.
pub(crate) type ListedEntries<'a> = (&'static str, &'static str, Vec<ListedEntry<'a>>);

/// The catalogs whose entries have options.
pub(crate) struct Entries<'a> {
    pub(crate) schedules: &'a Schedules,
    pub(crate) rewards: &'a Registry,
    /// The other catalogs, such as the catalogs of engines and advantage estimators.
    pub(crate) listed: Vec<ListedEntries<'a>>,
}

impl Entries<'_> {
    /// Returns `true` for a section that selects an entry by its name, which determines further keys of the section.
    pub(super) fn is_section(path: &str) -> bool {
        Self::own_keys(path).is_some()
    }

    /// Returns the keys of the section `path` that do not depend on the entry that it selects by name, and the default name. The value of
    /// the first key is the name. Returns `None` if the section selects no entry in this way.
    pub(super) fn own_keys(path: &str) -> Option<(&'static [Field], String)> {
        Some(match path {
            "schedule" => (&ScheduleSection::FIELDS[..1], ScheduleSection::default().name),
            "placement" => (&Placement::FIELDS[..2], Placement::default().kind),
            "actor.policy_loss" => (&PolicyLoss::FIELDS[..1], PolicyLoss::default().loss_mode),
            _ => return None,
        })
    }

    /// Returns the summaries of the entries that the key `path`, or the name in the section `path`, may select. Empty for other keys.
    pub(super) fn summaries(&self, path: &str) -> String {
        match path {
            "schedule" => summaries(self.schedules.list()),
            "reward.routes" => summaries(self.rewards.list()),
            path if Self::is_section(path) => {
                self.catalogs(path).map(|(_, entries)| summaries(entries.iter().copied())).collect()
            }
            // `docs/algorithms.md` describes the others.
            _ => String::new(),
        }
    }

    /// Returns the options that are written in the table `path`.
    pub(super) fn options_below(&self, path: &str) -> Vec<Key> {
        match path {
            "schedule" => {
                self.schedules.list().flat_map(|entry| self.of_schedule(&entry)).collect()
            }
            "reward.options" => {
                let own = self.rewards.list().flat_map(|entry| of_reward(&entry));
                own.chain(of_every_reward()).collect()
            }
            path => {
                let entries = self.catalogs(path).flat_map(|(noun, entries)| {
                    entries.iter().flat_map(|entry| of_entry(path, noun, entry))
                });
                entries.collect()
            }
        }
    }

    /// Returns the catalogs whose options are written in the table `path`, each with the noun for an entry.
    fn catalogs(&self, path: &str) -> impl Iterator<Item = (&'static str, &[ListedEntry<'_>])> {
        let catalogs = self.listed.iter().filter(move |(section, _, _)| *section == path);
        catalogs.map(|(_, noun, entries)| (*noun, entries.as_slice()))
    }

    /// Returns the options of a schedule that are keys of `[schedule]`.
    fn of_schedule(&self, entry: &ListedEntry<'_>) -> Vec<Key> {
        let own = self.schedules.options(entry.name).unwrap_or_default();
        let mut keys = of_entry("schedule", "schedule", entry);
        keys.retain(|key| own.iter().any(|own| key.name == dotted_name("schedule", own)));
        keys
    }
}

/// Returns the summaries of entries as sentences, each after a space.
fn summaries<'a>(entries: impl Iterator<Item = ListedEntry<'a>>) -> String {
    let described = entries.filter(|entry| !entry.about.summary.is_empty());
    let summary = |ListedEntry { name, about, .. }: ListedEntry<'_>| match about.source {
        "" => format!(" `{name}`: {}.", about.summary),
        source => format!(" `{name}`: {}, from {source}.", about.summary),
    };
    described.map(summary).collect()
}

fn of_reward(entry: &ListedEntry<'_>) -> Vec<Key> {
    of_entry(&dotted_name("reward.options", entry.name), "reward", entry)
}

/// Returns the options that every reward has in addition to its own options. Only rewards for single responses have a guard.
fn of_every_reward() -> impl Iterator<Item = Key> {
    let of = |docs: &OptionDocs, of: &'static str| {
        let (about, name) = (About::default(), "NAME");
        let keys = of_reward(&ListedEntry { name, about, options: &[], docs }).into_iter();
        keys.map(|key| Key { belongs_to: Some(of.to_owned()), ..key })
    };
    let guard = of(&OptionDocs::of::<Guard>(), "every reward for single responses");
    guard.chain(of(&OptionDocs::of::<CommonOptions>(), "every reward"))
}

/// Returns the options of an entry, which are written in the table `section`.
fn of_entry(section: &str, noun: &str, entry: &ListedEntry<'_>) -> Vec<Key> {
    let of = format!("{noun} `{}`", entry.name);
    let ListedEntry { docs, options, .. } = entry;
    if docs.fields.is_empty() {
        return options
            .iter()
            .map(|name| option(section, &of, name, Shape::Unknown, None))
            .collect();
    }
    let shapes = docs.shapes();
    let documented = docs.fields.iter().map(|field| {
        let name = field.key();
        // An option of a table has its path as its name.
        let last = name.rsplit('.').next().unwrap_or(name);
        // The options of a table have defaults of their own.
        let is_shown = |value: &&Value| !value.is_null() && !value.is_object();
        let default = docs.defaults.get(name).filter(is_shown);
        let key = option(section, &of, name, shape_of(last, &shapes), Some(*field));
        Key { default: default.map(Value::to_string).or(key.default.clone()), ..key }
    });
    documented.collect()
}

fn option(section: &str, of: &str, key: &str, shape: Shape, field: Option<Field>) -> Key {
    let prose = Prose::parse(&field.map(|field| field.text()).unwrap_or_default());
    let range = match shape {
        Shape::Choice(names) => Some(code_list(names)),
        _ => choices_of(&dotted_name(section, key)).map(code_list),
    };
    let (meaning, range) = prose.meaning_with(range);
    let kind = if shape == Shape::Unknown { String::new() } else { shape.type_name().to_owned() };
    let name = dotted_name(section, key);
    Key {
        is_resumable: Recipe::is_resumable(&name),
        name,
        belongs_to: Some(of.to_owned()),
        kind,
        unit: field.map_or("", |field| field.unit),
        default: prose.default.clone(),
        range,
        meaning,
        verl: prose.verl.into_iter().collect(),
        trl: prose.trl.into_iter().collect(),
        ..Key::default()
    }
}
