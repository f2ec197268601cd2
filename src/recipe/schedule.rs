//! The section `[schedule]`: the name of a schedule and its options. Recipes and simulated jobs share it.

use std::fmt;
use std::sync::LazyLock;

use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::schedule::{
    Dynamic, FrontierGroup, HistorySorted, Partial, Schedule, ScheduleError, Sorted, Synchronous,
    TailBatching, dynamic, frontier_group, history_sorted, longest_first, partial, sorted, sync,
    tail_batching,
};
#[cfg(feature = "cli")]
use rollpacker_stages::catalog::ListedEntry;
use rollpacker_stages::catalog::{About, Catalog, CatalogError, NoOptions};
use rollpacker_stages::documented;
use rollpacker_stages::documented::Documented;
use rollpacker_stages::wrong_value::nearest;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use toml::{Table, Value};

use super::choice::{KeyedChoice, choice, make, type_errors};
use super::error::{RecipeError, one_of, out_of_bounds, reject, unknown_keys};
use super::limits::{self, check_finite, check_integers};

documented! {
    /// The section `[schedule]`: the name of a schedule, and its options except the options that other sections set.
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

/// The settings of other sections that schedules use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleSize {
    /// Number of prompts of a round (`data.train_batch_size`).
    pub prompts: usize,
    /// Number of responses to each prompt (`rollout.n`).
    pub responses: u32,
    /// Default of the option `slots`: the maximum number of responses in flight. Schedules without this option ignore it.
    pub slots: u64,
    /// Number of steps of the run; `None` if the number is not limited.
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
pub struct Schedules {
    /// The schedules by name. An entry makes a `Result`, so that the error of a constructor stays a [`ScheduleError`]: it may
    /// concern a key of another section.
    catalog: Catalog<Result<Box<dyn Schedule>, ScheduleError>>,
    /// The schedules whose stages run one after the other by default.
    in_sequence: Vec<&'static str>,
}

impl Default for Schedules {
    /// Returns the built-in schedules.
    fn default() -> Self {
        static BUILTIN: LazyLock<Schedules> = LazyLock::new(|| {
            let none = Schedules { catalog: Catalog::new("schedule"), in_sequence: vec!["sync"] };
            none.builtin("sync", sync::ABOUT, Synchronous::new)
                .builtin("fused", sync::FUSED, Synchronous::new)
                .builtin("history_sorted", history_sorted::ABOUT, HistorySorted::new)
                .builtin("tail_batching", tail_batching::ABOUT, TailBatching::new)
                .builtin("dynamic", dynamic::ABOUT, Dynamic::new)
                .builtin("sorted", sorted::ABOUT, Sorted::new)
                .builtin("partial", partial::ABOUT, Partial::new)
                .builtin("frontier_group", frontier_group::ABOUT, FrontierGroup::new)
                .builtin("longest_first", longest_first::ABOUT, Synchronous::longest_first)
        });
        BUILTIN.clone()
    }
}

impl fmt::Debug for Schedules {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.names()).finish()
    }
}

impl PartialEq for Schedules {
    /// Compares only the names of the schedules.
    fn eq(&self, other: &Self) -> bool {
        self.names().eq(other.names())
    }
}

