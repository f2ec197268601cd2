//! The section `[schedule]`: the name of a schedule and its options. Recipes and simulated jobs share it.

use std::fmt;
use std::sync::{Arc, LazyLock};

use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::schedule::{
    Dynamic, FrontierGroup, HistorySorted, Partial, Schedule, ScheduleError, Sorted, Synchronous,
    TailBatching,
};
use rollpacker_stages::catalog::NoOptions;
use rollpacker_stages::documented;
use rollpacker_stages::documented::{Documented, Field};
use rollpacker_stages::shape::{Shape, field_shapes};
use rollpacker_stages::wrong_value::nearest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::error::{RecipeError, one_of, out_of_bounds, reject, unknown_keys};
use super::keys;
use super::limits::{self, check_integers};
use super::value::{option_errors, read_value};

documented! {
    /// The section `[schedule]`: a name, and the keys of that schedule's options except those that other sections set.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct ScheduleSection {
        /// The name of the schedule. Default: `tail_batching`.
        #[serde(default = "default_name")]
        pub name: String,
        /// The options of the schedule.
        #[serde(flatten)]
        pub options: Table,
        /// The schedules that `name` may select.
        #[serde(skip)]
        pub schedules: Schedules,
    }
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

/// The schedule of a recipe that names none.
pub(super) const DEFAULT: &str = "tail_batching";

/// Keys of schedule options that [`ScheduleSize`] sets.
const SET_BY_SIZE: [&str; 3] = ["prompts", "responses", "total_steps"];

/// The schedules that recipes and jobs can name. Clones share their entries.
///
/// ```
/// use rollpacker::prelude::*;
/// use rollpacker::recipe::schedule::Schedules;
///
/// let schedules = Schedules::default()
///     .with("wait_for_all", |options: sync::Config| Synchronous::new(options));
/// assert!(schedules.names().any(|name| name == "wait_for_all"));
/// ```
#[derive(Clone)]
pub struct Schedules(Arc<Vec<ScheduleEntry>>);

#[derive(Clone)]
struct ScheduleEntry {
    name: String,
    fields: &'static [&'static str],
    #[cfg_attr(
        not(feature = "cli"),
        allow(dead_code, reason = "only the command line lists the keys")
    )]
    documented: &'static [Field],
    #[cfg_attr(
        not(feature = "cli"),
        allow(dead_code, reason = "only the command line lists the keys")
    )]
    shapes: fn() -> Vec<(&'static str, Shape)>,
    option_errors: fn(&str, Table) -> Vec<RecipeError>,
    build: Build,
    scoring: Scoring,
    delivery: GroupDelivery,
}

type Build = Arc<dyn Fn(Table) -> Result<Box<dyn Schedule>, BuildError> + Send + Sync>;

/// An error of a schedule's constructor or of the deserialization of its options.
enum BuildError {
    Options(RecipeError),
    Schedule(ScheduleError),
}

const STREAMED: GroupDelivery = GroupDelivery::Streamed { max_groups: None };

impl ScheduleEntry {
    fn new<O: DeserializeOwned, S: Schedule + 'static>(
        name: &str,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        let build = move |table| {
            let options =
                read_value("schedule", Value::Table(table)).map_err(BuildError::Options)?;
            let schedule = make(options).map_err(BuildError::Schedule)?;
            Ok(Box::new(schedule) as Box<dyn Schedule>)
        };
        let fields = keys::fields::<O>();
        let (name, build) = (name.to_owned(), Arc::new(build));
        let (shapes, documented) = (field_shapes::<O> as _, [].as_slice());
        Self {
            name,
            fields,
            documented,
            shapes,
            option_errors: option_errors::<O>,
            build,
            scoring: Scoring::Streamed,
            delivery: STREAMED,
        }
    }

    /// Returns the entry of a built-in schedule, whose options are documented.
    fn builtin<O: DeserializeOwned + Documented, S: Schedule + 'static>(
        name: &str,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        Self { documented: O::FIELDS, ..Self::new(name, make) }
    }

    /// Makes the stages run one after the other by default.
    fn in_sequence(self) -> Self {
        Self { scoring: Scoring::AfterRollout, delivery: GroupDelivery::WholeStep, ..self }
    }

    fn has(&self, key: &str) -> bool {
        self.fields.contains(&key)
    }

    /// Returns the option keys that no other section sets.
    fn own_fields(&self) -> impl Iterator<Item = &'static str> + use<> {
        self.fields.iter().copied().filter(|key| !SET_BY_SIZE.contains(key))
    }
}

