//! The bounds of every setting of a recipe.

use rollpacker_operators::reward::{LimitOptions, Timeout};

use super::error::{RecipeError, at_least, bound, one_of, within};
use super::raw::{Actor, Algorithm, KlCtrl, Raw};

impl Raw {
    /// The first setting out of its bounds is an error; the schedule checks its own.
    pub(super) fn check(&self) -> Result<(), RecipeError> {
        let (data, rollout, actor, sft) = (&self.data, &self.rollout, &self.actor, &self.sft);
        at_least("data.train_batch_size", data.train_batch_size, 1)?;
        at_least("data.max_prompt_length", data.max_prompt_length, 1)?;
        at_least("data.max_response_length", data.max_response_length, 1)?;
        at_least("rollout.n", rollout.n, 1)?;
        within("rollout.temperature", rollout.temperature, |t| t > 0.0, "a finite number above 0")?;
        within("rollout.top_p", rollout.top_p, |p| p > 0.0 && p <= 1.0, "in (0, 1]")?;
        within(
            "rollout.min_response_length",
            f64::from(rollout.min_response_length),
            |n| n <= f64::from(data.max_response_length),
            "at most data.max_response_length",
        )?;
        at_least("rollout.top_k", rollout.top_k, -1)?;
        at_least("rollout.instances", rollout.instances, 1)?;
        at_least("rollout.threads_per_instance", rollout.threads_per_instance, 1)?;
        at_least("rollout.max_num_seqs", rollout.max_num_seqs, 1)?;
        let longest = data.max_prompt_length
            + usize::try_from(data.max_response_length).unwrap_or(usize::MAX / 2);
        at_least("rollout.kv_cache_tokens", rollout.kv_cache_tokens, longest)?;
        at_least("reward.num_workers", self.reward.num_workers, 1)?;
        check_limits(&self.reward.timeout)?;
        self.check_algorithm()?;
        within("actor.lr", actor.lr, |lr| lr > 0.0, "a finite number above 0")?;
        for (key, value) in [
            ("actor.weight_decay", actor.weight_decay),
            ("actor.kl_loss_coef", actor.kl_loss_coef),
            ("actor.entropy_coeff", actor.entropy_coeff),
            ("critic.weight_decay", self.critic.weight_decay),
            ("sft.weight_decay", sft.weight_decay),
        ] {
            within(key, value, |value| value >= 0.0, "a finite number, at least 0")?;
        }
        check_optimizer("actor", actor.betas, actor.eps, actor.grad_clip)?;
        let critic = &self.critic;
        check_optimizer("critic", critic.betas, critic.eps, critic.grad_clip)?;
        within("critic.lr", critic.lr, |lr| lr > 0.0, "a finite number above 0")?;
        let clip = critic.cliprange_value;
        within("critic.cliprange_value", clip, |clip| clip > 0.0, "a finite number above 0")?;
        within(
            "actor.loss_scale_factor",
            actor.loss_scale_factor.unwrap_or(1.0),
            |s| s > 0.0,
            "a finite number above 0",
        )?;
        if !actor.use_kl_loss && actor.kl_loss_coef != Actor::default().kl_loss_coef {
            let expected = "actor.use_kl_loss = true beside it";
            return Err(bound("actor.kl_loss_coef", expected, actor.kl_loss_coef));
        }
        at_least("actor.ppo_max_token_len", actor.ppo_max_token_len, 1)?;
        at_least("actor.threads", actor.threads, 1)?;
        at_least("trainer.workers", self.trainer.workers, 1)?;
        at_least("trainer.total_epochs", self.trainer.total_epochs, 1)?;
        at_least(
            "trainer.total_training_steps",
            self.trainer.total_training_steps.unwrap_or(1),
            1,
        )?;
        at_least("trainer.save_freq", self.trainer.save_freq, -1)?;
        at_least("trainer.max_ckpt_to_keep", self.trainer.max_ckpt_to_keep, 1)?;
        at_least("sft.steps", sft.steps, 1)?;
        at_least("sft.batch_size", sft.batch_size, 1)?;
        at_least("sft.micro_batch_tokens", sft.micro_batch_tokens, 1)?;
        at_least("sft.threads", sft.threads, 1)?;
        within("sft.lr", sft.lr, |lr| lr > 0.0, "a finite number above 0")?;
        self.check_model_made_from_scratch()
    }