impl Schedules {
    /// Adds a schedule that `make` constructs from its options. Replaces a schedule of the same name.
    ///
    /// Options with the names `prompts`, `responses` and `total_steps` are set from [`ScheduleSize`]: in a recipe, from
    /// `data.train_batch_size`, `rollout.n` and `trainer.total_training_steps`. The default of an option `slots` is the number of responses
    /// of a round in a recipe, and the maximum number of responses that the engine runs at once in a simulated job. By default, each
    /// response is scored when it ends, and each group is trained on when it is complete; `[pipeline]` can change both.
    #[must_use]
    pub fn with<O: DeserializeOwned, S: Schedule + 'static>(
        mut self,
        name: &str,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        self.in_sequence.retain(|other| *other != name);
        self.catalog = self.catalog.with(name, erase_schedule_type(make));
        self
    }

    /// Adds a built-in schedule, whose options are documented.
    fn builtin<O: DeserializeOwned + Serialize + Documented, S: Schedule + 'static>(
        mut self,
        name: &str,
        about: About,
        make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
    ) -> Self {
        self.catalog = self.catalog.described(name, about, erase_schedule_type(make));
        self
    }

    /// Returns the names of all schedules in alphabetical order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.catalog.names()
    }

    /// Returns the schedules. Their options include the keys that [`ScheduleSize`] sets.
    #[cfg(feature = "cli")]
    pub(crate) fn list(&self) -> impl Iterator<Item = ListedEntry<'_>> {
        self.catalog.list()
    }

    /// Returns the keys that `[schedule]` may have for the schedule `name`, or `None` if there is no such schedule.
    #[must_use]
    pub fn options(&self, name: &str) -> Option<Vec<&'static str>> {
        let options = self.catalog.options(name)?.iter().copied();
        Some(options.filter(|key| !SET_BY_SIZE.contains(key)).collect())
    }

    fn has(&self, name: &str, key: &str) -> bool {
        self.catalog.options(name).is_some_and(|options| options.contains(&key))
    }

    /// Returns the name of a schedule for which `[schedule]` may have the key `key`, or `None` if there is no such schedule.
    fn with_option(&self, key: &str) -> Option<&str> {
        let is_set_by_size = SET_BY_SIZE.contains(&key);
        self.names().find(|name| !is_set_by_size && self.has(name, key))
    }
}

/// Converts the constructor of a schedule into the constructor of a catalog entry.
fn erase_schedule_type<O, S: Schedule + 'static>(
    make: impl Fn(O) -> Result<S, ScheduleError> + Send + Sync + 'static,
) -> impl Fn(O) -> Result<Result<Box<dyn Schedule>, ScheduleError>, CatalogError> + Send + Sync + 'static
{
    move |options| Ok(make(options).map(|schedule| Box::new(schedule) as Box<dyn Schedule>))
}

/// Rejects a schedule that decides by scores if responses are scored only after the round. Such a round would never end.
pub(crate) fn check_scoring(schedule: &dyn Schedule, scoring: Scoring) -> Result<(), RecipeError> {
    if schedule.wants_scores() && scoring == Scoring::AfterRollout {
        let expected = "`streamed` with a schedule that decides by scores";
        return Err(out_of_bounds("pipeline.reward", expected, "`after_rollout`"));
    }
    Ok(())
}

