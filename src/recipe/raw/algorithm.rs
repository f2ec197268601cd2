//! The sections of the update: `[algorithm]`, `[actor]` and `[critic]`.

use std::path::PathBuf;

use rollpacker_stages::documented;
use rollpacker_stages::train::config::{Aggregation, Level, Precision};
use serde::{Deserialize, Serialize};
use toml::Table;

use crate::recipe::section::section;

section! {
    /// The section `[algorithm]`: advantages, KL penalty, correction of rollouts, and staleness.
    Algorithm {
        /// Name of the advantage estimator: one of [`advantages`](rollpacker_operators::advantage::advantages), or one that the program
        /// adds. Default: `grpo`. (verl: `algorithm.adv_estimator`)
        adv_estimator: String = "grpo".to_owned(),
        /// `true` if GRPO divides advantages by the standard deviation of the group; `false` gives Dr. GRPO. Default: the default of the
        /// estimator, which is `true` for `grpo`. (verl: `algorithm.norm_adv_by_std_in_grpo`)
        norm_adv_by_std_in_grpo: Option<bool> = None,
        /// Discount factor per token, for estimators with this option, such as `gae` and `reinforce_plus_plus`. In [0, 1]. Default: 1.
        /// (verl: `algorithm.gamma`)
        gamma: Option<f64> = None,
        /// Lambda of generalized advantage estimation. In [0, 1]. Default: 1. (verl: `algorithm.lam`)
        lam: Option<f64> = None,
        /// Further options of the advantage estimator. Default: none.
        adv_options: Table = Table::new(),
        /// `true` to subtract a KL penalty from the rewards: the divergence of the policy from the initial policy. Default: `false`. (verl:
        /// `algorithm.use_kl_in_reward`)
        use_kl_in_reward: bool = false,
        /// Estimator of the KL divergence in the rewards: `kl`, `abs`, `mse`, `low_var_kl`, or one that the program adds. A value other
        /// than the default needs `use_kl_in_reward`. Default: `kl`. (verl: `algorithm.kl_penalty`)
        kl_penalty: String = "kl".to_owned(),
        /// Coefficient of the KL penalty in the rewards. Values other than the defaults need `use_kl_in_reward`. (verl:
        /// `algorithm.kl_ctrl`)
        kl_ctrl: KlCtrl = KlCtrl::default(),
        /// Correction for the difference between the engine's and the trainer's policy. (verl: `algorithm.rollout_correction`)
        rollout_correction: RolloutCorrection = RolloutCorrection::default(),
        /// Maximum number of steps by which the sampling policy may lag behind the trained policy, from 0 to 65,536. The default, 0, is
        /// on-policy. (TRL: `max_staleness`)
        staleness: u64 [steps] = 0,
    }
}

section! {
    /// The section `[algorithm.kl_ctrl]`: the coefficient of the KL penalty in rewards.
    KlCtrl {
        /// Rule that sets the coefficient: `fixed`, the default, keeps it constant; `adaptive` raises it while the divergence is above
        /// `target_kl`, and lowers it while the divergence is below. (verl: `algorithm.kl_ctrl.type`)
        r#type: KlControlType = KlControlType::Fixed,
        /// The fixed coefficient, or the initial value of an adaptive coefficient. From 0 to 1e6; default 0.001. (verl:
        /// `algorithm.kl_ctrl.kl_coef`)
        kl_coef: f64 = 0.001,
        /// Horizon of an adaptive coefficient. A step multiplies the coefficient by `1 + error * responses / horizon`, but by at least 0.1;
        /// `error` is the relative error of the divergence, clipped to [-0.2, 0.2]. With the type `fixed`, only the default is accepted.
        /// From 1 to 1e12; default 10,000. (verl: `algorithm.kl_ctrl.horizon`)
        horizon: f64 [responses] = 10_000.0,
        /// Target divergence of an adaptive coefficient, nats per token. With the type `fixed`, only the default is accepted. From 1e-9 to
        /// 1e6; default 0.1. (verl: `algorithm.kl_ctrl.target_kl`)
        target_kl: f64 [nats per token] = 0.1,
    }
}

