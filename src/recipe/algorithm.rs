//! Converts the algorithm settings of a recipe into the configuration of the stages.

use rollpacker_operators::advantage::{KlControl, KlController};
use rollpacker_stages::catalog::Choice;
use rollpacker_stages::train::config::{
    Aggregation, CriticConfig, MiniBatches, OldLogprobs, OptimizerConfig, TrainerConfig,
};
use rollpacker_stages::train::learning_rate::{Decay, LearningRate};

use super::choice::{KeyedChoice, KeyedOption, choice};
use super::error::{RecipeError, or_default, out_of_bounds};
use super::raw::{Algorithm, Critic, KlControlType, RawRecipe};
use super::rollout_correction::REINFORCE_LOSS;

const MINI_BATCH: &str = "actor.ppo_mini_batch_size";

/// Rejects several updates per step in a run with several workers, whose replicas add up their gradients once per step.
pub(crate) fn check_replicas(config: &TrainerConfig, workers: usize) -> Result<(), RecipeError> {
    match config.mini_batches {
        Some(MiniBatches { prompts, epochs: 1 }) if workers > 1 => {
            let expected = format!("data.train_batch_size with {workers} workers");
            Err(out_of_bounds(MINI_BATCH, expected, prompts))
        }
        Some(MiniBatches { epochs, .. }) if workers > 1 => {
            let expected = format!("1 with {workers} workers");
            Err(out_of_bounds("actor.ppo_epochs", expected, epochs))
        }
        _ => Ok(()),
    }
}

/// The catalog entries that a recipe selects, and the settings that are checked against them.
#[derive(Clone, Debug)]
#[cfg_attr(not(feature = "torch"), expect(dead_code, reason = "only sessions make the entries"))]
pub(crate) struct Choices {
    /// The rollout engine: `rollout.engine`.
    pub(crate) engine: KeyedChoice,
    /// The trainer: `actor.strategy`.
    pub(crate) trainer: KeyedChoice,
    /// The advantage estimator: `algorithm.adv_estimator`.
    pub(crate) estimator: KeyedChoice,
    /// The policy loss: `actor.policy_loss.loss_mode` or `algorithm.rollout_correction.loss_type`.
    pub(crate) policy_loss: KeyedChoice,
    /// The estimator of the KL divergence in the loss: `actor.kl_loss_type`.
    pub(crate) kl_loss: KeyedChoice,
    /// The estimator of the KL divergence in the rewards: `algorithm.kl_penalty`.
    pub(crate) kl_penalty: KeyedChoice,
    /// The aggregation of token losses; `None` if the recipe does not set `actor.loss_agg_mode`.
    pub(crate) loss_agg_mode: Option<Aggregation>,
    /// `true` if the section `[critic]` differs from its defaults, or if `trainer.critic_warmup` is above 0.
    pub(crate) sets_critic: bool,
}

impl RawRecipe {
    pub(super) fn choices(&self) -> Choices {
        let (actor, algorithm) = (&self.actor, &self.algorithm);
        Choices {
            engine: self.engine(),
            trainer: KeyedChoice {
                key: "actor.strategy",
                section: "actor.strategy_options",
                choice: choice(&actor.strategy, &actor.strategy_options),
                keyed: Vec::new(),
            },
            estimator: self.adv_estimator(),
            policy_loss: self.policy_loss(),
            kl_loss: KeyedChoice::of("actor.kl_loss_type", &actor.kl_loss_type),
            kl_penalty: KeyedChoice::of("algorithm.kl_penalty", &algorithm.kl_penalty),
            loss_agg_mode: actor.loss_agg_mode,
            sets_critic: self.critic != Critic::default() || self.trainer.critic_warmup > 0,
        }
    }

