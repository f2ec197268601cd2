//! Recipes: TOML files that describe a run, with overrides on the command line.
//!
//! Reading has two phases. [`RawRecipe`] holds the settings as written, with defaults. [`Recipe`] holds the validated settings. Later code
//! never parses text again, except the names of catalog entries with their options and the name of the device.

pub(crate) mod algorithm;
pub mod aliases;
mod bounds;
pub(crate) mod choice;
pub(crate) mod choices;
pub(crate) mod error;
mod inputs;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the command line lists the keys"))]
pub(crate) mod keys;
pub(crate) mod limits;
pub mod period;
mod pipeline;
pub(crate) mod placement;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the command line lists the keys"))]
pub(crate) mod ranges;
pub mod raw;
mod rollout_correction;
pub mod schedule;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the command line lists the keys"))]
pub(crate) mod shape;
mod table;
pub(crate) mod value;
#[cfg_attr(
    not(all(feature = "cli", feature = "torch")),
    allow(dead_code, reason = "only `rollpacker train` accepts verl's keys")
)]
pub(crate) mod verl;

use std::path::Path;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::watchdog::{ProgressCounter, WatchdogSettings};
use rollpacker_datasets::{DatasetConfig, PromptColumns};
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::schedule::Schedule;
use rollpacker_stages::train::config::{CriticConfig, TrainerConfig};
use rollpacker_stages::train::learning_rate::Decay;

use crate::placements::Placements;
pub(crate) use algorithm::check_replicas;
pub(crate) use bounds::check_curriculum;
use choices::check_choice;
pub use error::RecipeError;
use error::out_of_bounds;
pub use placement::PlacementKind;
pub use raw::RawRecipe;
#[cfg(feature = "servers")]
pub(crate) use raw::Serve;
use schedule::Schedules;
pub(crate) use table::{from_table, overlay, read_table};

/// A validated recipe.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The settings as written, with defaults filled in.
    pub raw: RawRecipe,
    /// The training prompts.
    pub train_data: DatasetConfig,
    /// The validation prompts, if any.
    pub val_data: Option<DatasetConfig>,
    /// The trainer's options. The critic is not set here: only the advantage estimator determines whether one is needed.
    pub trainer: TrainerConfig,
    /// The critic's options, used if the advantage estimator needs one.
    pub critic: CriticConfig,
    /// The division of the engine instances between rollout and training.
    pub placement: PlacementKind,
    /// The time at which responses are scored: according to `pipeline.reward`, or to the default of the schedule.
    pub scoring: Scoring,
    /// The time at which groups are trained on: according to `pipeline.gradient`, or to the default of the schedule.
    pub gradient: GroupDelivery,
    /// Number of steps between two validations; 0 disables validation during training.
    pub test_freq: u64,
    /// Number of steps between two snapshots; 0 disables snapshots.
    pub save_freq: u64,
    /// Time without progress after which the watchdog reports a stall; 0 disables the watchdog.
    pub stall_timeout: Nanos,
    /// The maximum wall time of the run, if there is one.
    pub max_wall_time: Option<Nanos>,
}