section! {
    /// The section `[algorithm.rollout_correction]`: correction for the difference between the engine's and the trainer's policy.
    RolloutCorrection {
        /// Level of the importance weights between engine and trainer: `token` or `sequence`. Excludes `bypass_mode = true`, unless
        /// `loss_type` is `reinforce`. Default: no weights. (verl: `algorithm.rollout_correction.rollout_is`)
        rollout_is: Option<Level> = None,
        /// Upper bound of the weights, from 1 to 1e6; or a band `low_high` of numbers from 1e-6 to 1e6, outside of which a weight is 0.
        /// Needs `rollout_is`. Default: 2. (verl: `algorithm.rollout_correction.rollout_is_threshold`)
        rollout_is_threshold: IsThreshold = IsThreshold::Above(2.0),
        /// `true` to divide the weights by their mean over the step, after the threshold. Needs `rollout_is`. Default: `false`. Excludes
        /// `actor.use_kl_loss`, `actor.entropy_coeff` and several updates per step. (verl:
        /// `algorithm.rollout_correction.rollout_is_batch_normalize`)
        rollout_is_batch_normalize: bool = false,
        /// Rules that reject tokens (`token_k1`, `token_k2`, `token_k3`) or sequences (`seq_sum_*`, `seq_mean_*`, `seq_max_k2`,
        /// `seq_max_k3`) for which engine and trainer differ too much; several are separated by commas. Default: no rejection. (verl:
        /// `algorithm.rollout_correction.rollout_rs`)
        rollout_rs: Option<String> = None,
        /// Bound of all rules, or one bound for each rule, separated by commas. For `k2` and `k3` it is the maximum divergence in nats
        /// (1e-9 to 1e6). For `k1` it is a band `low_high` of ratios (1e-6 to 1e6) of the engine's to the trainer's probability; a single
        /// number `high` (1 to 1e6) means the band `1 / high` to `high`. Required by `rollout_rs`, and rejected without it. (verl:
        /// `algorithm.rollout_correction.rollout_rs_threshold`)
        rollout_rs_threshold: Option<RsThreshold> = None,
        /// `true` if policy ratios use the engine's log-probabilities instead of the trainer's log-probabilities. Default: `true` if the
        /// sampling policy can differ from the trained policy and `rollout_is` is not set. (verl:
        /// `algorithm.rollout_correction.bypass_mode`)
        bypass_mode: Option<bool> = None,
        /// Policy loss: `ppo_clip` is the loss of `actor.policy_loss`; `reinforce` is the advantage times the log-probability, without
        /// ratio and clip, and `rollout_is` may weight it. `reinforce` excludes `actor.policy_loss` and the options of a policy loss, such
        /// as `actor.clip_ratio`. Requires `bypass_mode = true`. Default: `ppo_clip`. (verl: `algorithm.rollout_correction.loss_type`)
        loss_type: Option<CorrectedLoss> = None,
    }
}

/// The bounds of importance weights. Weights outside of the bounds are truncated or set to 0.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged, expecting = "a number, or a text `low_high`")]
pub enum IsThreshold {
    /// Weights above this value are set to this value.
    Above(f64),
    /// Weights outside of this band, written `low_high`, are set to 0.
    Band(String),
}

/// The bounds of the rules that reject tokens or sequences.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(
    untagged,
    expecting = "a number, or a text of numbers and bands `low_high` separated by commas"
)]
pub enum RsThreshold {
    /// One bound for all rules: the maximum divergence, or for `k1` the ratio `high` of the band from `1 / high` to `high`.
    Number(f64),
    /// Numbers or bands, one for all rules or one for each.
    Text(String),
}

