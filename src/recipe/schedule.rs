//! The section `[schedule]`: the name of a schedule and its options. Recipes and simulated jobs share it.

use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::schedule::{
    Builtin, Dynamic, FrontierGroup, HistorySorted, Partial, Schedule, ScheduleError, Sorted,
    Synchronous, TailBatching, dynamic, frontier_group, history_sorted, partial, sorted, sync,
    tail_batching,
};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::error::{RecipeError, nearest, one_of, out_of_bounds};
use super::keys;
use super::limits::{self, check_integers};
use super::value::read_value;

/// The section `[schedule]`: a name, and the keys of that schedule's `Config` except those that other sections set.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ScheduleSection {
    /// The name of the schedule, one of [`names`]. Default: `tail_batching`.
    #[serde(default = "default_name")]
    pub name: String,
    /// The options of the schedule.
    #[serde(flatten)]
    pub options: Table,
}

/// The settings of other sections that every schedule uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleSize {
    /// Number of prompts of a round (`data.train_batch_size`).
    pub prompts: usize,
    /// Number of responses to each prompt (`rollout.n`).
    pub responses: u32,
    /// Maximum number of responses in flight under a schedule that holds others back. The schedule's own `slots` has precedence.
    pub slots: u64,
    /// Number of steps of the run, if it is limited.
    pub total_steps: Option<u64>,
}

/// Keys of schedule configurations that [`ScheduleSize`] sets.
const SAID_ELSEWHERE: [&str; 3] = ["prompts", "responses", "total_steps"];

/// A schedule that recipes can name.
struct ScheduleEntry {
    name: &'static str,
    fields: fn() -> &'static [&'static str],
    build: fn(Table) -> Result<Built, RecipeError>,
    scoring: Scoring,
    fetch: Fetch,
}

type Built = Result<Builtin, ScheduleError>;

const STREAMED: Fetch = Fetch::Streamed { max_groups: None };

