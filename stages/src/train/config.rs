//! The configuration of a trainer: the optimizer, the loss and its aggregation, with verl's names.
//!
//! Plain values without libtorch, so that recipes resolve and validate in every build. The bounds stated here are checked when a recipe is
//! resolved; a trainer relies on them.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::learning_rate::LearningRate;
use crate::catalog::Choice;

pub use super::rollout_correction::{
    Divergence, LOG_RATIO_LIMIT, Level, RejectionUnit, RolloutIs, RolloutRs, Threshold,
};

/// The settings of AdamW and of gradient clipping.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// The learning-rate schedule.
    pub learning_rate: LearningRate,
    /// Decay of the first and second moment, each in `[0, 1)`. Default: 0.9 and 0.999. (verl: `actor.optim.betas`)
    pub betas: (f64, f64),
    /// Added to the square root of the second moment. Must be positive. Default: 1e-8.
    pub eps: f64,
    /// Decoupled weight decay of every parameter, multiplied by the learning rate. At least 0; default 0.01. (verl:
    /// `actor.optim.weight_decay`)
    pub weight_decay: f64,
    /// Maximum L2 norm of the gradient over all parameters; a larger gradient is scaled down. Must be positive; infinity disables clipping;
    /// default 1. (verl: `actor.grad_clip`)
    pub grad_clip: f64,
}

impl Default for OptimizerConfig {
    fn default() -> Self {
        Self {
            learning_rate: LearningRate::default(),
            betas: (0.9, 0.999),
            eps: 1e-8,
            weight_decay: 0.01,
            grad_clip: 1.0,
        }
    }
}

/// The precision of the matrix products of a model's layers, forward and backward.
///
/// Weights, gradients, moments, attention, norms and logits are float32 in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// Factors are float32, and products are accumulated in float32.
    #[default]
    Float32,
    /// Factors are rounded to bfloat16, with a relative error of at most 2^-8, and products are accumulated in float32. The result is
    /// rounded to bfloat16. CPUs with AVX-512 BF16 or AMX and GPUs compute such products several times as fast. An engine whose own kernels
    /// compute the products on a CPU rounds only the weights.
    Bfloat16,
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Float32 => "float32",
            Self::Bfloat16 => "bfloat16",
        })
    }
}

