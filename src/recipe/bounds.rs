//! Checks the bounds of every setting of a recipe.

use rollpacker_operators::curriculum::CurriculumOptions;
use rollpacker_operators::reward::{LimitMode, LimitOptions};

use rollpacker_model::config::most as size;

use super::error::{RecipeError, between, one_of, out_of_bounds, within};
use super::limits;
use super::raw::{Actor, Algorithm, KlCtrl, RawRecipe};

impl RawRecipe {
    /// Returns an error for the first setting that is out of its bounds. Schedules check their own options.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        self.check_data()?;
        self.check_rollout()?;
        between("reward.num_workers", self.reward.num_workers, 1, limits::REWARD_THREADS)?;
        check_limits(&self.reward.timeout)?;
        self.check_algorithm()?;
        self.check_actor()?;
        self.check_critic()?;
        self.check_trainer()?;
        self.check_sft()
    }

    fn check_data(&self) -> Result<(), RecipeError> {
        let data = &self.data;
        between("data.train_batch_size", data.train_batch_size, 1, limits::PROMPTS)?;
        for (key, samples) in [
            ("data.train_max_samples", data.train_max_samples),
            ("data.val_max_samples", data.val_max_samples),
        ] {
            if samples < -1 || samples == 0 {
                return Err(out_of_bounds(key, "at least 1, or -1 for all", samples));
            }
        }
        let positions = limits::POSITIONS as usize;
        between("data.max_prompt_length", data.max_prompt_length, 1, positions)?;
        between("data.max_response_length", data.max_response_length, 1, limits::POSITIONS as u32)?;
        let Some(curriculum) = &data.curriculum else { return Ok(()) };
        check_curriculum(curriculum)?;
        let epochs = f64::from(self.trainer.total_epochs);
        let expected = "at least 2 with data.curriculum: pass rates are unknown in the first epoch";
        within("trainer.total_epochs", epochs, |epochs| epochs >= 2.0, expected)
    }

    fn check_rollout(&self) -> Result<(), RecipeError> {
        let (data, rollout) = (&self.data, &self.rollout);
        between("rollout.n", rollout.n, 1, limits::RESPONSES)?;
        within("rollout.temperature", rollout.temperature, |t| t > 0.0, "a finite number above 0")?;
        let temperature = |t: f64| (1e-3..=1e3).contains(&t);
        within("rollout.temperature", rollout.temperature, temperature, "from 0.001 to 1000")?;
        within("rollout.top_p", rollout.top_p, |p| p > 0.0 && p <= 1.0, "in (0, 1]")?;
        within(
            "rollout.min_response_length",
            f64::from(rollout.min_response_length),
            |n| n <= f64::from(data.max_response_length),
            "at most data.max_response_length",
        )?;
        between("rollout.top_k", rollout.top_k, -1, limits::POSITIONS)?;
        between("rollout.instances", rollout.instances, 1, limits::THREADS as u32)?;
        between("rollout.threads_per_instance", rollout.threads_per_instance, 1, limits::THREADS)?;
        between("rollout.max_num_seqs", rollout.max_num_seqs, 1, limits::CONCURRENT)?;
        between("rollout.kv_cache_tokens", rollout.kv_cache_tokens, 1, limits::TOKENS)?;
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

    fn check_actor(&self) -> Result<(), RecipeError> {
        let actor = &self.actor;
        weight_decay("actor.weight_decay", actor.weight_decay)?;
        check_optimizer("actor", actor.lr, actor.betas, actor.eps, actor.grad_clip)?;
        for (key, value) in [
            ("actor.kl_loss_coef", actor.kl_loss_coef),
            ("actor.entropy_coeff", actor.entropy_coeff),
        ] {
            factor(key, value)?;
        }
        let scale = actor.loss_scale_factor.unwrap_or(1.0);
        within(
            "actor.loss_scale_factor",
            scale,
            |s| (1e-6..=1e12).contains(&s),
            "from 1e-6 to 1e12",
        )?;
        if !actor.use_kl_loss && actor.kl_loss_coef != Actor::default().kl_loss_coef {
            let expected = "actor.use_kl_loss = true when it is set";
            return Err(out_of_bounds("actor.kl_loss_coef", expected, actor.kl_loss_coef));
        }
        between("actor.lr_warmup_steps", actor.lr_warmup_steps, 0, limits::STEPS)?;
        between("actor.ppo_max_token_len", actor.ppo_max_token_len, 1, limits::TOKENS)?;
        between("actor.threads", actor.threads, 1, limits::THREADS)
    }

    fn check_critic(&self) -> Result<(), RecipeError> {
        let critic = &self.critic;
        check_optimizer("critic", critic.lr, critic.betas, critic.eps, critic.grad_clip)?;
        weight_decay("critic.weight_decay", critic.weight_decay)?;
        between("critic.lr_warmup_steps", critic.lr_warmup_steps, 0, limits::STEPS)?;
        let clip = critic.cliprange_value;
        within("critic.cliprange_value", clip, |clip| clip > 0.0, "a finite number above 0")
    }

    fn check_trainer(&self) -> Result<(), RecipeError> {
        let trainer = &self.trainer;
        between("trainer.workers", trainer.workers, 1, limits::WORKERS)?;
        self.check_threads()?;
        between("trainer.total_epochs", trainer.total_epochs, 1, limits::STEPS as u32)?;
        let steps = trainer.total_training_steps.unwrap_or(1);
        between("trainer.total_training_steps", steps, 1, limits::STEPS)?;
        between("trainer.critic_warmup", trainer.critic_warmup, 0, limits::STEPS)?;
        between("algorithm.staleness", self.algorithm.staleness, 0, limits::STALENESS)?;
        between("trainer.test_freq", trainer.test_freq, -1, limits::STEPS as i64)?;
        between("trainer.save_freq", trainer.save_freq, -1, limits::STEPS as i64)?;
        between("trainer.max_ckpt_to_keep", trainer.max_ckpt_to_keep, 1, limits::CONCURRENT)
    }

    /// Rejects recipes whose torch operations would use more threads in total than a system grants a process.
    fn check_threads(&self) -> Result<(), RecipeError> {
        let (rollout, workers) = (&self.rollout, self.trainer.workers);
        let of_engines = rollout.instances as usize * rollout.threads_per_instance;
        let lent = if self.placement.kind == "fixed" { 0 } else { of_engines };
        let all = workers * (of_engines + self.actor.threads.max(lent));
        if all <= limits::ALL_THREADS {
            return Ok(());
        }
        let expected = format!(
            "at most {} threads of trainer.workers * (rollout.instances * rollout.threads_per_instance + actor.threads)",
            limits::ALL_THREADS
        );
        Err(out_of_bounds("rollout.threads_per_instance", expected, format!("{all} threads")))
    }

    fn check_sft(&self) -> Result<(), RecipeError> {
        let sft = &self.sft;
        between("sft.steps", sft.steps, 1, limits::STEPS)?;
        between("sft.batch_size", sft.batch_size, 1, limits::CONCURRENT)?;
        between("sft.micro_batch_tokens", sft.micro_batch_tokens, 1, limits::TOKENS)?;
        between("sft.threads", sft.threads, 1, limits::THREADS)?;
        between("sft.lr_warmup_steps", sft.lr_warmup_steps, 0, limits::STEPS)?;
        learning_rate("sft.lr", sft.lr)?;
        weight_decay("sft.weight_decay", sft.weight_decay)?;
        self.check_model_made_from_scratch()
    }

    fn check_algorithm(&self) -> Result<(), RecipeError> {
        let algorithm = &self.algorithm;
        let control = &algorithm.kl_ctrl;
        one_of("algorithm.kl_ctrl.type", &control.r#type, &["fixed", "adaptive"])?;
        factor("algorithm.kl_ctrl.kl_coef", control.kl_coef)?;
        let horizon = |horizon: f64| (1.0..=1e12).contains(&horizon);
        within("algorithm.kl_ctrl.horizon", control.horizon, horizon, "from 1 to 1e12")?;
        let target = |target: f64| (1e-9..=limits::FACTOR).contains(&target);
        within("algorithm.kl_ctrl.target_kl", control.target_kl, target, "from 1e-9 to 1e6")?;
        let initial = KlCtrl::default();
        let aims = (control.horizon, control.target_kl) != (initial.horizon, initial.target_kl);
        if control.r#type == "fixed" && aims {
            let expected = "`adaptive` when horizon or target_kl is set";
            return Err(out_of_bounds("algorithm.kl_ctrl.type", expected, "`fixed`"));
        }
        let kl = (&algorithm.kl_penalty, control);
        let unused = Algorithm::default();
        if !algorithm.use_kl_in_reward && kl != (&unused.kl_penalty, &unused.kl_ctrl) {
            let expected = "true when algorithm.kl_penalty or algorithm.kl_ctrl is set";
            return Err(out_of_bounds("algorithm.use_kl_in_reward", expected, false));
        }
        self.check_rollout_correction()
    }

    fn check_model_made_from_scratch(&self) -> Result<(), RecipeError> {
        let sft = &self.sft;
        for (key, value, most) in [
            ("sft.hidden_size", sft.hidden_size, size::WIDTH),
            ("sft.intermediate_size", sft.intermediate_size, size::INNER_WIDTH),
            ("sft.num_hidden_layers", sft.num_hidden_layers, size::LAYERS),
            ("sft.num_attention_heads", sft.num_attention_heads, size::HEADS),
            ("sft.num_key_value_heads", sft.num_key_value_heads, size::HEADS),
            ("sft.max_position_embeddings", sft.max_position_embeddings, limits::POSITIONS),
        ] {
            between(key, value, 1, most)?;
        }
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

/// Rejects test-case limits that are out of their bounds, and adaptive options that a fixed limit would ignore.
/// Checks the bounds of `data.curriculum`, of a recipe or of a simulated job.
pub(crate) fn check_curriculum(options: &CurriculumOptions) -> Result<(), RecipeError> {
    let key = |key: &str| format!("data.curriculum.{key}");
    let checked = options.validated();
    checked.map_err(|error| out_of_bounds(key(error.key), error.expected, error.found)).map(drop)
}

fn check_limits(limits: &LimitOptions) -> Result<(), RecipeError> {
    let key = |key: &str| format!("reward.timeout.{key}");
    limits
        .validated()
        .map_err(|error| out_of_bounds(key(error.key), error.expected, error.found))?;
    let usual = LimitOptions::default();
    let adapting = [
        ("min_s", limits.min_s, usual.min_s),
        ("slack", limits.slack, usual.slack),
        ("audit_share", limits.audit_share, usual.audit_share),
    ];
    let said = adapting.into_iter().find(|(_, found, usual)| found != usual);
    match said.filter(|_| limits.mode == LimitMode::Fixed) {
        Some((name, found, _)) => Err(out_of_bounds(
            key(name),
            "`reward.timeout.mode = \"adaptive\"` when it is set",
            found,
        )),
        None => Ok(()),
    }
}

/// Rejects a loss coefficient that is negative, or so large that the loss could become infinite.
fn factor(key: &str, value: f64) -> Result<(), RecipeError> {
    within(key, value, |value| (0.0..=limits::FACTOR).contains(&value), "from 0 to 1e6")
}

fn learning_rate(key: &str, rate: f64) -> Result<(), RecipeError> {
    within(key, rate, |rate| rate > 0.0 && rate <= limits::LEARNING_RATE, "above 0, at most 10")
}

fn weight_decay(key: &str, decay: f64) -> Result<(), RecipeError> {
    within(key, decay, |decay| (0.0..=limits::WEIGHT_DECAY).contains(&decay), "from 0 to 1000")
}

/// Rejects optimizer settings that are out of Adam's bounds.
fn check_optimizer(
    section: &str,
    lr: f64,
    betas: (f64, f64),
    eps: f64,
    grad_clip: f64,
) -> Result<(), RecipeError> {
    let key = |key: &str| format!("{section}.{key}");
    learning_rate(&key("lr"), lr)?;
    for beta in [betas.0, betas.1] {
        let fits = |beta: f64| (0.0..1.0).contains(&beta);
        within(key("betas"), beta, fits, "two numbers in [0, 1)")?;
    }
    within(key("eps"), eps, |eps| eps > 0.0, "a finite number above 0")?;
    if grad_clip.is_nan() || grad_clip <= 0.0 {
        return Err(out_of_bounds(key("grad_clip"), "a number above 0, or inf", grad_clip));
    }
    Ok(())
}