    fn check_algorithm(&self) -> Result<(), RecipeError> {
        let algorithm = &self.algorithm;
        let control = &algorithm.kl_ctrl;
        one_of("algorithm.kl_ctrl.type", &control.r#type, &["fixed", "adaptive"])?;
        within(
            "algorithm.kl_ctrl.kl_coef",
            control.kl_coef,
            |coef| coef >= 0.0,
            "a finite number, at least 0",
        )?;
        for (key, value) in [
            ("algorithm.kl_ctrl.horizon", control.horizon),
            ("algorithm.kl_ctrl.target_kl", control.target_kl),
        ] {
            within(key, value, |value| value > 0.0, "a finite number above 0")?;
        }
        let initial = KlCtrl::default();
        let aims = (control.horizon, control.target_kl) != (initial.horizon, initial.target_kl);
        if control.r#type == "fixed" && aims {
            let expected = "`adaptive` beside a horizon or a target";
            return Err(bound("algorithm.kl_ctrl.type", expected, "`fixed`"));
        }
        let kl = (&algorithm.kl_penalty, control);
        let unused = Algorithm::default();
        if !algorithm.use_kl_in_reward && kl != (&unused.kl_penalty, &unused.kl_ctrl) {
            let expected = "true beside algorithm.kl_penalty or algorithm.kl_ctrl";
            return Err(bound("algorithm.use_kl_in_reward", expected, false));
        }
        self.rollout_is().map(|_| ())
    }

    fn check_model_made_from_scratch(&self) -> Result<(), RecipeError> {
        let sft = &self.sft;
        for (key, value) in [
            ("sft.hidden_size", sft.hidden_size),
            ("sft.intermediate_size", sft.intermediate_size),
            ("sft.num_hidden_layers", sft.num_hidden_layers),
            ("sft.num_attention_heads", sft.num_attention_heads),
            ("sft.num_key_value_heads", sft.num_key_value_heads),
            ("sft.max_position_embeddings", sft.max_position_embeddings),
        ] {
            at_least(key, value, 1)?;
        }
        if sft.hidden_size % (2 * sft.num_attention_heads) != 0 {
            return Err(bound(
                "sft.hidden_size",
                "an even multiple of sft.num_attention_heads",
                sft.hidden_size,
            ));
        }
        if sft.num_attention_heads % sft.num_key_value_heads != 0 {
            let expected = "a divisor of sft.num_attention_heads";
            return Err(bound("sft.num_key_value_heads", expected, sft.num_key_value_heads));
        }
        Ok(())
    }
}

/// Refuses limits of test cases that are out of their bounds, or follow from nothing and say what from.
fn check_limits(limits: &LimitOptions) -> Result<(), RecipeError> {
    let key = |key: &str| format!("reward.timeout.{key}");
    limits.validated().map_err(|error| bound(key(error.key), error.expected, error.found))?;
    let usual = LimitOptions::default();
    let adapting = [
        ("min_s", limits.min_s, usual.min_s),
        ("slack", limits.slack, usual.slack),
        ("audit_share", limits.audit_share, usual.audit_share),
    ];
    let said = adapting.into_iter().find(|(_, found, usual)| found != usual);
    match said.filter(|_| limits.mode == Timeout::Fixed) {
        Some((name, found, _)) => {
            Err(bound(key(name), "`reward.timeout.mode = \"adaptive\"` beside it", found))
        }
        None => Ok(()),
    }
}

/// Refuses what Adam cannot do with.
fn check_optimizer(
    section: &str,
    betas: (f64, f64),
    eps: f64,
    grad_clip: f64,
) -> Result<(), RecipeError> {
    let key = |key: &str| format!("{section}.{key}");
    for beta in [betas.0, betas.1] {
        let fits = |beta: f64| (0.0..1.0).contains(&beta);
        within(key("betas"), beta, fits, "two numbers in [0, 1)")?;
    }
    within(key("eps"), eps, |eps| eps > 0.0, "a finite number above 0")?;
    if grad_clip.is_nan() || grad_clip <= 0.0 {
        return Err(bound(key("grad_clip"), "a number above 0, or inf", grad_clip));
    }
    Ok(())
}
