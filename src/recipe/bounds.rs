//! Checks every setting of a recipe: the ranges of numbers, and settings that must fit each other.

use rollpacker_operators::OptionError;
use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_operators::reward::{LimitMode, LimitOptions};

use rollpacker_model::config::max as size;
use rollpacker_stages::train::config::Aggregation;

use super::choices::check_choice;
use super::error::{RecipeError, out_of_bounds, within};
use super::ranges::RANGES;
use super::raw::{Actor, Algorithm, KlControlType, KlCtrl, RawRecipe};
use super::{limits, range};

impl RawRecipe {
    /// Returns the errors of single settings: numbers out of range, unknown names in `trainer.logger`, and wrong names and options of the
    /// schedule and the placement.
    pub(super) fn wrong_values(&self) -> Vec<RecipeError> {
        let logger = |name: &String| check_choice("trainer.logger", name).err();
        let errors = range::errors(RANGES, self)
            .chain(self.trainer.logger.iter().filter_map(logger))
            .chain(self.schedule.errors())
            .chain(self.placement.errors());
        errors.collect()
    }

    /// Returns the errors of settings that conflict with each other, at most one per check. A schedule checks its own options when it is
    /// built.
    pub(super) fn conflicts(&self) -> Vec<RecipeError> {
        let checks = [
            self.check_data(),
            self.check_run_folder(),
            self.check_rollout(),
            check_limits(&self.reward.timeout),
            self.check_algorithm(),
            self.check_kl_loss(),
            self.check_loss_scale(),
            self.check_threads(),
            self.check_model_made_from_scratch(),
        ];
        checks.into_iter().filter_map(Result::err).collect()
    }

    fn check_data(&self) -> Result<(), RecipeError> {
        let Some(curriculum) = &self.data.curriculum else { return Ok(()) };
        check_curriculum(curriculum)?;
        let epochs = f64::from(self.trainer.total_epochs);
        let expected = "at least 2 with data.curriculum: pass rates are unknown in the first epoch";
        within("trainer.total_epochs", epochs, |epochs| epochs >= 2.0, expected)
    }

    /// Rejects an empty `trainer.default_local_dir`, such as the value of an unset shell variable. An empty path would select the current
    /// folder.
    fn check_run_folder(&self) -> Result<(), RecipeError> {
        if self.trainer.default_local_dir.as_os_str().is_empty() {
            let (key, expected) = ("trainer.default_local_dir", "the path of a folder");
            return Err(out_of_bounds(key, expected, "an empty text"));
        }
        Ok(())
    }

    fn check_rollout(&self) -> Result<(), RecipeError> {
        let (data, rollout) = (&self.data, &self.rollout);
        within(
            "rollout.min_response_length",
            f64::from(rollout.min_response_length),
            |n| n <= f64::from(data.max_response_length),
            "at most data.max_response_length",
        )?;
        let longest = data.max_prompt_length + data.max_response_length as usize;
        if rollout.kv_cache_tokens < longest {
            let expected =
                format!("at least {longest}, data.max_prompt_length + data.max_response_length");
            return Err(out_of_bounds(
                "rollout.kv_cache_tokens",
                expected,
                rollout.kv_cache_tokens,
            ));
        }
        Ok(())
    }

    fn check_kl_loss(&self) -> Result<(), RecipeError> {
        let (actor, unset) = (&self.actor, Actor::default());
        if actor.use_kl_loss {
            return Ok(());
        }
        let refused =
            |key, found| Err(out_of_bounds(key, "actor.use_kl_loss = true when it is set", found));
        if actor.kl_loss_coef != 0.0 && actor.kl_loss_coef != unset.kl_loss_coef {
            return refused("actor.kl_loss_coef", actor.kl_loss_coef.to_string());
        }
        if actor.kl_loss_type != unset.kl_loss_type {
            return refused("actor.kl_loss_type", format!("`{}`", actor.kl_loss_type));
        }
        if actor.use_bias_correction_kl {
            return refused("actor.use_bias_correction_kl", "true".to_owned());
        }
        Ok(())
    }

    /// Rejects a divisor of token losses that neither the policy loss nor the value loss uses.
    fn check_loss_scale(&self) -> Result<(), RecipeError> {
        let norm = Aggregation::SeqMeanTokenSumNorm;
        let is_used = self.actor.loss_agg_mode == Some(norm) || self.critic.loss_agg_mode == norm;
        let unused = self.actor.loss_scale_factor.filter(|_| !is_used);
        unused.map_or(Ok(()), |found| {
            let expected = format!("actor.loss_agg_mode = {norm} when it is set");
            Err(out_of_bounds("actor.loss_scale_factor", expected, found))
        })
    }

