//! Recipes: what a run is, in TOML, overridden key by key on the command line.
//!
//! Two phases: [`Raw`] is what was typed, [`Recipe`] what was meant, every bound checked. Nothing after this looks at text again.

pub(crate) mod algorithm;
pub mod aliases;
mod bounds;
pub(crate) mod error;
pub(crate) mod keys;
pub mod period;
pub mod raw;
pub mod schedule;
pub(crate) mod value;

use std::path::Path;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::watchdog::{Pulse, Watch};
use rollpacker_datasets::{Columns, DatasetConfig};
use rollpacker_operators::overlap::{Fetch, Scoring};
use rollpacker_operators::schedule::Builtin;
use rollpacker_stages::train::config::{CriticConfig, TrainerConfig};
use rollpacker_stages::train::learning_rate::Decay;
use toml::{Table, Value};

pub use error::RecipeError;
use error::{bound, first_line, one_of};
pub use raw::Raw;

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

    /// The recipe as TOML, defaults filled in.
    ///
    /// # Panics
    /// Never: every value of a recipe is TOML.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string_pretty(&self.raw).expect("invariant: recipes are read from TOML")
    }

    /// The settings by their dotted names, for comparisons: all but the run folder, which only one process of a run writes to.
    #[must_use]
    pub fn settings(&self) -> Vec<(String, String)> {
        let mut raw = self.raw.clone();
        raw.trainer.default_local_dir = std::path::PathBuf::new();
        let table = Table::try_from(&raw).expect("invariant: recipes are read from TOML");
        let mut settings = Vec::new();
        flatten("", table, &mut settings);
        settings
    }
}

fn flatten(prefix: &str, table: Table, settings: &mut Vec<(String, String)>) {
    for (key, value) in table {
        match value {
            toml::Value::Table(table) => flatten(&format!("{prefix}{key}."), table, settings),
            value => settings.push((format!("{prefix}{key}"), value.to_string())),
        }
    }
}

/// Reads a TOML file, and lays `overrides`, each `section.key=value`, over it.
pub(crate) fn read_table(path: &Path, overrides: &[String]) -> Result<Table, RecipeError> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| RecipeError::Read { path: path.to_owned(), source })?;
    let mut table: Table = text.parse().map_err(|error: toml::de::Error| RecipeError::Toml {
        path: path.to_owned(),
        reason: error.to_string().trim_end().to_owned(),
    })?;
    for text in overrides {
        overlay(&mut table, text)?;
    }
    Ok(table)
}

/// What is written in a table, every key known and of its type.
pub(crate) fn from_table<T: keys::Sections>(mut table: Table) -> Result<T, RecipeError> {
    aliases::rename(&mut table, T::aliases())?;
    keys::check::<T>(&table)?;
    serde_path_to_error::deserialize(Value::Table(table)).map_err(|error| RecipeError::Type {
        key: error.path().to_string(),
        reason: first_line(&error.inner().to_string()),
    })
}

impl raw::Pipeline {
    pub(crate) fn scoring(&self, schedule: &schedule::Section) -> Result<Scoring, RecipeError> {
        self.reward.map_or_else(|| schedule.scoring(), Ok)
    }

    pub(crate) fn fetch(&self, schedule: &schedule::Section) -> Result<Fetch, RecipeError> {
        let key = "pipeline.gradient";
        let fetch = match self.gradient.as_deref() {
            None => schedule.fetch()?,
            Some("streamed") => Fetch::default(),
            Some("once") => Fetch::Once,
            Some("whole_step") => Fetch::WholeStep,
            Some(other) => {
                one_of(key, other, &["streamed", "once", "whole_step"])?;
                unreachable!("invariant: every name is matched above")
            }
        };
        match (fetch, self.max_groups) {
            (fetch, None) => Ok(fetch),
            (_, Some(0)) => Err(bound("pipeline.max_groups", "at least 1", 0)),
            (Fetch::Streamed { .. }, max_groups) => Ok(Fetch::Streamed { max_groups }),
            (_, Some(found)) => {
                Err(bound("pipeline.max_groups", "streamed groups beside it", found))
            }
        }
    }
}