section! {
    /// The section `[actor]`: the trainer, the loss and the optimizer.
    Actor {
        /// Name of the trainer: `torch` (the default), or one that the program [adds](crate::App::trainer). (verl: `actor.strategy`)
        strategy: String = "torch".to_owned(),
        /// Options of the trainer. Default: none. The trainer `torch` has none; its settings are the other keys of this section.
        strategy_options: Table = Table::new(),
        /// Peak learning rate, above 0 and at most 10; default 1e-6. (verl: `actor.optim.lr`; TRL: `learning_rate`)
        lr: f64 = 1e-6,
        /// Number of steps over which the learning rate rises to its peak; default 0. All updates of a step have the same rate. (verl:
        /// `actor.optim.lr_warmup_steps`)
        lr_warmup_steps: u64 [steps] = 0,
        /// Decay of the learning rate after the warm-up: `constant` (the default) stays at the peak, `linear` falls in equal steps, and
        /// `cosine` along half a cosine. `linear` and `cosine` reach 0 after `trainer.total_training_steps`, and need this key. (verl:
        /// `actor.optim.lr_scheduler_type`)
        lr_scheduler_type: LrScheduler = LrScheduler::Constant,
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01. (verl: `actor.optim.weight_decay`)
        weight_decay: f64 = 0.01,
        /// Decay rates of Adam's first and second moment, each in [0, 1); default 0.9 and 0.999. (verl: `actor.optim.betas`)
        betas: (f64, f64) = (0.9, 0.999),
        /// Term that Adam adds to the root of the second moment, above 0; default 1e-8.
        eps: f64 = 1e-8,
        /// Maximum L2 norm of the gradient; larger gradients are scaled down. Above 0, or `inf`; default 1. (verl: `actor.grad_clip`; TRL:
        /// `max_grad_norm`)
        grad_clip: f64 = 1.0,
        /// Name and options of the policy loss.
        policy_loss: PolicyLoss = PolicyLoss::default(),
        /// Sets both `clip_ratio_low` and `clip_ratio_high`. A value that the recipe sets for one of these keys has precedence. The policy
        /// loss must have both options. (verl: `actor.clip_ratio`)
        clip_ratio: Option<f64> = None,
        /// Lower clip range: ratios are clipped at 1 minus this value. The policy loss must have this option. Default: the value of the
        /// policy loss. (verl: `actor.clip_ratio_low`; TRL: `epsilon`)
        clip_ratio_low: Option<f64> = None,
        /// Upper clip range: ratios are clipped at 1 plus this value. The policy loss must have this option. Default: the value of the
        /// policy loss. (verl: `actor.clip_ratio_high`; TRL: `epsilon_high`)
        clip_ratio_high: Option<f64> = None,
        /// Second clip (dual clip): the maximum ratio for negative advantages. The policy loss must have this option. Default: the value of
        /// the policy loss. (verl: `actor.clip_ratio_c`; TRL: `delta`)
        clip_ratio_c: Option<f64> = None,
        /// Temperature of SAPO's gate for positive advantages, from 0.001 to 1000. Default: the value of the policy loss, 1.0 for `sapo`.
        /// (verl: `actor.tau_pos`)
        tau_pos: Option<f64> = None,
        /// Temperature of SAPO's gate for advantages of at most 0, from 0.001 to 1000. Default: the value of the policy loss, 1.05 for
        /// `sapo`. (verl: `actor.tau_neg`)
        tau_neg: Option<f64> = None,
        /// Aggregation of token losses: `token-mean` gives all tokens the same weight, `seq-mean-token-mean` all responses.
        /// `seq-mean-token-sum` weights a response by its length, `seq-mean-token-sum-norm` by its length divided by `loss_scale_factor`.
        /// Default: `token-mean`, unless the policy loss requires another mode. (verl: `actor.loss_agg_mode`)
        loss_agg_mode: Option<Aggregation> = None,
        /// Divisor of `seq-mean-token-sum-norm`, from 1e-6 to 1e12. Must not be set with other values of `loss_agg_mode`, unless
        /// `critic.loss_agg_mode` is `seq-mean-token-sum-norm`. Default: `data.max_response_length`. (verl: `actor.loss_scale_factor`)
        loss_scale_factor: Option<f64> = None,
        /// `true` to add the KL divergence from the initial policy to the loss. Default: `false`. (verl: `actor.use_kl_loss`)
        use_kl_loss: bool = false,
        /// Coefficient of the KL divergence in the loss, from 0 to 1e6; default 0.001. Without `use_kl_loss`, only 0 and the default are
        /// accepted. (verl: `actor.kl_loss_coef`; TRL: `beta`)
        kl_loss_coef: f64 = 0.001,
        /// Estimator of the KL divergence in the loss: `kl`, `abs`, `mse`, `low_var_kl`, or one that the program adds; `kl+`, `abs+` and
        /// `low_var_kl+` have the gradient of `mse`. A value other than the default needs `use_kl_loss`. Default: `low_var_kl`. (verl:
        /// `actor.kl_loss_type`)
        kl_loss_type: String = "low_var_kl".to_owned(),
        /// `true` to multiply the KL divergence in the loss by the policy ratio. Needs `use_kl_loss`. Default: `false`. (TRL:
        /// `use_bias_correction_kl`)
        use_bias_correction_kl: bool = false,
        /// Coefficient of the entropy bonus, from 0 to 1e6; default 0. (verl: `actor.entropy_coeff`)
        entropy_coeff: f64 = 0.0,
        /// Number of prompts of an update, at least 1 and at most `data.train_batch_size`, which is the default: one update per step. A
        /// smaller number divides the step into several updates, which begin when the round is complete. Needs one worker. (verl:
        /// `actor.ppo_mini_batch_size`)
        ppo_mini_batch_size: Option<usize> [prompts] = None,
        /// Number of passes over the responses of a step, at least 1; default 1. Each pass makes the updates of `ppo_mini_batch_size`.
        /// Needs one worker if above 1. (verl: `actor.ppo_epochs`)
        ppo_epochs: u32 [passes] = 1,
        /// Maximum number of tokens of a packed micro-batch, at least 1; default 4096. A longer sequence is a micro-batch of its own. (verl:
        /// `actor.ppo_max_token_len_per_gpu`)
        ppo_max_token_len: usize [tokens] = 4096,
        /// Precision of the matrix products of the trainer's layers: `float32`, the default, or `bfloat16` with float32 accumulation.
        /// Weights, gradients, moments, attention and logits are float32 in any case. `bfloat16` is faster on GPUs and on CPUs with AVX-512
        /// BF16 or AMX, and slower on others. TRL's `bf16 = true` is `bfloat16`.
        dtype: Precision = Precision::Float32,
        /// Number of CPU threads that train. Up to 8 of them compute micro-batches of their own, each with a gradient in memory; tensor
        /// operations use the rest, but not in deterministic mode. From 1 to 1024. Default: the number of cores divided by
        /// `trainer.workers`; 1 with a `placement.kind` other than `fixed`, because such a placement gives the trainer the threads of
        /// instances.
        threads: Option<usize> [threads] = None => resumable,
    }
}

