//! Recipes: what a run is, in TOML, overridden key by key on the command line.
//!
//! Two phases: [`Raw`] is what was typed, [`Recipe`] what was meant, every bound checked. Nothing after this looks at text again.

pub(crate) mod algorithm;
pub mod aliases;
mod bounds;
pub(crate) mod error;
mod inputs;
pub(crate) mod keys;
pub(crate) mod most;
pub mod period;
mod pipeline;
pub mod raw;
pub mod schedule;
mod table;
pub(crate) mod value;

use std::path::Path;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::watchdog::{Pulse, Watch};
use rollpacker_datasets::{Columns, DatasetConfig};
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::schedule::Builtin;
use rollpacker_stages::train::config::{CriticConfig, TrainerConfig};
use rollpacker_stages::train::learning_rate::Decay;

pub use error::RecipeError;
use error::{bound, one_of};
pub use raw::Raw;
pub(crate) use table::{from_table, overlay, read_table};

/// A run, checked.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// What was written, defaults filled in.
    pub raw: Raw,
    /// Prompts to train on.
    pub train_data: DatasetConfig,
    /// Prompts to validate on.
    pub val_data: Option<DatasetConfig>,
    /// The trainer's options; the critic is left to whoever knows whether advantages need one.
    pub trainer: TrainerConfig,
    /// The critic's, if advantages need one.
    pub critic: CriticConfig,
    /// Steps between two validations; 0 for none.
    pub test_freq: u64,
}

impl Raw {
    /// Reads a recipe, and lays `overrides`, each `section.key=value`, over it.
    ///
    /// # Errors
    /// If the file cannot be read or is no TOML, a key does not exist, or a value is of the wrong type.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        from_table(read_table(path, overrides)?)
    }

    /// Returns the dotted names of all keys that a recipe may have. `schedule`, `actor.policy_loss` and tables of options are one key each:
    /// what they may hold depends on what they name, as [`schedule::options`] says of schedules.
    #[must_use]
    pub fn keys() -> Vec<String> {
        keys::all::<Self>()
    }

    /// Checks every bound.
    ///
    /// # Errors
    /// [`RecipeError::Bound`] for the first value out of its bounds.
    pub fn resolve(self) -> Result<Recipe, RecipeError> {
        self.check()?;
        let recipe = Recipe {
            train_data: self.dataset(
                &self.data.train_files,
                self.data.train_max_samples,
                self.data.shuffle,
            ),
            val_data: (!self.data.val_files.is_empty())
                .then(|| self.dataset(&self.data.val_files, self.data.val_max_samples, false)),
            trainer: self.trainer_config(self.bypasses()?)?,
            critic: self.critic_config(),
            test_freq: u64::try_from(self.trainer.test_freq).unwrap_or(0),
            raw: self,
        };
        schedule::check_scoring(&recipe.schedule()?, recipe.scoring()?)?;
        recipe.fetch()?;
        recipe.watch()?;
        recipe.max_wall_time()?;
        Ok(recipe)
    }

    fn build_schedule(&self) -> Result<Builtin, RecipeError> {
        self.schedule.build(schedule::Size {
            prompts: self.data.train_batch_size,
            responses: self.rollout.n,
            // What one round trains on, all at once.
            slots: (self.data.train_batch_size as u64).saturating_mul(self.rollout.n.into()),
            total_steps: self.trainer.total_training_steps,
        })
    }

    /// Seed of the order of prompts.
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
        let columns = Columns {
            prompt: self.data.prompt_key.clone(),
            data_source: self.data.reward_fn_key.clone(),
            ground_truth: self.data.ground_truth_key.clone(),
            domain: self.data.domain_key.clone(),
            ..Columns::default()
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
        one_of(key, &self.actor.lr_scheduler_type, &["constant", "linear", "cosine"])?;
        if self.actor.lr_scheduler_type == "constant" {
            return Ok(Decay::Constant);
        }
        let needs = "`constant`, unless trainer.total_training_steps says where the rate ends";
        let total_steps = self
            .trainer
            .total_training_steps
            .ok_or_else(|| bound(key, needs, &self.actor.lr_scheduler_type))?;
        Ok(if self.actor.lr_scheduler_type == "linear" {
            Decay::Linear { total_steps }
        } else {
            Decay::Cosine { total_steps }
        })
    }
}

impl Recipe {
    /// Reads and checks a recipe.
    ///
    /// # Errors
    /// As [`Raw::read`] and [`Raw::resolve`].
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        Raw::read(path, overrides)?.resolve()
    }

    /// The schedule, at its beginning.
    ///
    /// # Errors
    /// If its options are out of bounds.
    pub fn schedule(&self) -> Result<Builtin, RecipeError> {
        self.raw.build_schedule()
    }

    /// How the run is watched; `None` if it is not.
    ///
    /// # Errors
    /// If `trainer.stall_timeout` is no time.
    pub fn watch(&self) -> Result<Option<Watch>, RecipeError> {
        let trainer = &self.raw.trainer;
        let after = trainer.stall_timeout.nanos("trainer.stall_timeout")?;
        let watch = Watch { after, on_stall: trainer.on_stall, pulse: Pulse::default() };
        Ok((after > Nanos(0)).then_some(watch))
    }

    /// How long the run may take, if there is a limit.
    ///
    /// # Errors
    /// If `trainer.max_wall_time` is no time.
    pub fn max_wall_time(&self) -> Result<Option<Nanos>, RecipeError> {
        let limit = self.raw.trainer.max_wall_time.as_ref();
        limit.map(|limit| limit.nanos("trainer.max_wall_time")).transpose()
    }

    /// When responses are scored.
    ///
    /// # Errors
    /// If there is no schedule of the recipe's name.
    pub fn scoring(&self) -> Result<Scoring, RecipeError> {
        self.raw.pipeline.scoring(&self.raw.schedule)
    }

    /// When groups are trained on.
    ///
    /// # Errors
    /// If `pipeline.gradient` is no way of it, or `pipeline.max_groups` is set where groups are not streamed.
    pub fn fetch(&self) -> Result<Fetch, RecipeError> {
        self.raw.pipeline.fetch(&self.raw.schedule)
    }

    /// Prompts, and responses to each, that a round of fresh prompts launches.
    #[must_use]
    pub fn launched(&self) -> (usize, u32) {
        let (prompts, responses) = (self.raw.data.train_batch_size, self.raw.rollout.n);
        match self.schedule() {
            Ok(Builtin::TailBatching(schedule)) => schedule.launched(),
            _ => (prompts, responses),
        }
    }

    /// Returns the recipe as TOML, defaults filled in and credentials left out.
    ///
    /// # Panics
    /// Never: every value of a recipe is TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.raw.recorded()).expect("invariant: recipes are read from TOML")
    }
}

#[cfg(test)]
mod tests;