    /// Returns the options of the trainer, and adds conflicts between settings to `errors`. `old_logprobs`, which depends on the schedule,
    /// and `threads`, which depends on the placement, are not final here; the caller replaces both.
    pub(super) fn trainer_config(&self, errors: &mut Vec<RecipeError>) -> TrainerConfig {
        let (actor, algorithm) = (&self.actor, &self.algorithm);
        let config = TrainerConfig {
            optimizer: OptimizerConfig {
                learning_rate: LearningRate {
                    peak: actor.lr,
                    warmup_steps: actor.lr_warmup_steps,
                    decay: or_default(self.decay(), errors),
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
            old_logprobs: OldLogprobs::Trainer,
            rollout_is: or_default(self.rollout_is(), errors),
            rollout_rs: or_default(self.rollout_rs(), errors),
            kl_loss_coef: if actor.use_kl_loss { actor.kl_loss_coef } else { 0.0 },
            kl_loss_type: Choice::of(&actor.kl_loss_type),
            use_bias_correction_kl: actor.use_bias_correction_kl,
            reward_kl: algorithm.use_kl_in_reward.then(|| Choice::of(&algorithm.kl_penalty)),
            entropy_coeff: actor.entropy_coeff,
            temperature: self.rollout.temperature,
            critic: None,
            mini_batches: or_default(self.mini_batches(), errors),
            micro_batch_tokens: actor.ppo_max_token_len,
            dtype: actor.dtype,
            threads: actor.threads.unwrap_or(1),
            deterministic: self.trainer.deterministic,
        };
        errors.extend(check_replicas(&config, self.trainer.workers).err());
        config
    }

    /// Returns the division of a step into several updates, or `None` for one update per step. Rejects a mini-batch that is larger than the
    /// step, and batch-normalized importance weights if a step has several updates.
    fn mini_batches(&self) -> Result<Option<MiniBatches>, RecipeError> {
        let (all, epochs) = (self.data.train_batch_size, self.actor.ppo_epochs);
        let prompts = self.actor.ppo_mini_batch_size.unwrap_or(all);
        if prompts > all {
            let expected = format!("at most {all}, data.train_batch_size");
            return Err(out_of_bounds(MINI_BATCH, expected, prompts));
        }
        if prompts == all && epochs == 1 {
            return Ok(None);
        }
        let weights = &self.algorithm.rollout_correction;
        if weights.rollout_is_batch_normalize {
            let expected =
                "false with several updates per step (actor.ppo_mini_batch_size, actor.ppo_epochs)";
            let key = "algorithm.rollout_correction.rollout_is_batch_normalize";
            return Err(out_of_bounds(key, expected, true));
        }
        Ok(Some(MiniBatches { prompts, epochs }))
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

    /// Returns the policy loss with its options and their recipe keys. With `loss_type = "reinforce"`, it is `REINFORCE_LOSS`.
    pub(super) fn policy_loss(&self) -> KeyedChoice {
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
        let keyed = keyed.into_iter().filter_map(keyed_number).collect();
        let section = "actor.policy_loss";
        if self.is_reinforce() {
            let key = "algorithm.rollout_correction.loss_type";
            return KeyedChoice { key, section, choice: Choice::of(REINFORCE_LOSS), keyed };
        }
        let choice = choice(&actor.policy_loss.loss_mode, &actor.policy_loss.options);
        KeyedChoice { key: "actor.policy_loss.loss_mode", section, choice, keyed }
    }

    /// Returns the advantage estimator with its options and their recipe keys.
    fn adv_estimator(&self) -> KeyedChoice {
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

    /// Returns the rollout engine with its options and their recipe keys.
    fn engine(&self) -> KeyedChoice {
        let (servers, server_timeout) = (&self.rollout.servers, &self.rollout.server_timeout);
        let servers = (!servers.is_empty()).then(|| KeyedOption {
            key: "rollout.servers",
            option: "servers",
            value: servers.as_slice().into(),
        });
        let serve = self.rollout.serve.as_ref().map(|serve| KeyedOption {
            key: "rollout.serve",
            option: "serve",
            value: serde_json::to_value(serve).expect("invariant: texts and numbers"),
        });
        let timeout = keyed_number(("rollout.server_timeout", "server_timeout", *server_timeout));
        KeyedChoice {
            key: "rollout.engine",
            section: "rollout.engine_options",
            choice: choice(&self.rollout.engine, &self.rollout.engine_options),
            keyed: servers.into_iter().chain(serve).chain(timeout).collect(),
        }
    }

    /// Returns the KL penalty of the rewards in its initial state, or `None` if `algorithm.use_kl_in_reward` is `false`.
    pub(super) fn reward_kl(&self) -> Option<KlController> {
        let control = &self.algorithm.kl_ctrl;
        let kind = if control.r#type == KlControlType::Adaptive {
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