static KNOWN: [ScheduleEntry; 8] = [
    ScheduleEntry {
        name: "sync",
        fields: keys::fields::<sync::Config>,
        build: |table| Ok(Synchronous::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::AfterRollout,
        fetch: Fetch::WholeStep,
    },
    ScheduleEntry {
        name: "fused",
        fields: keys::fields::<sync::Config>,
        build: |table| Ok(Synchronous::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "history_sorted",
        fields: keys::fields::<history_sorted::Config>,
        build: |table| Ok(HistorySorted::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "tail_batching",
        fields: keys::fields::<tail_batching::Config>,
        build: |table| Ok(TailBatching::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "dynamic",
        fields: keys::fields::<dynamic::Config>,
        build: |table| Ok(Dynamic::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "sorted",
        fields: keys::fields::<sorted::Config>,
        build: |table| Ok(Sorted::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "partial",
        fields: keys::fields::<partial::Config>,
        build: |table| Ok(Partial::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
    ScheduleEntry {
        name: "frontier_group",
        fields: keys::fields::<frontier_group::Config>,
        build: |table| Ok(FrontierGroup::new(config(table)?).map(Builtin::from)),
        scoring: Scoring::Streamed,
        fetch: STREAMED,
    },
];

/// Returns the names of all schedules.
pub fn names() -> impl Iterator<Item = &'static str> {
    KNOWN.iter().map(|known| known.name)
}

/// Returns the keys that `[schedule]` may have for the schedule `name`, or `None` if there is no such schedule.
#[must_use]
pub fn options(name: &str) -> Option<Vec<&'static str>> {
    let known = KNOWN.iter().find(|known| known.name == name)?;
    Some(own_fields(known).collect())
}

/// Returns the configuration keys of a schedule that no other section sets.
fn own_fields(known: &ScheduleEntry) -> impl Iterator<Item = &'static str> {
    (known.fields)().iter().copied().filter(|key| !SAID_ELSEWHERE.contains(key))
}

/// Rejects a schedule that decides by scores if responses are scored only after the round. Such a round would never end.
pub(crate) fn check_scoring(schedule: &Builtin, scoring: Scoring) -> Result<(), RecipeError> {
    if schedule.wants_scores() && scoring == Scoring::AfterRollout {
        let expected = "`streamed` with a schedule that decides by scores";
        return Err(out_of_bounds("pipeline.reward", expected, "`after_rollout`"));
    }
    Ok(())
}

/// Removes the keys of other schedules from a section, so that overriding the name suffices to change the schedule.
pub(super) fn drop_other_schedules_keys(section: &mut Table) {
    let name = section.get("name").and_then(Value::as_str).unwrap_or_default();
    let has = |known: &ScheduleEntry, key: &str| (known.fields)().contains(&key);
    let Some(named) = KNOWN.iter().find(|known| known.name == name) else { return };
    section.retain(|key, _| {
        key == "name" || has(named, key) || !KNOWN.iter().any(|known| has(known, key))
    });
}

impl Default for ScheduleSection {
    fn default() -> Self {
        Self { name: default_name(), options: Table::new() }
    }
}

impl ScheduleSection {
    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// If there is no schedule of that name, it does not have a key, or a value has the wrong type or is out of its bounds.
    pub fn build(&self, size: ScheduleSize) -> Result<Builtin, RecipeError> {
        let known = self.known()?;
        self.check_keys(known)?;
        check_integers("schedule", &Value::Table(self.options.clone()), limits::SCHEDULE_COUNT)?;
        let mut table = self.options.clone();
        table.insert("prompts".to_owned(), integer(size.prompts as u64));
        table.insert("responses".to_owned(), integer(size.responses.into()));
        if let Some(steps) = size.total_steps {
            table.insert("total_steps".to_owned(), integer(steps));
        }
        if (known.fields)().contains(&"slots") && !table.contains_key("slots") {
            table.insert("slots".to_owned(), integer(size.slots));
        }
        (known.build)(table)?.map_err(|error| self.refused(error))
    }

    /// Returns when the schedule's responses are scored by default.
    ///
    /// # Errors
    /// If there is no schedule of that name.
    pub fn scoring(&self) -> Result<Scoring, RecipeError> {
        Ok(self.known()?.scoring)
    }

    /// Returns when the schedule's groups are trained on by default.
    ///
    /// # Errors
    /// If there is no schedule of that name.
    pub fn fetch(&self) -> Result<Fetch, RecipeError> {
        Ok(self.known()?.fetch)
    }

    fn known(&self) -> Result<&'static ScheduleEntry, RecipeError> {
        one_of("schedule.name", &self.name, &names().collect::<Vec<_>>())?;
        Ok(KNOWN
            .iter()
            .find(|known| known.name == self.name)
            .expect("invariant: the name is one of them"))
    }

    /// Converts an error of a schedule into a recipe error that names the key as written.
    fn refused(&self, error: ScheduleError) -> RecipeError {
        match error {
            ScheduleError::Zero { key } => out_of_bounds(self.path(&key), "at least 1", 0),
            ScheduleError::Small { key, found, least, why } => {
                out_of_bounds(self.path(key), format!("at least {least}, {why}"), found)
            }
            ScheduleError::Factor { key, found, max } => {
                out_of_bounds(self.path(key), format!("a number from 1 to {max}"), found)
            }
            ScheduleError::Conflict { key, with, why } => RecipeError::Type {
                key: self.path(key),
                reason: format!("cannot be combined with {with}: {why}"),
            },
            ScheduleError::Weighted { eta_responses } => RecipeError::Type {
                key: self.path("selection"),
                reason: format!(
                    "cannot be combined with `eta_responses = {eta_responses}`: weights cannot correct for responses that are aborted because of surplus responses"
                ),
            },
            ScheduleError::Quotas { found, expected } => {
                let expected = format!("a sum of {expected}, the prompts of a round");
                out_of_bounds(self.path("quotas"), expected, found)
            }
        }
    }

    /// Returns the path under which the recipe contains a key of the schedule.
    fn path(&self, key: &str) -> String {
        let nests = |(_, value): &(&String, &Value)| {
            value.as_table().is_some_and(|inner| inner.contains_key(key))
        };
        match (key, self.options.iter().find(nests)) {
            ("prompts", _) => "data.train_batch_size".to_owned(),
            ("responses", _) => "rollout.n".to_owned(),
            (_, Some((section, _))) => format!("schedule.{section}.{key}"),
            (_, None) => format!("schedule.{key}"),
        }
    }

    fn check_keys(&self, known: &ScheduleEntry) -> Result<(), RecipeError> {
        let keys: Vec<&'static str> = own_fields(known).collect();
        let unknown = self.options.keys().find(|key| !keys.contains(&key.as_str()));
        unknown.map_or(Ok(()), |key| {
            let near = nearest(key, keys.iter().copied());
            let owner = KNOWN.iter().find(|other| (other.fields)().contains(&key.as_str()));
            Err(RecipeError::UnknownKey {
                key: format!("schedule.{key}"),
                nearest: near
                    .map(|near| format!("schedule.{near}"))
                    .or_else(|| owner.map(|owner| format!("schedule.name = {}", owner.name))),
            })
        })
    }
}

fn default_name() -> String {
    "tail_batching".to_owned()
}

fn config<C: DeserializeOwned>(table: Table) -> Result<C, RecipeError> {
    read_value("schedule", Value::Table(table))
}

fn integer(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}
