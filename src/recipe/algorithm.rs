//! Converts the algorithm settings of a recipe into the configuration of the stages.

use rollpacker_operators::advantage::{KlControl, KlController};
use rollpacker_operators::schedule::Schedule;
use rollpacker_stages::catalog::Choice;
use rollpacker_stages::train::config::{
    CriticConfig, Level, OldLogprobs, OptimizerConfig, RolloutIs, Threshold, TrainerConfig,
};
use rollpacker_stages::train::learning_rate::{Decay, LearningRate};

use super::choice::{KeyedChoice, KeyedOption, choice};
use super::error::{RecipeError, one_of, out_of_bounds};
use super::limits;
use super::raw::{Algorithm, IsThreshold, RawRecipe, RolloutCorrection};

impl RawRecipe {
    pub(super) fn trainer_config(&self, bypasses: bool) -> Result<TrainerConfig, RecipeError> {
        let (actor, algorithm) = (&self.actor, &self.algorithm);
        Ok(TrainerConfig {
            optimizer: OptimizerConfig {
                learning_rate: LearningRate {
                    peak: actor.lr,
                    warmup_steps: actor.lr_warmup_steps,
                    decay: self.decay()?,
                },
                betas: actor.betas,
                eps: actor.eps,
                weight_decay: actor.weight_decay,
                grad_clip: actor.grad_clip,
            },
            policy_loss: self.policy_loss().all(),
            loss_agg_mode: actor.loss_agg_mode.unwrap_or_default(),
            loss_scale_factor: actor
                .loss_scale_factor
                .unwrap_or(f64::from(self.data.max_response_length)),
            old_logprobs: if bypasses { OldLogprobs::Engine } else { OldLogprobs::Trainer },
            rollout_is: self.rollout_is()?,
            kl_loss_coef: if actor.use_kl_loss { actor.kl_loss_coef } else { 0.0 },
            kl_loss_type: Choice::of(&actor.kl_loss_type),
            use_bias_correction_kl: actor.use_bias_correction_kl,
            reward_kl: algorithm.use_kl_in_reward.then(|| Choice::of(&algorithm.kl_penalty)),
            entropy_coeff: actor.entropy_coeff,
            temperature: self.rollout.temperature,
            critic: None,
            micro_batch_tokens: actor.ppo_max_token_len,
            threads: actor.threads,
            deterministic: self.trainer.deterministic,
        })
    }

    pub(super) fn critic_config(&self) -> CriticConfig {
        let critic = &self.critic;
        CriticConfig {
            optimizer: OptimizerConfig {
                learning_rate: LearningRate {
                    peak: critic.lr,
                    warmup_steps: critic.lr_warmup_steps,
                    decay: Decay::Constant,
                },
                betas: critic.betas,
                eps: critic.eps,
                weight_decay: critic.weight_decay,
                grad_clip: critic.grad_clip,
            },
            cliprange_value: critic.cliprange_value,
            loss_agg_mode: critic.loss_agg_mode,
            warmup_steps: self.trainer.critic_warmup,
        }
    }