static BUILTIN: LazyLock<Schedules> = LazyLock::new(|| {
    Schedules(Arc::new(vec![
        ScheduleEntry::builtin("sync", Synchronous::new).in_sequence(),
        ScheduleEntry::builtin("fused", Synchronous::new),
        ScheduleEntry::builtin("history_sorted", HistorySorted::new),
        ScheduleEntry::builtin("tail_batching", TailBatching::new),
        ScheduleEntry::builtin("dynamic", Dynamic::new),
        ScheduleEntry::builtin("sorted", Sorted::new),
        ScheduleEntry::builtin("partial", Partial::new),
        ScheduleEntry::builtin("frontier_group", FrontierGroup::new),
        ScheduleEntry::builtin("longest_first", Synchronous::longest_first),
    ]))
});

impl Default for Schedules {
    /// Returns the built-in schedules.
    fn default() -> Self {
        BUILTIN.clone()
    }
}

impl fmt::Debug for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl PartialEq for Schedules {
    /// Compares the names.
    fn eq(&self, other: &Self) -> bool {
        self.names().eq(other.names())
    }
}

impl Schedules {
    /// Adds a schedule that `make` constructs from its options. Replaces a schedule of the same name.
    ///
    /// Options with the names `prompts`, `responses` and `total_steps` are set from `data.train_batch_size`, `rollout.n` and
    /// `trainer.total_training_steps`, and `slots` by default from the number of responses of a round. Responses are scored as they end
    /// and groups are trained on as they are complete, unless `[pipeline]` sets otherwise.
    #[must_use]
    pub fn with<O: DeserializeOwned, S: Schedule + 'static>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        let entries = Arc::make_mut(&mut self.0);
        entries.retain(|entry| entry.name != name);
        entries.push(ScheduleEntry::new(name, make));
        self
    }

    /// Returns the names of all schedules.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.iter().map(|entry| entry.name.as_str())
    }

    /// Returns the keys that `[schedule]` may have for the schedule `name`, or `None` if there is no such schedule.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<Vec<&'static str>> {
        self.find(name).map(|entry| entry.own_fields().collect())
    }

    /// Returns the keys that `[schedule]` may have for the schedule `name`, with their types and their documentation if it is known.
    #[cfg(feature = "cli")]
    pub(crate) fn described(&self, name: &str) -> Vec<(&'static str, Shape, Option<Field>)> {
        let Some(entry) = self.find(name) else { return Vec::new() };
        let own = |(key, _): &(&'static str, Shape)| entry.own_fields().any(|own| own == *key);
        let field = |key| entry.documented.iter().find(|field| field.key() == key).copied();
        let shapes = (entry.shapes)().into_iter().filter(own);
        shapes.map(|(key, shape)| (key, shape, field(key))).collect()
    }

    fn find(&self, name: &str) -> Option<&ScheduleEntry> {
        self.0.iter().find(|entry| entry.name == name)
    }

    /// Returns the names of the schedules that have an option `key`.
    fn with_option(&self, key: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |entry| entry.has(key)).map(|entry| entry.name.as_str())
    }
}

/// Rejects a schedule that decides by scores if responses are scored only after the round. Such a round would never end.
pub(crate) fn check_scoring(schedule: &dyn Schedule, scoring: Scoring) -> Result<(), RecipeError> {
    if schedule.wants_scores() && scoring == Scoring::AfterRollout {
        let expected = "`streamed` with a schedule that decides by scores";
        return Err(out_of_bounds("pipeline.reward", expected, "`after_rollout`"));
    }
    Ok(())
}

/// Removes the keys of the schedule `previous` from a section that now names another one, so that overriding the name suffices to change
/// the schedule.
///
/// Only the keys of built-in schedules are known here. A key that none of them has is a key of `previous` if that is not built in, and
/// otherwise a mistake, which is kept to be reported.
pub(super) fn drop_keys_of(previous: &str, section: &mut Table) {
    let name = section.get("name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name == previous {
        return;
    }
    let (named, is_mistake_kept) = (BUILTIN.find(&name), BUILTIN.find(previous).is_some());
    section.retain(|key, _| {
        let is_known = BUILTIN.with_option(key).next().is_some();
        key == "name" || named.is_some_and(|named| named.has(key)) || (is_mistake_kept && !is_known)
    });
}

impl Default for ScheduleSection {
    fn default() -> Self {
        Self::named(DEFAULT)
    }
}