/// Lays `section.key=value` over a table. The value is TOML if it reads as such, otherwise text. Another schedule leaves the keys of the
/// one before behind.
pub(crate) fn overlay(table: &mut Table, text: &str) -> Result<(), RecipeError> {
    let wrong = || RecipeError::Override { text: text.to_owned() };
    let (key, value) = text.split_once('=').ok_or_else(wrong)?;
    let mut path: Vec<&str> = key.trim().split('.').collect();
    let last = path.pop().filter(|last| !last.is_empty()).ok_or_else(wrong)?;
    let mut section = table;
    for part in path {
        let entry = section.entry(part).or_insert_with(|| Value::Table(Table::new()));
        section = entry.as_table_mut().ok_or_else(wrong)?;
    }
    let parsed = format!("value = {value}")
        .parse::<Table>()
        .ok()
        .and_then(|mut parsed| parsed.remove("value"));
    section.insert(last.to_owned(), parsed.unwrap_or_else(|| Value::String(value.to_owned())));
    if key.trim() == "schedule.name" {
        schedule::leave_others(section);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use expect_test::{Expect, expect};

    use super::*;

    fn read(text: &str, overrides: &[&str]) -> Result<Recipe, RecipeError> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("recipe.toml");
        std::fs::write(&path, text).expect("written");
        let overrides: Vec<String> = overrides.iter().map(|&text| text.to_owned()).collect();
        Recipe::read(&path, &overrides)
    }

    fn check_error(text: &str, overrides: &[&str], expected: Expect) {
        expected.assert_eq(&read(text, overrides).expect_err("refused").to_string());
    }

    #[test]
    fn overrides_win_over_the_file_and_the_file_over_defaults() {
        let recipe =
            read("[rollout]\nn = 4\ntop_p = 0.9", &["rollout.n=6", "data.train_files=a.parquet"])
                .expect("valid");
        let Raw { rollout, data, .. } = &recipe.raw;
        assert_eq!((rollout.n, rollout.top_p, rollout.temperature), (6, 0.9, 1.0));
        assert_eq!(data.train_files, ["a.parquet"]);
    }

    #[test]
    fn names_of_other_frameworks_are_understood() {
        let recipe =
            read("[rollout]\nnum_generations = 4\n[actor]\nbeta = 0.1\nuse_kl_loss = true", &[])
                .expect("valid");
        assert_eq!((recipe.raw.rollout.n, recipe.trainer.kl_loss_coef), (4, 0.1));
    }

    #[test]
    fn unknown_keys_are_refused_with_the_nearest() {
        check_error(
            "[actor]\nclip_ration_low = 0.1",
            &[],
            expect!["unknown key `actor.clip_ration_low`; did you mean `actor.clip_ratio_low`?"],
        );
        check_error("", &["rolout.n=3"], expect!["unknown key `rolout`; did you mean `rollout`?"]);
        check_error("", &["rollout.zzzzzzzz=3"], expect!["unknown key `rollout.zzzzzzzz`"]);
    }

    #[test]
    fn wrong_types_and_bounds_name_the_key() {
        check_error(
            "",
            &["rollout.n=many"],
            expect!["key `rollout.n`: invalid type: string \"many\", expected u32"],
        );
        check_error("", &["rollout.n=0"], expect!["key `rollout.n`: expected at least 1, found 0"]);
        check_error(
            "",
            &["rollout.temperature=nan"],
            expect!["key `rollout.temperature`: expected a finite number above 0, found NaN"],
        );
        check_error(
            "",
            &["schedule.name=tail_batchin"],
            expect![
                "key `schedule.name`: expected one of sync, fused, history_sorted, tail_batching, dynamic, sorted, partial, frontier_group (did you mean `tail_batching`?), found `tail_batchin`"
            ],
        );
        check_error(
            "",
            &["actor.lr_scheduler_type=cosine"],
            expect![
                "key `actor.lr_scheduler_type`: expected `constant`, unless trainer.total_training_steps says where the rate ends, found cosine"
            ],
        );
        check_error(
            "[actor]\nbeta = 0.1\nkl_loss_coef = 0.2",
            &[],
            expect!["key `actor.kl_loss_coef`: written twice, also as `actor.beta`"],
        );
        check_error(
            "",
            &["algorithm.rollout_correction.rollout_is=tokens"],
            expect![
                "key `algorithm.rollout_correction.rollout_is`: expected one of token, sequence (did you mean `token`?), found `tokens`"
            ],
        );
        check_error(
            "",
            &["actor.beta=0.1"],
            expect![
                "key `actor.kl_loss_coef`: expected actor.use_kl_loss = true beside it, found 0.1"
            ],
        );
        check_error(
            "",
            &["schedule.name=sync", "schedule.max_queue_age=3"],
            expect![
                "unknown key `schedule.max_queue_age`; did you mean `schedule.name = tail_batching`?"
            ],
        );
        check_error("", &["rollout.n"], expect!["override `rollout.n`: expected key=value"]);
    }

    #[test]
    fn limits_of_test_cases_are_checked_by_their_keys() {
        let recipe = read("[reward.timeout]\nmax_s = 10", &["reward.timeout.slack=2"]);
        let limits = recipe.expect("valid").raw.reward.timeout;
        assert_eq!((limits.min_s, limits.max_s, limits.slack), (2.0, 10.0, 2.0));
        let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
        check(
            &["reward.timeout.min_s=40"],
            expect![
                "key `reward.timeout.min_s`: expected seconds above 0, at most `max_s`, found 40"
            ],
        );
        check(
            &["reward.timeout.audit_share=1.5"],
            expect!["key `reward.timeout.audit_share`: expected a number in [0, 1], found 1.5"],
        );
        check(
            &["reward.timeout.mode=fixed", "reward.timeout.slack=2"],
            expect![[
                r#"key `reward.timeout.slack`: expected `reward.timeout.mode = "adaptive"` beside it, found 2"#
            ]],
        );
        check(
            &["reward.timeout.mode=adaptiv"],
            expect![
                "key `reward.timeout.mode`: unknown variant `adaptiv`, expected `fixed` or `adaptive`"
            ],
        );
        check(
            &["reward.timeout.max=3"],
            expect!["unknown key `reward.timeout.max`; did you mean `reward.timeout.max_s`?"],
        );
        check(
            &["reward.timeout=3"],
            expect![
                "key `reward.timeout`: invalid type: integer `3`, expected a table of `mode`, `min_s`, `max_s`, `slack` and `audit_share`"
            ],
        );
    }

    #[test]
    fn what_a_schedule_refuses_names_the_key_that_was_written() {
        let check = |overrides: &[&str], expected: Expect| check_error("", overrides, expected);
        check(
            &["schedule.eta_prompts=0.5"],
            expect!["key `schedule.eta_prompts`: expected a number from 1 to 1000, found 0.5"],
        );
        check(
            &["schedule.eta_prompts=many"],
            expect![[r#"key `schedule.eta_prompts`: invalid type: string "many", expected f64"#]],
        );
        check(
            &["schedule.name=frontier_group"],
            expect!["key `schedule.order`: expected a value, found nothing"],
        );
        check(
            &["schedule.quotas={math = 3}"],
            expect!["key `schedule.quotas`: expected a sum of 16, the prompts of a round, found 3"],
        );
        check(
            &["schedule.quotas={math = 0}"],
            expect!["key `schedule.quotas.math`: expected at least 1, found 0"],
        );
        check(
            &["schedule.selection=weighted", "schedule.eta_responses=2"],
            expect![
                "key `schedule.selection`: cannot be had with `eta_responses = 2`: no weight makes up for responses that surplus ones cut off"
            ],
        );
        check(
            &[
                "schedule.filter_zero_variance={max_generated_batches = 0, on_exhausted = \"smaller_step\"}",
            ],
            expect![
                "key `schedule.filter_zero_variance.max_generated_batches`: expected at least 1, found 0"
            ],
        );
        check(
            &[
                "schedule.name=sorted",
                "schedule.group_size=2",
                "schedule.mode=on_policy",
                "schedule.carry_over=true",
            ],
            expect![[
                r#"key `schedule.carry_over`: cannot be had with `mode = "on_policy"`: what it runs ahead would be aborted"#
            ]],
        );
        check(
            &[
                "schedule.name=dynamic",
                "schedule.max_generated_batches=2",
                "schedule.on_exhausted=smaller_step",
                "rollout.n=1",
            ],
            expect![
                "key `rollout.n`: expected at least 2, for rewards to vary within a group, found 1"
            ],
        );
    }

    #[test]
    fn another_schedule_leaves_the_keys_of_the_one_before_behind() {
        let file = "[schedule]\nname = \"tail_batching\"\neta_prompts = 1.5";
        let recipe = read(file, &["schedule.name=sync"]).expect("valid");
        assert!(recipe.raw.schedule.options.is_empty());
        let same = read(file, &["schedule.name=tail_batching"]).expect("valid");
        assert_eq!(same.raw.schedule.options.len(), 1);
    }

    #[test]
    fn a_resolved_recipe_reads_back_as_itself() {
        let recipe = read("[schedule]\nname = \"sync\"", &["trainer.seed=7"]).expect("valid");
        assert_eq!(read(&recipe.to_toml(), &[]).expect("valid").raw, recipe.raw);
    }
}