/// Removes the keys of the schedule `previous` from a section that now names another schedule or the default. Overriding the name thus
/// suffices to change the schedule. Keys that the new schedule also has are kept.
///
/// Only the keys of built-in schedules are known here. Any other key belongs to `previous` if that schedule is not built in. Otherwise the
/// key is a mistake, and stays in the section so that it is reported.
pub(super) fn drop_keys_of(previous: &str, section: &mut Table) {
    let name = section.get("name").and_then(Value::as_str).unwrap_or(DEFAULT).to_owned();
    if name == previous {
        return;
    }
    let builtin = Schedules::default();
    let is_mistake_kept = builtin.options(previous).is_some();
    section.retain(|key, _| {
        let is_known = builtin.with_option(key).is_some();
        key == "name" || builtin.has(&name, key) || (is_mistake_kept && !is_known)
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

    /// Returns a section whose name is the type of `schedule` and that selects clones of `schedule`.
    #[must_use]
    pub fn of<S: Schedule + Clone + Send + Sync + 'static>(schedule: S) -> Self {
        let name = std::any::type_name::<S>();
        let schedules = Schedules::default().with(name, move |_: NoOptions| Ok(schedule.clone()));
        Self { schedules, ..Self::named(name) }
    }

    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// If there is no schedule of that name, the schedule does not have one of the keys, a required option is missing, a value has the
    /// wrong type or is out of its bounds, or two options conflict.
    pub fn build(&self, size: ScheduleSize) -> Result<Box<dyn Schedule>, RecipeError> {
        reject(self.errors())?;
        let made = make(&self.schedules.catalog, &self.keyed_choice(size))?;
        made.map_err(|error| self.recipe_error(error))
    }

    /// Returns the default time at which the schedule's responses are scored.
    #[must_use]
    pub fn scoring(&self) -> Scoring {
        if self.runs_in_sequence() { Scoring::AfterRollout } else { Scoring::Streamed }
    }

    /// Returns the default rule by which the schedule's groups are passed to the trainer.
    #[must_use]
    pub fn delivery(&self) -> GroupDelivery {
        if self.runs_in_sequence() { GroupDelivery::WholeStep } else { GroupDelivery::default() }
    }

    fn runs_in_sequence(&self) -> bool {
        self.schedules.in_sequence.contains(&self.name.as_str())
    }

    fn check_name(&self) -> Result<(), RecipeError> {
        one_of("schedule.name", &self.name, &self.schedules.names().collect::<Vec<_>>())
    }

    /// Returns the choice of the schedule with all options, including the options that `size` sets.
    fn keyed_choice(&self, size: ScheduleSize) -> KeyedChoice {
        let mut choice = choice(&self.name, &self.options);
        let mut set = |key: &str, value: u64| {
            if self.schedules.has(&self.name, key) {
                choice.options.insert(key.to_owned(), value.into());
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
        KeyedChoice { choice, section: "schedule", ..KeyedChoice::of("schedule.name", &self.name) }
    }

    /// Returns the errors that depend on this section only: the error of an unknown name alone, or otherwise the errors of unknown keys,
    /// numbers out of bounds, wrong types and missing options.
    pub(super) fn errors(&self) -> Vec<RecipeError> {
        if let Err(unknown) = self.check_name() {
            return vec![unknown];
        }
        let keys = self.schedules.options(&self.name).unwrap_or_default();
        let mut section = self.clone();
        section.options.retain(|key, _| keys.contains(&key));
        let number = |(key, value): (&String, &Value)| {
            let integer =
                check_integers(&format!("schedule.{key}"), value, limits::MAX_SCHEDULE_COUNT);
            let own = Table::from_iter([(key.clone(), value.clone())]);
            integer.and_then(|()| check_finite("schedule", &own)).err()
        };
        let numbers: Vec<_> = section.options.iter().filter_map(number).collect();
        // Only the types of the section's own options are checked here.
        let size = ScheduleSize { prompts: 1, responses: 1, slots: 1, total_steps: Some(1) };
        let mut types = type_errors(&self.schedules.catalog, &section.keyed_choice(size));
        // A number out of its bounds may also not fit into its type, and a missing option may have been misspelt.
        let unknown = self.check_keys(&keys).err();
        let is_missing = |error: &RecipeError| matches!(error, RecipeError::Bound { .. });
        types.retain(|error| numbers.iter().all(|number| number.keys() != error.keys()));
        types.retain(|error| unknown.is_none() || !is_missing(error));
        unknown.into_iter().chain(numbers).chain(types).collect()
    }

    /// Converts an error of a schedule into a recipe error that names the key as written.
    fn recipe_error(&self, error: ScheduleError) -> RecipeError {
        match error {
            ScheduleError::Bound { key, expected, found } => {
                out_of_bounds(self.path(&key), expected, found)
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

    /// Returns the recipe key that sets an option of the schedule.
    fn path(&self, key: &str) -> String {
        let nests = |(_, value): &(&String, &Value)| {
            value.as_table().is_some_and(|inner| inner.contains_key(key))
        };
        match (key, self.options.iter().find(nests)) {
            ("prompts", _) => "data.train_batch_size".to_owned(),
            ("responses", _) => "rollout.n".to_owned(),
            ("total_steps", _) => "trainer.total_training_steps".to_owned(),
            (_, Some((section, _))) => format!("schedule.{section}.{key}"),
            (_, None) => format!("schedule.{key}"),
        }
    }

    fn check_keys(&self, keys: &[&str]) -> Result<(), RecipeError> {
        let unknown = self.options.keys().filter(|key| !keys.contains(&key.as_str()));
        let unknown = unknown.map(|key| {
            let near = nearest(key, keys.iter().copied()).map(|near| format!("schedule.{near}"));
            let owner = || self.schedules.with_option(key);
            let owner = || owner().map(|owner| format!("schedule.name = {owner}"));
            (format!("schedule.{key}"), near.or_else(owner))
        });
        unknown_keys(unknown.collect()).map_or(Ok(()), Err)
    }
}

fn default_name() -> String {
    DEFAULT.to_owned()
}