    /// Returns `true` if policy ratios use the engine's log-probabilities instead of the trainer's.
    ///
    /// Defaults to `true` when tokens can come from a policy other than the trained one: with staleness, or with a schedule that pauses
    /// responses.
    pub(super) fn uses_engine_logprobs(&self) -> Result<bool, RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let older = self.algorithm.staleness > 0 || self.build_schedule()?.pauses();
        // Importance weights already correct for the older policy. Against the engine's own log-probabilities they would all be 1.
        Ok(correction.bypass_mode.unwrap_or(older && correction.rollout_is.is_none()))
    }

    pub(super) fn rollout_is(&self) -> Result<Option<RolloutIs>, RecipeError> {
        let correction = &self.algorithm.rollout_correction;
        let key = "algorithm.rollout_correction.rollout_is";
        let level = match correction.rollout_is.as_deref() {
            None if correction.rollout_is_threshold
                != RolloutCorrection::default().rollout_is_threshold =>
            {
                return Err(out_of_bounds(
                    key,
                    "`token` or `sequence` when rollout_is_threshold is set",
                    "nothing",
                ));
            }
            None => return Ok(None),
            Some("token") => Level::Token,
            Some("sequence") => Level::Sequence,
            Some(other) => {
                one_of(key, other, &["token", "sequence"])?;
                unreachable!("invariant: every name is matched above")
            }
        };
        if correction.bypass_mode == Some(true) {
            let expected =
                "false when rollout_is is set, whose weights need the trainer's log-probabilities";
            return Err(out_of_bounds("algorithm.rollout_correction.bypass_mode", expected, true));
        }
        Ok(Some(RolloutIs { level, threshold: threshold(&correction.rollout_is_threshold)? }))
    }

    /// Returns the policy loss with its options and their recipe keys.
    pub(crate) fn policy_loss(&self) -> KeyedChoice {
        let actor = &self.actor;
        let low = actor.clip_ratio_low.or(actor.clip_ratio);
        let high = actor.clip_ratio_high.or(actor.clip_ratio);
        let key = |own: Option<f64>, key| if own.is_some() { key } else { "actor.clip_ratio" };
        let keyed = [
            (key(actor.clip_ratio_low, "actor.clip_ratio_low"), "clip_ratio_low", low),
            (key(actor.clip_ratio_high, "actor.clip_ratio_high"), "clip_ratio_high", high),
            ("actor.clip_ratio_c", "clip_ratio_c", actor.clip_ratio_c),
            ("actor.tau_pos", "tau_pos", actor.tau_pos),
            ("actor.tau_neg", "tau_neg", actor.tau_neg),
        ];
        KeyedChoice {
            key: "actor.policy_loss.loss_mode",
            section: "actor.policy_loss",
            choice: choice(&actor.policy_loss.loss_mode, &actor.policy_loss.options),
            keyed: keyed.into_iter().filter_map(keyed_number).collect(),
        }
    }

    /// Returns the advantage estimator with its options and their recipe keys.
    #[cfg_attr(
        not(feature = "torch"),
        expect(dead_code, reason = "only the stages on libtorch make the estimator")
    )]
    pub(crate) fn adv_estimator(&self) -> KeyedChoice {
        let Algorithm { adv_estimator, adv_options, norm_adv_by_std_in_grpo, .. } = &self.algorithm;
        let norm = norm_adv_by_std_in_grpo.map(|norm| KeyedOption {
            key: "algorithm.norm_adv_by_std_in_grpo",
            option: "norm_adv_by_std_in_grpo",
            value: norm.into(),
        });
        let numbers = [
            ("algorithm.gamma", "gamma", self.algorithm.gamma),
            ("algorithm.lam", "lam", self.algorithm.lam),
        ];
        KeyedChoice {
            key: "algorithm.adv_estimator",
            section: "algorithm.adv_options",
            choice: choice(adv_estimator, adv_options),
            keyed: numbers.into_iter().filter_map(keyed_number).chain(norm).collect(),
        }
    }

    /// Returns the rollout engine with its options.
    #[cfg(feature = "torch")]
    pub(crate) fn engine(&self) -> KeyedChoice {
        let (servers, server_timeout) = (&self.rollout.servers, &self.rollout.server_timeout);
        let servers = (!servers.is_empty()).then(|| KeyedOption {
            key: "rollout.servers",
            option: "servers",
            value: servers.as_slice().into(),
        });
        let timeout = keyed_number(("rollout.server_timeout", "server_timeout", *server_timeout));
        KeyedChoice {
            key: "rollout.engine",
            section: "rollout.engine_options",
            choice: choice(&self.rollout.engine, &self.rollout.engine_options),
            keyed: servers.into_iter().chain(timeout).collect(),
        }
    }

    /// Returns the trainer with its options.
    #[cfg(feature = "torch")]
    pub(crate) fn strategy(&self) -> KeyedChoice {
        KeyedChoice {
            key: "actor.strategy",
            section: "actor.strategy_options",
            choice: choice(&self.actor.strategy, &self.actor.strategy_options),
            keyed: Vec::new(),
        }
    }

    /// Returns the KL penalty of the rewards in its initial state, or `None` if `algorithm.use_kl_in_reward` is `false`.
    #[must_use]
    pub fn reward_kl(&self) -> Option<KlController> {
        let control = &self.algorithm.kl_ctrl;
        let kind = if control.r#type == "adaptive" {
            KlControl::Adaptive { target_kl: control.target_kl, horizon: control.horizon }
        } else {
            KlControl::Fixed
        };
        self.algorithm.use_kl_in_reward.then(|| KlController::new(kind, control.kl_coef))
    }
}

fn keyed_number(
    (key, option, value): (&'static str, &'static str, Option<f64>),
) -> Option<KeyedOption> {
    Some(KeyedOption { key, option, value: value?.into() })
}

fn threshold(written: &IsThreshold) -> Result<Threshold, RecipeError> {
    let key = "algorithm.rollout_correction.rollout_is_threshold";
    let expected = "a number from 1 to 1e6, or a band as `low_high` of numbers from 1e-6 to 1e6";
    let (found, threshold) = match written {
        IsThreshold::Above(most) => (most.to_string(), Some(Threshold::Above(*most))),
        IsThreshold::Band(text) => {
            let ends = text.split_once('_').and_then(|(low, high)| {
                Some(Threshold::Outside(low.parse().ok()?, high.parse().ok()?))
            });
            (format!("`{text}`"), ends)
        }
    };
    let fits = |threshold: &Threshold| match *threshold {
        // TOML reads `0.5_2` as a number, therefore a band must be written as a string.
        Threshold::Above(above) => (1.0..=limits::FACTOR).contains(&above),
        Threshold::Outside(low, high) => {
            low >= 1.0 / limits::FACTOR && low <= high && high <= limits::FACTOR
        }
    };
    threshold.filter(fits).ok_or_else(|| out_of_bounds(key, expected, found))
}
