//! The bounds of every setting of a recipe.

use rollpacker_operators::reward::{LimitOptions, Timeout};

use super::error::{RecipeError, at_least, bound, one_of, within};
use super::raw::{Actor, Raw};

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
        one_of("algorithm.adv_estimator", &self.algorithm.adv_estimator, &["grpo", "rloo"])?;
        within("actor.lr", actor.lr, |lr| lr > 0.0, "a finite number above 0")?;
        for (key, value) in [
            ("actor.weight_decay", actor.weight_decay),
            ("actor.clip_ratio_high", actor.clip_ratio_high),
            ("actor.kl_loss_coef", actor.kl_loss_coef),
            ("actor.entropy_coeff", actor.entropy_coeff),
            ("sft.weight_decay", sft.weight_decay),
        ] {
            within(key, value, |value| value >= 0.0, "a finite number, at least 0")?;
        }
        within(
            "actor.clip_ratio_low",
            actor.clip_ratio_low,
            |low| (0.0..=1.0).contains(&low),
            "in [0, 1]",
        )?;
        within("actor.clip_ratio_c", actor.clip_ratio_c, |c| c > 1.0, "a finite number above 1")?;
        within(
            "actor.betas",
            actor.betas.0.min(actor.betas.1),
            |beta| beta >= 0.0,
            "two numbers in [0, 1)",
        )?;
        within(
            "actor.betas",
            actor.betas.0.max(actor.betas.1),
            |beta| beta < 1.0,
            "two numbers in [0, 1)",
        )?;
        within("actor.eps", actor.eps, |eps| eps > 0.0, "a finite number above 0")?;
        if actor.grad_clip.is_nan() || actor.grad_clip <= 0.0 {
            return Err(bound("actor.grad_clip", "a number above 0, or inf", actor.grad_clip));
        }
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
        at_least("trainer.total_epochs", self.trainer.total_epochs, 1)?;
        at_least(
            "trainer.total_training_steps",
            self.trainer.total_training_steps.unwrap_or(1),
            1,
        )?;
        at_least("sft.steps", sft.steps, 1)?;
        at_least("sft.batch_size", sft.batch_size, 1)?;
        at_least("sft.micro_batch_tokens", sft.micro_batch_tokens, 1)?;
        at_least("sft.threads", sft.threads, 1)?;
        within("sft.lr", sft.lr, |lr| lr > 0.0, "a finite number above 0")?;
        self.check_model_made_from_scratch()
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
