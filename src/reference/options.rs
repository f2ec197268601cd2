//! The options of schedules, engines, rewards and algorithms, as far as their catalogs list them.

use rollpacker_rewards::Registry;
use rollpacker_stages::catalog::{About, Listed};
use rollpacker_stages::documented::{Documented, Field};
use rollpacker_stages::shape::{Shape, shape_of};
use serde_json::Value;

use super::prose::Prose;
use super::{Key, joined, words};
use crate::recipe::choices::choices_of;
use crate::recipe::schedule::{ScheduleSection, Schedules};
use crate::recipe::{Placement, PolicyLoss, Recipe};

/// The entries of a catalog: the key of the table with their options, the noun for an entry, and the entries.
pub(crate) type ListedEntries<'a> = (&'static str, &'static str, Vec<Listed<'a>>);

/// The catalogs whose entries have options.
pub(crate) struct Entries<'a> {
    pub(crate) schedules: &'a Schedules,
    pub(crate) rewards: &'a Registry,
    /// Catalogs with defaults.
    pub(crate) listed: Vec<ListedEntries<'a>>,
}

impl Entries<'_> {
    /// Returns `true` for a section whose keys depend on a name in it.
    pub(super) fn is_section(path: &str) -> bool {
        Self::own_keys(path).is_some()
    }

    /// Returns the keys of such a section that depend on no name, the key that has the name first, and the default of the name.
    pub(super) fn own_keys(path: &str) -> Option<(&'static [Field], String)> {
        Some(match path {
            "schedule" => (&ScheduleSection::FIELDS[..1], ScheduleSection::default().name),
            "placement" => (&Placement::FIELDS[..2], Placement::default().kind),
            "actor.policy_loss" => (&PolicyLoss::FIELDS[..1], PolicyLoss::default().loss_mode),
            _ => return None,
        })
    }

    /// Returns the summaries of the entries that the name in the section `path` may select.
    pub(super) fn summaries(&self, path: &str) -> String {
        let entries = self.listed.iter().filter(|(section, _, _)| *section == path);
        let entries = entries.flat_map(|(_, _, entries)| entries);
        let summary = |entry: &Listed<'_>| {
            let About { summary, source, .. } = entry.about;
            format!("`{}`: {summary} ({source})", entry.name)
        };
        entries.map(summary).map(|text| format!(" {text}.")).collect()
    }

    /// Returns the options that are written in the table `path`.
    pub(super) fn options_below(&self, path: &str) -> Vec<Key> {
        match path {
            "schedule" => self.of_schedules(),
            "reward.options" => self.of_rewards(),
            path => {
                let catalogs = self.listed.iter().filter(|(section, _, _)| *section == path);
                let entries = catalogs.flat_map(|(section, noun, entries)| {
                    entries.iter().flat_map(|entry| of_entry(section, noun, entry))
                });
                entries.collect()
            }
        }
    }

    fn of_schedules(&self) -> Vec<Key> {
        let of = |name: &str| {
            let options = self.schedules.described(name).into_iter();
            let of = format!("schedule `{name}`");
            options
                .map(move |(key, shape, field)| option("schedule", &of, key, shape, field))
                .collect::<Vec<_>>()
        };
        self.schedules.names().flat_map(of).collect()
    }

    fn of_rewards(&self) -> Vec<Key> {
        let of = |name: &str| {
            let of = format!("reward `{name}`");
            let section = format!("reward.options.{name}");
            let keys = self.rewards.options(name).unwrap_or_default().iter();
            keys.map(move |key| option(&section, &of, key, Shape::Unknown, None))
                .collect::<Vec<_>>()
        };
        self.rewards.names().flat_map(of).collect()
    }
}

fn of_entry(section: &str, noun: &str, entry: &Listed<'_>) -> Vec<Key> {
    let of = format!("{noun} `{}`", entry.name);
    let options = entry.defaults.iter().map(|(name, default)| {
        let field = entry.fields.iter().find(|field| field.key() == name);
        let key = option(section, &of, name, shape_of(name, &entry.shapes), field.copied());
        let default = Some(default).filter(|value| !value.is_null()).map(Value::to_string);
        Key { default: default.or(key.default.clone()), ..key }
    });
    options.collect()
}

fn option(section: &str, of: &str, key: &str, shape: Shape, field: Option<Field>) -> Key {
    let prose = Prose::parse(&field.map(|field| field.text()).unwrap_or_default());
    let range = match shape {
        Shape::Choice(names) => Some(words(names)),
        _ => choices_of(&joined(section, key)).map(words),
    };
    let (meaning, range) = prose.meaning_with(range);
    let kind = if shape == Shape::Unknown { String::new() } else { shape.words().to_owned() };
    let name = joined(section, key);
    Key {
        is_resumable: Recipe::is_resumable(&name),
        name,
        of: Some(of.to_owned()),
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