/// The settings of `TorchTrainer`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerConfig {
    /// The settings of the policy's optimizer.
    pub optimizer: OptimizerConfig,
    /// The policy loss of a token, from `loss::policy_losses`. Default: `vanilla`. (verl: `actor.policy_loss.loss_mode`)
    pub policy_loss: Choice,
    /// The aggregation of token losses, unless the policy loss fixes it. Default: `token-mean`. (verl: `actor.loss_agg_mode`)
    pub loss_agg_mode: Aggregation,
    /// The divisor of [`Aggregation::SeqMeanTokenSumNorm`], in tokens: the maximum response length. Must be positive; unused otherwise.
    /// Default: 512. (verl: `actor.loss_scale_factor`)
    pub loss_scale_factor: f64,
    /// The source of the old log-probabilities, against which ratios are computed. Default: `engine`.
    pub old_logprobs: OldLogprobs,
    /// Importance sampling between the engine's policy and the trainer's policy at the start of the step, whatever `old_logprobs` is.
    /// Default: none. (verl: `algorithm.rollout_correction.rollout_is`)
    pub rollout_is: Option<RolloutIs>,
    /// Rules that reject tokens or sequences by the difference between the engine's policy and the trainer's policy at the start of the
    /// step. A token is kept if every rule keeps it. Default: none. (verl: `algorithm.rollout_correction.rollout_rs`)
    #[serde(default)]
    pub rollout_rs: Vec<RolloutRs>,
    /// Coefficient of the KL divergence from the initial weights in the loss. At least 0; default 0. At 0, the loss needs no reference
    /// model. (verl: `actor.kl_loss_coef`)
    pub kl_loss_coef: f64,
    /// Estimator of the KL divergence in the loss, from `loss::kl_estimators`. Default: `low_var_kl`. (verl: `actor.kl_loss_type`)
    pub kl_loss_type: Choice,
    /// `true` to multiply the estimate of the KL divergence in the loss by the probability ratio, so that it estimates the divergence of
    /// the current policy instead of the old policy. Default: `false`. (TRL: `use_bias_correction_kl`)
    pub use_bias_correction_kl: bool,
    /// Estimator of the KL penalty in rewards, which the trainer computes before advantages are estimated. Default: `None`, no penalty.
    /// (verl: `algorithm.kl_penalty`)
    pub reward_kl: Option<Choice>,
    /// Coefficient of the entropy bonus. At least 0; default 0. (verl: `actor.entropy_coeff`)
    pub entropy_coeff: f64,
    /// Sampling temperature. Logits are divided by it before the log-softmax. Must be positive, and equal to the temperature of the engine.
    /// Default: 1. (verl: `rollout.temperature`)
    pub temperature: f64,
    /// A second model that predicts returns, for an advantage estimator that needs one. Default: `None`.
    pub critic: Option<CriticConfig>,
    /// Several updates per step. Default: `None`, one update per step, whose gradient is accumulated while the round still runs.
    #[serde(default)]
    pub mini_batches: Option<MiniBatches>,
    /// The maximum number of tokens of a packed micro-batch, including prompts. At least 1; default 4096. A longer sequence is a
    /// micro-batch of its own.
    pub micro_batch_tokens: usize,
    /// The precision of the matrix products of the layers. Default: float32.
    #[serde(default)]
    pub dtype: Precision,
    /// The number of CPU threads that compute. Up to 8 of them compute micro-batches of their own, each with a gradient in memory. Tensor
    /// operations use the rest, unless the trainer is deterministic: its updates do not depend on the number of threads. At least 1;
    /// default 1.
    pub threads: usize,
    /// `true` to make updates bit-identical for any order of arrival and any number of replicas. Each prompt's responses then form their
    /// own micro-batches, and gradients are added in fixed point. Supported on the CPU only. Default: `false`.
    pub deterministic: bool,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            optimizer: OptimizerConfig::default(),
            policy_loss: Choice::of("vanilla"),
            loss_agg_mode: Aggregation::TokenMean,
            loss_scale_factor: 512.0,
            old_logprobs: OldLogprobs::Engine,
            rollout_is: None,
            rollout_rs: Vec::new(),
            kl_loss_coef: 0.0,
            kl_loss_type: Choice::of("low_var_kl"),
            use_bias_correction_kl: false,
            reward_kl: None,
            entropy_coeff: 0.0,
            temperature: 1.0,
            critic: None,
            mini_batches: None,
            micro_batch_tokens: 4096,
            dtype: Precision::Float32,
            threads: 1,
            deterministic: false,
        }
    }
}

impl TrainerConfig {
    /// Returns `true` if the trainer needs a copy of the initial weights.
    #[must_use]
    pub fn needs_reference(&self) -> bool {
        self.kl_loss_coef > 0.0 || self.reward_kl.is_some()
    }
}

/// The division of a step into several updates (PPO; Schulman et al. 2017, algorithm 1).
///
/// The step is divided by prompts, in the order of their ids, so that a mini-batch depends neither on lengths nor on the order of arrival.
/// The last mini-batch of an epoch may be smaller than the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct MiniBatches {
    /// The number of prompts of an update, with all their responses. At least 1. (verl: `actor.ppo_mini_batch_size`)
    pub prompts: usize,
    /// The number of passes over the step. At least 1. (verl: `actor.ppo_epochs`)
    pub epochs: u32,
}

/// The settings of a critic: a decoder with one output, trained on returns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticConfig {
    /// The settings of the critic's optimizer. The defaults are those of [`OptimizerConfig`], except for a peak learning rate of 1e-5.
    pub optimizer: OptimizerConfig,
    /// Bound on the difference between a prediction and the prediction before the update. Must be positive. Default: 0.5. (verl:
    /// `critic.cliprange_value`)
    pub cliprange_value: f64,
    /// The aggregation of token losses. Default: `token-mean`. (verl: `critic.loss_agg_mode`)
    pub loss_agg_mode: Aggregation,
    /// The number of initial steps in which only the critic is trained. Default: 0. (verl: `trainer.critic_warmup`)
    pub warmup_steps: u64,
}

