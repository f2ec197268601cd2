//! What a trainer is told: the optimizer, the loss and its aggregation, in the names that verl's users know.
//!
//! Plain values without libtorch, so that recipes resolve and validate in every build. The bounds stated here are checked where a
//! recipe is resolved; a trainer relies on them.

use serde::{Deserialize, Serialize};

use super::learning_rate::LearningRate;
use crate::catalog::Choice;

/// Adam with decoupled weight decay, and what happens to a gradient before it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct OptimizerConfig {
    /// Learning rate over the updates.
    pub learning_rate: LearningRate,
    /// Decay of the first and second moment, each in `[0, 1)`.
    pub betas: (f64, f64),
    /// Added to the root of the second moment; positive.
    pub eps: f64,
    /// Decoupled weight decay of every parameter, times the learning rate; at least 0.
    pub weight_decay: f64,
    /// Longest gradient (L2 norm over all parameters); positive, infinite for no clipping.
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

/// What `TorchTrainer` optimises, and how.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerConfig {
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The policy loss of a token, out of `loss::policy_losses`.
    pub policy_loss: Choice,
    /// How the losses of tokens become one number, unless the policy loss fixes it.
    pub loss_agg_mode: Aggregation,
    /// What [`Aggregation::SeqMeanTokenSumNorm`] divides by, in tokens: the longest allowed response. Positive; unused otherwise.
    pub loss_scale_factor: f64,
    /// What ratios are against.
    pub old_logprobs: OldLogprobs,
    /// Weights of tokens for the difference between the engine's policy and the old one, if any.
    pub rollout_is: Option<RolloutIs>,
    /// Factor of the KL divergence from the initial weights in the loss; at least 0. At 0 the loss needs no reference model.
    pub kl_loss_coef: f64,
    /// Estimator of that divergence, out of `loss::kl_estimators`.
    pub kl_loss_type: Choice,
    /// Whether that estimate is multiplied by the ratio, which makes it one of the policy instead of the old one (TRL's
    /// `use_bias_correction_kl`).
    pub use_bias_correction_kl: bool,
    /// Estimator of the divergence that rewards are lessened by, if they are; from what `inference` gives.
    pub reward_kl: Option<Choice>,
    /// Factor of the entropy bonus; at least 0.
    pub entropy_coeff: f64,
    /// Temperature of sampling, by which logits are divided before the log-softmax; positive, and the same as the engine's.
    pub temperature: f64,
    /// A second model that predicts returns, if advantages need one.
    pub critic: Option<CriticConfig>,
    /// Tokens of a packed micro-batch, prompts included; at least 1. A longer sequence makes a micro-batch of its own.
    pub micro_batch_tokens: usize,
    /// Threads of one tensor operation on the CPU; at least 1.
    pub threads: usize,
    /// Whether an update is the same to the bit for any order of arrival and any number of replicas. Each prompt's responses then make
    /// micro-batches of their own, and gradients are added in fixed point; for the CPU only.
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
            kl_loss_coef: 0.0,
            kl_loss_type: Choice::of("low_var_kl"),
            use_bias_correction_kl: false,
            reward_kl: None,
            entropy_coeff: 0.0,
            temperature: 1.0,
            critic: None,
            micro_batch_tokens: 4096,
            threads: 1,
            deterministic: false,
        }
    }
}

impl TrainerConfig {
    /// Whether a copy of the initial weights is held.
    #[must_use]
    pub fn needs_reference(&self) -> bool {
        self.kl_loss_coef > 0.0 || self.reward_kl.is_some()
    }

    /// Whether advantages wait for what the trainer's models say of responses.
    #[must_use]
    pub fn infers(&self) -> bool {
        self.reward_kl.is_some() || self.critic.is_some()
    }
}

/// A critic: a decoder with one output, trained on returns.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct CriticConfig {
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// Predictions count up to this far from those before the update; positive.
    pub cliprange_value: f64,
    /// How the losses of tokens become one number.
    pub loss_agg_mode: Aggregation,
    /// Steps at the start in which the critic alone is trained.
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

/// The policy that the ratios of a policy loss are against.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum OldLogprobs {
    /// The one that sampled, by the engine's numbers (verl's `bypass_mode`).
    #[default]
    Engine,
    /// The one that the step began with, by the trainer's numbers. With one update a step these are the numbers of the loss itself: the
    /// ratio is 1, and its gradient the policy gradient.
    Trainer,
}

/// Importance sampling between the engine's numbers and the old log-probabilities.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct RolloutIs {
    /// What a weight is of.
    pub level: Level,
    /// What becomes of large and small weights.
    pub threshold: Threshold,
}

/// What an importance weight is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// A token.
    Token,
    /// A sequence: the product over its tokens.
    Sequence,
}

/// What becomes of large and small importance weights.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub enum Threshold {
    /// They count up to this; at least 1.
    Above(f64),
    /// Out of this band they are 0; both positive, the first at most the second.
    Outside(f64, f64),
}

/// How the losses of tokens become one number: a numerator over a denominator, both sums over responses.
///
/// A response of weight `w` with the token losses `l_1 .. l_n` adds to each, where `s` is the scale:
///
/// | | numerator | denominator |
/// |---|---|---|
/// | `token-mean` | `w sum(l)` | `w n` |
/// | `seq-mean-token-sum` | `w sum(l)` | `w` |
/// | `seq-mean-token-mean` | `w sum(l) / n` | `w` |
/// | `seq-mean-token-sum-norm` | `w sum(l) / s` | `w` |
///
/// Both are sums, so that a step can be accumulated in any order and any pieces, and divided once. Empty responses add nothing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Aggregation {
    /// Every token counts alike (DAPO).
    #[default]
    TokenMean,
    /// Responses count by their length.
    SeqMeanTokenSum,
    /// Every response counts alike (GRPO as first published).
    SeqMeanTokenMean,
    /// Responses count by their length over a constant (Dr. GRPO).
    SeqMeanTokenSumNorm,
}

impl std::fmt::Display for Aggregation {
    /// As recipes name it.
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
    /// The factor of each token loss of a response of `tokens` tokens in the numerator, for weight 1.
    #[must_use]
    pub fn coefficient(self, tokens: usize, scale: f64) -> f64 {
        match self {
            Self::TokenMean | Self::SeqMeanTokenSum => 1.0,
            Self::SeqMeanTokenMean => 1.0 / tokens.max(1) as f64,
            Self::SeqMeanTokenSumNorm => 1.0 / scale,
        }
    }

    /// What a response of `tokens` tokens adds to the denominator, for weight 1.
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
    fn an_empty_response_measures_nothing() {
        assert_eq!(Aggregation::TokenMean.measure(0), 0.0);
        assert_eq!(Aggregation::SeqMeanTokenMean.measure(0), 0.0);
    }
}
