//! Recipes: TOML files that describe a run, with overrides on the command line.
//!
//! Reading has two phases. `RawRecipe` holds the settings as written, with defaults. [`Recipe`] holds their values: every setting is
//! checked and converted once, when the recipe is read. The options of an entry that a recipe names, such as a reward, are checked by the
//! program's catalog of such entries.

mod algorithm;
pub mod aliases;
mod bounds;
pub(crate) mod choice;
pub(crate) mod choices;
pub(crate) mod error;
mod inputs;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the command line lists the keys"))]
pub(crate) mod keys;
pub(crate) mod limits;
mod period;
mod pipeline;
mod placement;
#[cfg_attr(not(feature = "cli"), allow(dead_code, reason = "only the command line lists the keys"))]
pub(crate) mod range;
pub(crate) mod ranges;
#[expect(
    unreachable_pub,
    reason = "one macro declares the sections that `Recipe` has and those that it resolves"
)]
mod raw;
mod rollout_correction;
pub mod schedule;
pub(crate) mod section;
mod sections;
mod table;
pub(crate) mod value;
#[cfg_attr(
    not(all(feature = "cli", feature = "torch")),
    allow(dead_code, reason = "only `rollpacker train` accepts verl's keys")
)]
pub(crate) mod verl;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::watchdog::{ProgressCounter, WatchdogSettings};
use rollpacker_datasets::{DatasetConfig, PromptColumns};
use rollpacker_operators::advantage::KlController;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::schedule::Schedule;
use rollpacker_stages::rollout::sampling::Sampling;
use rollpacker_stages::train::config::{CriticConfig, TrainerConfig};
use rollpacker_stages::train::learning_rate::Decay;

use crate::placements::Placements;
use crate::placements::live::LivePlacement;
pub(crate) use algorithm::Choices;
#[cfg(feature = "torch")]
pub(crate) use algorithm::check_replicas;
pub(crate) use bounds::check_curriculum;
pub use error::RecipeError;
use error::{combine_errors, or_default, out_of_bounds, reject};
use keys::ResumableKeys;
use raw::LrScheduler;
#[cfg(feature = "servers")]
pub(crate) use raw::Serve;
pub use raw::{Data, Model, Reward, Rollout, RouteTarget, Run, Sft, Truncation};
pub(crate) use raw::{Gradient, Pipeline, RawRecipe};
#[cfg(feature = "cli")]
pub(crate) use raw::{Placement, PolicyLoss};
use schedule::Schedules;
#[cfg(any(feature = "cli", test))]
pub(crate) use table::overlay;
use table::read_valid;
pub(crate) use table::{from_table, override_key, read_table, split_override};

/// A validated recipe.
///
/// [`settings`](Self::settings) and [`to_toml`](Self::to_toml) return the settings as they were read, also after a change of a field.
#[derive(Clone, Debug)]
pub struct Recipe {
    /// The settings from which the other fields were resolved.
    raw: RawRecipe,
    /// The settings of the section `[data]` that no other field holds, such as the number of prompts of a step and the maximum lengths of
    /// prompts and responses.
    pub data: Data,
    /// The training prompts.
    pub train_data: DatasetConfig,
    /// The validation prompts; `None` if `data.val_files` is empty.
    pub val_data: Option<DatasetConfig>,
    /// The demonstrations for supervised fine-tuning.
    pub sft_data: DatasetConfig,
    /// The initial model.
    pub model: Model,
    /// The settings of the section `[rollout]` that no other field holds, such as the number of responses to a prompt and the instances of
    /// the engine.
    pub rollout: Rollout,
    /// The sampling of training responses.
    pub sampling: Sampling,
    /// The sampling of validation responses.
    pub val_sampling: Sampling,
    /// The number of sampled responses to each validation prompt.
    pub val_samples: u32,
    /// The seed of sampling: `rollout.seed`, or `trainer.seed` if `rollout.seed` is not set.
    pub sampling_seed: u64,
    /// The catalog entries that the recipe names.
    #[cfg_attr(
        not(feature = "torch"),
        expect(dead_code, reason = "only sessions make the entries")
    )]
    pub(crate) choices: Choices,
    /// The maximum number of prompts of a round, without replacements for rejected prompts, and the number of responses launched for each:
    /// the [`round_size`](rollpacker_operators::schedule::Schedule::round_size) of the schedule, or `data.train_batch_size` and `rollout.n`
    /// if the schedule states none.
    pub launched: (usize, u32),
    /// The division of the engine instances between rollout and training.
    pub(crate) placement: Arc<dyn LivePlacement>,
    /// The time at which responses are scored: according to `pipeline.reward`, or to the default of the schedule.
    pub scoring: Scoring,
    /// The time at which groups are trained on: according to `pipeline.gradient`, or to the default of the schedule.
    pub gradient: GroupDelivery,
    /// The rewards, and which data sources they score: the section `[reward]`.
    pub reward: Reward,
    /// The KL penalty of the rewards in its initial state, or `None` if `algorithm.use_kl_in_reward` is `false`.
    pub reward_kl: Option<KlController>,
    /// Maximum number of steps by which the sampling policy may lag behind the trained policy.
    pub staleness: u64,
    /// The trainer's options. `critic` is `None` here, because only the advantage estimator determines whether a critic is needed.
    pub trainer: TrainerConfig,
    /// The critic's options. They are used only if the advantage estimator needs a critic.
    pub critic: CriticConfig,
    /// The folder of the critic's initial model; `None` selects the initial model of the policy.
    pub critic_model: Option<PathBuf>,
    /// The length of training, workers, snapshots and outputs: the section `[trainer]`.
    pub run: Run,
    /// Number of steps between two validations; 0 disables validation during training.
    pub test_freq: u64,
    /// Number of steps between two snapshots; 0 disables snapshots.
    pub save_freq: u64,
    /// Time without progress after which the watchdog reports a stall; 0 disables the watchdog.
    pub stall_timeout: Nanos,
    /// The maximum wall time of the run; `None` if it is not limited.
    pub max_wall_time: Option<Nanos>,
    /// `true` to write an event file of TensorBoard.
    pub tensorboard: bool,
    /// Supervised fine-tuning before training.
    pub sft: Sft,
}