impl ScheduleSection {
    /// Returns a section without options that names a built-in schedule.
    #[must_use]
    pub fn named(name: &str) -> Self {
        let (name, options) = (name.to_owned(), Table::new());
        Self { name, options, schedules: Schedules::default() }
    }

    /// Returns a section that names the type of `schedule` and selects clones of it.
    #[must_use]
    pub fn of<S: Schedule + Clone + Send + Sync + 'static>(schedule: S) -> Self {
        let name = std::any::type_name::<S>();
        let schedules = Schedules::default().with(name, move |_: NoOptions| Ok(schedule.clone()));
        Self { schedules, ..Self::named(name) }
    }

    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// If there is no schedule of that name, it does not have a key, or a value has the wrong type or is out of its bounds.
    pub fn build(&self, size: ScheduleSize) -> Result<Box<dyn Schedule>, RecipeError> {
        reject(self.errors())?;
        let entry = self.entry()?;
        let mut table = self.options.clone();
        let mut set = |key: &str, value: u64| {
            if entry.has(key) {
                table.insert(key.to_owned(), integer(value));
            }
        };
        set("prompts", size.prompts as u64);
        set("responses", size.responses.into());
        if let Some(steps) = size.total_steps {
            set("total_steps", steps);
        }
        if !self.options.contains_key("slots") {
            set("slots", size.slots);
        }
        (entry.build)(table).map_err(|error| match error {
            BuildError::Options(error) => error,
            BuildError::Schedule(error) => self.refused(error),
        })
    }

    /// Returns the default time at which the schedule's responses are scored.
    ///
    /// # Errors
    /// If there is no schedule of that name.
    pub fn scoring(&self) -> Result<Scoring, RecipeError> {
        Ok(self.entry()?.scoring)
    }

    /// Returns the default time at which the schedule's groups are trained on.
    ///
    /// # Errors
    /// If there is no schedule of that name.
    pub fn delivery(&self) -> Result<GroupDelivery, RecipeError> {
        Ok(self.entry()?.delivery)
    }

    fn entry(&self) -> Result<&ScheduleEntry, RecipeError> {
        one_of("schedule.name", &self.name, &self.schedules.names().collect::<Vec<_>>())?;
        Ok(self.schedules.find(&self.name).expect("invariant: the name is one of them"))
    }

    /// Returns the errors that depend on this section only: those of the name, the keys, the sizes of integers and the types.
    pub(super) fn errors(&self) -> Vec<RecipeError> {
        let entry = match self.entry() {
            Ok(entry) => entry,
            Err(unknown) => return vec![unknown],
        };
        let mut known = self.options.clone();
        known.retain(|key, _| entry.own_fields().any(|own| own == key));
        let integer = |(key, value): (&String, &Value)| {
            check_integers(&format!("schedule.{key}"), value, limits::SCHEDULE_COUNT).err()
        };
        let integers: Vec<_> = known.iter().filter_map(integer).collect();
        let mut types = (entry.option_errors)("schedule", known);
        // An integer that is too large may not fit into its type either.
        types.retain(|error| integers.iter().all(|integer| integer.keys() != error.keys()));
        self.check_keys(entry).err().into_iter().chain(integers).chain(types).collect()
    }

    /// Converts an error of a schedule into a recipe error that names the key as written.
    fn refused(&self, error: ScheduleError) -> RecipeError {
        match error {
            ScheduleError::Zero { key } => out_of_bounds(self.path(&key), "at least 1", 0),
            ScheduleError::Bound { key, expected, found } => {
                out_of_bounds(self.path(&key), expected, found)
            }
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

    fn check_keys(&self, entry: &ScheduleEntry) -> Result<(), RecipeError> {
        let keys: Vec<&'static str> = entry.own_fields().collect();
        let unknown = self.options.keys().filter(|key| !keys.contains(&key.as_str()));
        let unknown = unknown.map(|key| {
            let near = nearest(key, keys.iter().copied()).map(|near| format!("schedule.{near}"));
            let owner = || self.schedules.with_option(key).next();
            let owner = || owner().map(|owner| format!("schedule.name = {owner}"));
            (format!("schedule.{key}"), near.or_else(owner))
        });
        unknown_keys(unknown.collect()).map_or(Ok(()), Err)
    }
}

fn default_name() -> String {
    DEFAULT.to_owned()
}

fn integer(value: u64) -> Value {
    Value::Integer(i64::try_from(value).unwrap_or(i64::MAX))
}