    /// Rejects recipes whose engine instances and trainers would use more than `MAX_TOTAL_THREADS` threads in total.
    fn check_threads(&self) -> Result<(), RecipeError> {
        let (rollout, workers) = (&self.rollout, self.trainer.workers);
        let of_engines = rollout.instances as usize * rollout.threads_per_instance;
        let own = self.actor.threads.unwrap_or(1);
        let (trainer, of_trainer) = match self.placement.kind.as_str() {
            "fixed" => (own, "actor.threads"),
            _ => (own.max(of_engines), "the larger of that product and actor.threads"),
        };
        let all = workers * (of_engines + trainer);
        if all <= limits::MAX_TOTAL_THREADS {
            return Ok(());
        }
        let expected = format!(
            "at most {} threads of trainer.workers * (rollout.instances * rollout.threads_per_instance + {of_trainer})",
            limits::MAX_TOTAL_THREADS
        );
        Err(out_of_bounds("rollout.threads_per_instance", expected, format!("{all} threads")))
    }

    fn check_algorithm(&self) -> Result<(), RecipeError> {
        let algorithm = &self.algorithm;
        let control = &algorithm.kl_ctrl;
        let initial = KlCtrl::default();
        let aims = (control.horizon, control.target_kl) != (initial.horizon, initial.target_kl);
        if control.r#type == KlControlType::Fixed && aims {
            let expected = "`adaptive` when horizon or target_kl is set";
            return Err(out_of_bounds("algorithm.kl_ctrl.type", expected, "`fixed`"));
        }
        let kl = (&algorithm.kl_penalty, control);
        let unused = Algorithm::default();
        if !algorithm.use_kl_in_reward && kl != (&unused.kl_penalty, &unused.kl_ctrl) {
            let expected = "true when algorithm.kl_penalty or algorithm.kl_ctrl is set";
            return Err(out_of_bounds("algorithm.use_kl_in_reward", expected, false));
        }
        self.check_loss_type()
    }

    fn check_model_made_from_scratch(&self) -> Result<(), RecipeError> {
        let sft = &self.sft;
        if sft.hidden_size / sft.num_attention_heads > size::HEAD_DIM {
            let expected =
                format!("enough heads that each has at most {} dimensions", size::HEAD_DIM);
            return Err(out_of_bounds(
                "sft.num_attention_heads",
                expected,
                sft.num_attention_heads,
            ));
        }
        if sft.hidden_size % (2 * sft.num_attention_heads) != 0 {
            return Err(out_of_bounds(
                "sft.hidden_size",
                "an even multiple of sft.num_attention_heads",
                sft.hidden_size,
            ));
        }
        if sft.num_attention_heads % sft.num_key_value_heads != 0 {
            let expected = "a divisor of sft.num_attention_heads";
            return Err(out_of_bounds(
                "sft.num_key_value_heads",
                expected,
                sft.num_key_value_heads,
            ));
        }
        Ok(())
    }
}

/// Checks the bounds of `data.curriculum` in a recipe or in a simulated job.
pub(crate) fn check_curriculum(options: &CurriculumOptions) -> Result<(), RecipeError> {
    options.validated().map_err(option_error("data.curriculum")).map(drop)
}

/// Rejects options of `reward.timeout` that are out of their bounds, and options of the adaptive limit that a fixed limit would ignore.
fn check_limits(limits: &LimitOptions) -> Result<(), RecipeError> {
    limits.validated().map_err(option_error("reward.timeout"))?;
    let usual = LimitOptions::default();
    let adapting = [
        ("min_s", limits.min_s, usual.min_s),
        ("slack", limits.slack, usual.slack),
        ("audit_share", limits.audit_share, usual.audit_share),
    ];
    let found_setting = adapting.into_iter().find(|(_, found, usual)| found != usual);
    match found_setting.filter(|_| limits.mode == LimitMode::Fixed) {
        Some((name, found, _)) => Err(out_of_bounds(
            format!("reward.timeout.{name}"),
            "`reward.timeout.mode = \"adaptive\"` when it is set",
            found,
        )),
        None => Ok(()),
    }
}

/// Returns a function that converts the error of an option to an error of the key below `section`.
fn option_error(section: &str) -> impl Fn(OptionError) -> RecipeError {
    move |error| out_of_bounds(format!("{section}.{}", error.key), error.expected, error.found)
}