/// The entries of catalogs that the settings of a recipe may name.
pub(crate) struct KnownNames<'a> {
    pub(crate) schedules: &'a Schedules,
    pub(crate) placements: &'a Placements,
    /// Returns the errors of all other names, and of the options of the entries that they select, as far as they are known before a session
    /// opens.
    pub(crate) others: &'a dyn Fn(&Choices, &Reward) -> Vec<RecipeError>,
}

impl RawRecipe {
    /// Converts the settings and checks that they fit each other. The settings must have no [wrong values](Self::wrong_values).
    ///
    /// # Errors
    /// If settings conflict, with at most one error for each check, if the schedule or the placement rejects its options, or if
    /// `trainer.stall_timeout` or `trainer.max_wall_time` is not a valid duration. All errors are reported together. Conflicts of
    /// the schedule or the placement with `[pipeline]` are only reported if it can be built.
    fn resolve(self) -> Result<Recipe, RecipeError> {
        let mut errors = self.conflicts();
        let placement = or_default(self.live_placement().map(Some), &mut errors);
        let schedule = or_default(self.build_schedule().map(Some), &mut errors);
        let mut trainer = self.trainer_config(&mut errors);
        let scoring = self.pipeline.scoring(&self.schedule);
        let gradient = or_default(self.pipeline.delivery(&self.schedule), &mut errors);
        let run = &self.trainer;
        let stall_timeout =
            or_default(run.stall_timeout.nanos("trainer.stall_timeout"), &mut errors);
        let max_wall_time = run.max_wall_time.as_ref();
        let max_wall_time =
            max_wall_time.map(|limit| limit.positive_nanos("trainer.max_wall_time"));
        let max_wall_time = or_default(max_wall_time.transpose(), &mut errors);
        if let Some(schedule) = &schedule {
            errors.extend(schedule::check_scoring(&**schedule, scoring).err());
        }
        if let Some(placement) = &placement {
            errors.extend(self.check_streams(&**placement, scoring, gradient).err());
        }
        let (Some(placement), Some(schedule), []) = (placement, schedule, &errors[..]) else {
            return Err(combine_errors(errors));
        };
        trainer.threads = self.trainer_threads(&*placement);
        trainer.old_logprobs = self.old_logprobs(&*schedule);
        let data = &self.data;
        Ok(Recipe {
            data: data.clone(),
            train_data: self.dataset(&data.train_files, data.train_max_samples, data.shuffle),
            val_data: (!data.val_files.is_empty())
                .then(|| self.dataset(&data.val_files, data.val_max_samples, false)),
            sft_data: self.dataset(&self.sft.train_files, -1, false),
            model: self.model.clone(),
            rollout: self.rollout.clone(),
            sampling: self.sampling(),
            val_sampling: self.val_sampling(),
            val_samples: self.rollout.val_kwargs.n,
            sampling_seed: self.rollout.seed.unwrap_or(run.seed),
            choices: self.choices(),
            launched: schedule.round_size().unwrap_or((data.train_batch_size, self.rollout.n)),
            placement,
            scoring,
            gradient,
            reward: self.reward.clone(),
            reward_kl: self.reward_kl(),
            staleness: self.algorithm.staleness,
            trainer,
            critic: self.critic_config(),
            critic_model: self.critic.path.clone(),
            run: run.clone(),
            test_freq: u64::try_from(run.test_freq).unwrap_or(0),
            save_freq: u64::try_from(run.save_freq).unwrap_or(0),
            stall_timeout,
            max_wall_time,
            tensorboard: run.logger.iter().any(|logger| logger == "tensorboard"),
            sft: self.sft.clone(),
            raw: self,
        })
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

    fn dataset(&self, files: &[String], max_samples: i64, shuffle: bool) -> DatasetConfig {
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
            seed: self.data.seed.unwrap_or(self.trainer.seed),
            max_samples: u64::try_from(max_samples).ok(),
            ..DatasetConfig::of(files.iter().cloned())
        }
    }