documented! {
    /// The section `[actor.policy_loss]`: the name of the policy loss, and the options that have no key in `[actor]`.
    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    pub struct PolicyLoss {
        /// Name of the policy loss: a built-in loss such as `vanilla`, `gspo` or `cispo`, or one that the program adds. Default: `vanilla`.
        /// (verl: `actor.policy_loss.loss_mode`)
        #[serde(default = "vanilla")]
        pub loss_mode: String,
        /// Further options of the policy loss. Default: none.
        #[serde(flatten)]
        pub options: Table,
    }
}

impl Default for PolicyLoss {
    fn default() -> Self {
        Self { loss_mode: vanilla(), options: Table::new() }
    }
}

fn vanilla() -> String {
    "vanilla".to_owned()
}

section! {
    /// The section `[critic]`: the value model, for advantage estimators that need values. Other estimators reject values that differ from
    /// the defaults.
    Critic {
        /// Folder of the model in Hugging Face format. Default: `model.path`.
        path: Option<PathBuf> = None,
        /// Peak learning rate, above 0 and at most 10; default 1e-5. (verl: `critic.optim.lr`)
        lr: f64 = 1e-5,
        /// Number of updates over which the learning rate rises to its peak; default 0.
        lr_warmup_steps: u64 [updates] = 0,
        /// Decoupled weight decay of AdamW, from 0 to 1000; default 0.01.
        weight_decay: f64 = 0.01,
        /// Decay rates of Adam's first and second moment, each in [0, 1); default 0.9 and 0.999.
        betas: (f64, f64) = (0.9, 0.999),
        /// Term that Adam adds to the root of the second moment, above 0; default 1e-8.
        eps: f64 = 1e-8,
        /// Maximum L2 norm of the gradient; larger gradients are scaled down. Above 0, or `inf`; default 1.
        grad_clip: f64 = 1.0,
        /// Maximum distance of a predicted value from the prediction before the update, above 0; default 0.5. (verl:
        /// `critic.cliprange_value`)
        cliprange_value: f64 = 0.5,
        /// Aggregation of token losses, as in `actor.loss_agg_mode`. Default: `token-mean`. (verl: `critic.loss_agg_mode`)
        loss_agg_mode: Aggregation = Aggregation::TokenMean,
    }
}

/// The rule that sets the coefficient of the KL penalty in rewards.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum KlControlType {
    /// The coefficient is constant.
    Fixed,
    /// The coefficient rises while the divergence is above its target, and falls while it is below.
    Adaptive,
}

/// The policy loss with `bypass_mode = true`, where policy ratios use the engine's log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorrectedLoss {
    /// The loss of `actor.policy_loss`.
    PpoClip,
    /// The advantage times the log-probability, without ratio and clip.
    Reinforce,
}

/// The decay of the learning rate after the warm-up.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LrScheduler {
    /// The rate stays at its peak.
    Constant,
    /// The rate falls to 0 in equal steps.
    Linear,
    /// The rate falls to 0 along half a cosine.
    Cosine,
}