impl RawRecipe {
    /// Reads a recipe and applies `overrides`, each of the form `section.key=value`.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid TOML, a key does not exist, or a value has the wrong type.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        from_table(read_table(path, overrides)?)
    }

    /// Returns the dotted names of all keys that a recipe may have.
    ///
    /// `schedule`, `actor.policy_loss` and tables of options count as one key each: the keys in them depend on a name in them.
    /// See [`schedule::Schedules::options`] for the keys of schedules.
    #[must_use]
    pub fn keys() -> Vec<String> {
        keys::all::<Self>()
    }

    /// Checks the bounds of all settings.
    ///
    /// # Errors
    /// [`RecipeError::Bound`] for the first value out of its bounds.
    pub fn resolve(self) -> Result<Recipe, RecipeError> {
        self.check()?;
        let placement = self.placement_kind()?;
        let mut trainer = self.trainer_config(self.uses_engine_logprobs()?)?;
        trainer.threads = self.trainer_threads(&placement);
        check_replicas(&trainer, self.trainer.workers)?;
        let schedule = self.build_schedule()?;
        let scoring = self.pipeline.scoring(&self.schedule)?;
        schedule::check_scoring(&*schedule, scoring)?;
        let max_wall_time = self.trainer.max_wall_time.as_ref();
        let recipe = Recipe {
            train_data: self.dataset(
                &self.data.train_files,
                self.data.train_max_samples,
                self.data.shuffle,
            ),
            val_data: (!self.data.val_files.is_empty())
                .then(|| self.dataset(&self.data.val_files, self.data.val_max_samples, false)),
            trainer,
            critic: self.critic_config(),
            placement,
            scoring,
            gradient: self.pipeline.fetch(&self.schedule)?,
            test_freq: u64::try_from(self.trainer.test_freq).unwrap_or(0),
            save_freq: u64::try_from(self.trainer.save_freq).unwrap_or(0),
            stall_timeout: self.trainer.stall_timeout.nanos("trainer.stall_timeout")?,
            max_wall_time: max_wall_time
                .map(|limit| limit.nanos("trainer.max_wall_time"))
                .transpose()?,
            raw: self,
        };
        recipe.check_streams()?;
        Ok(recipe)
    }

    fn build_schedule(&self) -> Result<Box<dyn Schedule>, RecipeError> {
        self.schedule.build(schedule::ScheduleSize {
            prompts: self.data.train_batch_size,
            responses: self.rollout.n,
            // The responses of one round, all in flight at once.
            slots: (self.data.train_batch_size as u64).saturating_mul(self.rollout.n.into()),
            total_steps: self.trainer.total_training_steps,
        })
    }

    /// Returns the seed of the prompt order: `data.seed`, or `trainer.seed` if that is not set.
    #[must_use]
    pub fn data_seed(&self) -> u64 {
        self.data.seed.unwrap_or(self.trainer.seed)
    }

    pub(crate) fn dataset(
        &self,
        files: &[String],
        max_samples: i64,
        shuffle: bool,
    ) -> DatasetConfig {
        let columns = PromptColumns {
            prompt: self.data.prompt_key.clone(),
            data_source: self.data.reward_fn_key.clone(),
            ground_truth: self.data.ground_truth_key.clone(),
            domain: self.data.domain_key.clone(),
            ..PromptColumns::default()
        };
        DatasetConfig {
            columns,
            extra_columns: self.data.extra_columns.clone(),
            shuffle,
            seed: self.data_seed(),
            max_samples: u64::try_from(max_samples).ok(),
            ..DatasetConfig::of(files.iter().cloned())
        }
    }

    pub(super) fn decay(&self) -> Result<Decay, RecipeError> {
        let key = "actor.lr_scheduler_type";
        check_choice(key, &self.actor.lr_scheduler_type)?;
        if self.actor.lr_scheduler_type == "constant" {
            return Ok(Decay::Constant);
        }
        let needs = "`constant`, unless trainer.total_training_steps is set";
        let total_steps = self
            .trainer
            .total_training_steps
            .ok_or_else(|| out_of_bounds(key, needs, &self.actor.lr_scheduler_type))?;
        Ok(if self.actor.lr_scheduler_type == "linear" {
            Decay::Linear { total_steps }
        } else {
            Decay::Cosine { total_steps }
        })
    }
}

impl Recipe {
    /// Reads a recipe and validates it.
    ///
    /// # Errors
    /// As [`RawRecipe::read`] and [`RawRecipe::resolve`].
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::read_with(path, overrides, &Schedules::default(), &Placements::default())
    }

    /// Reads a recipe that may name one of `schedules` or one of `placements`, and validates it.
    ///
    /// # Errors
    /// As [`RawRecipe::read`] and [`RawRecipe::resolve`].
    pub fn read_with(
        path: &Path,
        overrides: &[String],
        schedules: &Schedules,
        placements: &Placements,
    ) -> Result<Self, RecipeError> {
        Self::from_settings(read_table(path, overrides)?, schedules, placements)
    }

    /// Validates the settings of a table, which may name one of `schedules` or one of `placements`.
    pub(crate) fn from_settings(
        settings: toml::Table,
        schedules: &Schedules,
        placements: &Placements,
    ) -> Result<Self, RecipeError> {
        let mut raw: RawRecipe = from_table(settings)?;
        raw.schedule.schedules = schedules.clone();
        raw.placement.placements = placements.clone();
        raw.resolve()
    }

    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// If its options are out of bounds.
    pub fn schedule(&self) -> Result<Box<dyn Schedule>, RecipeError> {
        self.raw.build_schedule()
    }

    /// Returns the configuration of the watchdog, or `None` if it is disabled. Each call returns a progress counter of its own.
    #[must_use]
    pub fn watch(&self) -> Option<WatchdogSettings> {
        let (after, on_stall) = (self.stall_timeout, self.raw.trainer.on_stall);
        let pulse = ProgressCounter::default();
        (after > Nanos(0)).then_some(WatchdogSettings { after, on_stall, pulse })
    }

    /// Returns the number of prompts that a round of fresh prompts launches, and the number of responses to each.
    #[must_use]
    pub fn launched(&self) -> (usize, u32) {
        let (prompts, responses) = (self.raw.data.train_batch_size, self.raw.rollout.n);
        let launched = self.schedule().ok().and_then(|schedule| schedule.round_size());
        launched.unwrap_or((prompts, responses))
    }

    /// Returns the recipe as TOML, with defaults filled in and credentials removed.
    ///
    /// # Panics
    /// Never: every value of a recipe can be written as TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.raw.recorded()).expect("invariant: recipes are read from TOML")
    }
}

#[cfg(test)]
mod tests;