    fn sampling(&self) -> Sampling {
        let rollout = &self.rollout;
        Sampling {
            temperature: rollout.temperature,
            top_p: rollout.top_p,
            top_k: u32::try_from(rollout.top_k).unwrap_or(0),
            min_new_tokens: rollout.min_response_length,
            max_new_tokens: self.data.max_response_length,
        }
    }

    fn val_sampling(&self) -> Sampling {
        let (training, own) = (self.sampling(), &self.rollout.val_kwargs);
        Sampling {
            temperature: own.temperature.unwrap_or(training.temperature),
            top_p: own.top_p.unwrap_or(training.top_p),
            top_k: own.top_k.map_or(training.top_k, |max| u32::try_from(max).unwrap_or(0)),
            ..training
        }
    }

    fn decay(&self) -> Result<Decay, RecipeError> {
        let unlimited = |name| {
            let needs = "`constant`, unless trainer.total_training_steps is set";
            out_of_bounds("actor.lr_scheduler_type", needs, name)
        };
        let steps = self.trainer.total_training_steps;
        Ok(match self.actor.lr_scheduler_type {
            LrScheduler::Constant => Decay::Constant,
            LrScheduler::Linear => {
                Decay::Linear { total_steps: steps.ok_or_else(|| unlimited("`linear`"))? }
            }
            LrScheduler::Cosine => {
                Decay::Cosine { total_steps: steps.ok_or_else(|| unlimited("`cosine`"))? }
            }
        })
    }
}

impl Recipe {
    /// Returns the dotted names of all keys that a recipe may have.
    ///
    /// `schedule`, `placement`, `actor.policy_loss` and tables of options count as one key each: the keys in them depend on a name in them.
    /// See [`schedule::Schedules::options`] for the keys of schedules.
    #[must_use]
    pub fn keys() -> Vec<String> {
        keys::all::<RawRecipe>()
    }

    /// Returns `true` if a run may be resumed with another value of the key with this dotted name. The answer for a key that holds a table
    /// also applies to all keys in the table.
    #[must_use]
    pub fn is_resumable(key: &str) -> bool {
        let Some((section, key)) = key.split_once('.') else {
            return RawRecipe::RESUMABLE.contains(&key);
        };
        let keys = match section {
            "data" => Data::RESUMABLE,
            "rollout" => Rollout::RESUMABLE,
            "reward" => Reward::RESUMABLE,
            "algorithm" => raw::Algorithm::RESUMABLE,
            "actor" => raw::Actor::RESUMABLE,
            "critic" => raw::Critic::RESUMABLE,
            "trainer" => Run::RESUMABLE,
            _ => &[],
        };
        let key = key.split_once('.').map_or(key, |(table, _)| table);
        RawRecipe::RESUMABLE.contains(&section) || keys.contains(&key)
    }

    /// Reads a recipe, applies `overrides`, each of the form `section.key=value`, and validates it.
    ///
    /// # Errors
    /// If the file cannot be read or is not valid TOML, an override is not of this form, a key does not exist or is set under two names, a
    /// value has the wrong type or is out of its bounds, or two settings conflict.
    pub fn read(path: &Path, overrides: &[String]) -> Result<Self, RecipeError> {
        Self::read_with(path, overrides, &Schedules::default(), &Placements::default())
    }