impl Default for CriticConfig {
    fn default() -> Self {
        let learning_rate = LearningRate { peak: 1e-5, ..LearningRate::default() };
        Self {
            optimizer: OptimizerConfig { learning_rate, ..OptimizerConfig::default() },
            cliprange_value: 0.5,
            loss_agg_mode: Aggregation::TokenMean,
            warmup_steps: 0,
        }
    }
}

/// The old policy, against which the ratios of a policy loss are computed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// The policy that sampled the tokens, with the log-probabilities of the engine (verl's `bypass_mode`).
    #[default]
    Engine,
    /// The policy at the start of the step, with the log-probabilities of the trainer. In the first update of a step, these equal the
    /// log-probabilities in the loss: the ratio is 1, and its gradient is the policy gradient.
    Trainer,
}

/// The aggregation of token losses into one number: a numerator over a denominator, both sums over responses.
///
/// A response of weight `w` with the token losses `l_1 .. l_n` adds the following to each sum, where `s` is the scale:
///
/// | | numerator | denominator |
/// |---|---|---|
/// | `token-mean` | `w sum(l)` | `w n` |
/// | `seq-mean-token-sum` | `w sum(l)` | `w` |
/// | `seq-mean-token-mean` | `w sum(l) / n` | `w` |
/// | `seq-mean-token-sum-norm` | `w sum(l) / s` | `w` |
///
/// Both are sums, so that a step can be accumulated in any order and any batches, and divided once. Empty responses add nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Every token has the same weight (DAPO).
    #[default]
    TokenMean,
    /// The weight of a response is proportional to its length.
    SeqMeanTokenSum,
    /// Every response has the same weight (GRPO as first published).
    SeqMeanTokenMean,
    /// The weight of a response is its length divided by a constant (Dr. GRPO).
    SeqMeanTokenSumNorm,
}

impl std::fmt::Display for Aggregation {
    /// Writes the name that recipes use.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TokenMean => "token-mean",
            Self::SeqMeanTokenSum => "seq-mean-token-sum",
            Self::SeqMeanTokenMean => "seq-mean-token-mean",
            Self::SeqMeanTokenSumNorm => "seq-mean-token-sum-norm",
        })
    }
}

impl Aggregation {
    /// Returns the factor of each token loss in the numerator, for a response of `tokens` tokens and weight 1. `scale` is the divisor of
    /// [`SeqMeanTokenSumNorm`](Self::SeqMeanTokenSumNorm); the other aggregations ignore it.
    #[must_use]
    pub fn coefficient(self, tokens: usize, scale: f64) -> f64 {
        match self {
            Self::TokenMean | Self::SeqMeanTokenSum => 1.0,
            Self::SeqMeanTokenMean => 1.0 / tokens.max(1) as f64,
            Self::SeqMeanTokenSumNorm => 1.0 / scale,
        }
    }

    /// Returns the contribution of a response of `tokens` tokens and weight 1 to the denominator.
    #[must_use]
    pub fn measure(self, tokens: usize) -> f64 {
        match self {
            _ if tokens == 0 => 0.0,
            Self::TokenMean => tokens as f64,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_verl() {
        for mode in [
            Aggregation::TokenMean,
            Aggregation::SeqMeanTokenSum,
            Aggregation::SeqMeanTokenMean,
            Aggregation::SeqMeanTokenSumNorm,
        ] {
            assert_eq!(serde_json::to_value(mode).unwrap(), mode.to_string());
        }
    }

    #[test]
    fn an_empty_response_measures_zero() {
        assert_eq!(Aggregation::TokenMean.measure(0), 0.0);
        assert_eq!(Aggregation::SeqMeanTokenMean.measure(0), 0.0);
    }
}