    /// Reads a recipe that may name entries of `schedules` and `placements`, applies `overrides`, and validates it.
    ///
    /// # Errors
    /// In the same cases as [`Recipe::read`].
    pub fn read_with(
        path: &Path,
        overrides: &[String],
        schedules: &Schedules,
        placements: &Placements,
    ) -> Result<Self, RecipeError> {
        let mut settings = read_table(path)?;
        overrides.iter().try_for_each(|text| override_key::<RawRecipe>(&mut settings, text))?;
        let names = KnownNames { schedules, placements, others: &|_, _| Vec::new() };
        Self::from_settings(settings, Vec::new(), names, |_| {})
    }

    /// Validates the settings of a table, which may name entries of `names`. `change` then changes the section `[trainer]`. The errors of
    /// the table are reported together with `errors`, which were found before. Errors of `names.others` in a section that already has an
    /// error are left out.
    pub(crate) fn from_settings(
        settings: toml::Table,
        errors: Vec<RecipeError>,
        names: KnownNames<'_>,
        change: impl FnOnce(&mut Run),
    ) -> Result<Self, RecipeError> {
        let (mut raw, mut errors): (RawRecipe, _) = read_valid(settings, errors)?;
        raw.schedule.schedules = names.schedules.clone();
        raw.placement.placements = names.placements.clone();
        change(&mut raw.trainer);
        // Wrong values were removed, so an entry whose section has one would be checked against defaults.
        let mut others = (names.others)(&raw.choices(), &raw.reward);
        others.retain(|other| !errors.iter().any(|error| error.shares_section(other)));
        errors.extend(raw.wrong_values().into_iter().chain(others));
        reject(errors)?;
        raw.resolve()
    }

    /// Replaces the schedule and the fields that are resolved from it. Changes nothing if the recipe with this schedule is not valid.
    #[cfg(feature = "torch")]
    pub(crate) fn set_schedule(
        &mut self,
        schedule: schedule::ScheduleSection,
    ) -> Result<(), RecipeError> {
        let Self { raw, launched, scoring, gradient, trainer, .. } =
            RawRecipe { schedule, ..self.raw.clone() }.resolve()?;
        (self.raw, self.launched, self.scoring, self.gradient) = (raw, launched, scoring, gradient);
        // A schedule that pauses responses trains on tokens of older policies.
        self.trainer.old_logprobs = trainer.old_logprobs;
        Ok(())
    }

    /// Replaces the placement by `kind`, one of `placements`, without options, and replaces the fields that are resolved from it. Changes
    /// nothing if the recipe with this placement is not valid.
    #[cfg(feature = "torch")]
    pub(crate) fn set_placement(
        &mut self,
        kind: String,
        placements: Placements,
    ) -> Result<(), RecipeError> {
        let placement = raw::Placement { kind, placements, ..raw::Placement::default() };
        let Self { raw, placement, trainer, .. } =
            RawRecipe { placement, ..self.raw.clone() }.resolve()?;
        (self.raw, self.placement) = (raw, placement);
        self.trainer.threads = trainer.threads;
        Ok(())
    }

    /// Returns the schedule in its initial state.
    ///
    /// # Errors
    /// If the schedule rejects its options.
    pub fn schedule(&self) -> Result<Box<dyn Schedule>, RecipeError> {
        self.raw.build_schedule()
    }

    /// Returns the name of the schedule.
    #[must_use]
    pub fn schedule_name(&self) -> &str {
        &self.raw.schedule.name
    }

    /// Returns the option `slots` of the schedule, the maximum number of responses in flight, or `None` if the recipe does not set it.
    #[cfg(feature = "torch")]
    pub(crate) fn schedule_slots(&self) -> Option<u64> {
        let slots = self.raw.schedule.options.get("slots")?;
        slots.as_integer().and_then(|slots| u64::try_from(slots).ok())
    }

    /// Returns the domains with a quota of the schedule `tail_batching`; none for other schedules and without quotas.
    #[cfg(feature = "torch")]
    pub(crate) fn quota_domains(&self) -> impl Iterator<Item = &str> {
        let schedule = &self.raw.schedule;
        let options = (schedule.name == "tail_batching").then_some(&schedule.options);
        let quotas = options.and_then(|options| options.get("quotas")?.as_table());
        quotas.into_iter().flat_map(|quotas| quotas.keys().map(String::as_str))
    }

    /// Returns the configuration of the watchdog, or `None` if `trainer.stall_timeout` is 0, which disables the watchdog. Each call creates
    /// a new progress counter.
    #[must_use]
    pub fn watch(&self) -> Option<WatchdogSettings> {
        let (after, on_stall) = (self.stall_timeout, self.run.on_stall);
        let progress = ProgressCounter::default();
        (after > Nanos(0)).then_some(WatchdogSettings { after, on_stall, progress })
    }
}

#[cfg(test)]
mod tests;
