//! What a trainer is told: the optimizer, the loss and its aggregation, in the names that verl's users know.
//!
//! Plain values without libtorch, so that recipes resolve and validate in every build. The bounds stated here are checked where a
//! recipe is resolved; a trainer relies on them.

use serde::{Deserialize, Serialize};

use super::learning_rate::LearningRate;

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
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TrainerConfig {
    /// The optimizer.
    pub optimizer: OptimizerConfig,
    /// The policy loss of a token.
    pub policy_loss: PolicyLoss,
    /// How the losses of tokens become one number.
    pub loss_agg_mode: Aggregation,
    /// What [`Aggregation::SeqMeanTokenSumNorm`] divides by, in tokens: the longest allowed response. Positive; unused otherwise.
    pub loss_scale_factor: f64,
    /// Factor of the KL divergence from the initial weights; at least 0. At 0 no reference model is held.
    pub kl_loss_coef: f64,
    /// Estimator of that divergence.
    pub kl_loss_type: KlPenalty,
    /// Factor of the entropy bonus; at least 0.
    pub entropy_coeff: f64,
    /// Temperature of sampling, by which logits are divided before the log-softmax; positive, and the same as the engine's.
    pub temperature: f64,
    /// Tokens of a packed micro-batch, prompts included; at least 1. A longer sequence makes a micro-batch of its own.
    pub micro_batch_tokens: usize,
    /// Threads of one tensor operation on the CPU; at least 1.
    pub threads: usize,
}

impl Default for TrainerConfig {
    fn default() -> Self {
        Self {
            optimizer: OptimizerConfig::default(),
            policy_loss: PolicyLoss::default(),
            loss_agg_mode: Aggregation::TokenMean,
            loss_scale_factor: 512.0,
            kl_loss_coef: 0.0,
            kl_loss_type: KlPenalty::K3,
            entropy_coeff: 0.0,
            temperature: 1.0,
            micro_batch_tokens: 4096,
            threads: 1,
        }
    }
}

/// The policy loss of a token, from its log-probability now and when it was sampled.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "loss_mode", rename_all = "snake_case")]
pub enum PolicyLoss {
    /// PPO's clipped ratio (Schulman et al. 2017, eq. 7), with a second clip for negative advantages (Ye et al. 2020, eq. 5).
    Vanilla {
        /// The ratio counts down to `1 - clip_ratio_low`; in `[0, 1]`.
        clip_ratio_low: f64,
        /// The ratio counts up to `1 + clip_ratio_high`; at least 0.
        clip_ratio_high: f64,
        /// The loss of a token with advantage `a < 0` is at most `-a` times this; more than 1.
        clip_ratio_c: f64,
    },
}

impl Default for PolicyLoss {
    fn default() -> Self {
        Self::Vanilla { clip_ratio_low: 0.2, clip_ratio_high: 0.2, clip_ratio_c: 3.0 }
    }
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

/// An estimator of the KL divergence of the policy from a reference, of one sampled token (Schulman 2020).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum KlPenalty {
    /// `log p - log r`.
    #[serde(rename = "k1", alias = "kl")]
    K1,
    /// `|log p - log r|`.
    #[serde(rename = "abs")]
    Abs,
    /// `(log p - log r)^2 / 2`.
    #[serde(rename = "k2", alias = "mse")]
    K2,
    /// `r/p - 1 - log(r/p)`; never negative, of low variance.
    #[default]
    #[serde(rename = "low_var_kl", alias = "k3")]
    K3,
    /// The value of [`K3`](Self::K3) with the gradient of [`K2`](Self::K2), which is unbiased on policy.
    #[serde(rename = "low_var_kl+", alias = "k3+")]
    K3Plus,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_verl() {
        for (name, kind) in
            [("low_var_kl", KlPenalty::K3), ("kl", KlPenalty::K1), ("mse", KlPenalty::K2)]
        {
            assert_eq!(serde_json::from_value::<KlPenalty>(name.into()).unwrap(), kind, "{name}");
        }
        let aggregation = serde_json::to_value(Aggregation::SeqMeanTokenSumNorm).unwrap();
        assert_eq!(aggregation, "seq-mean-token-sum-norm");
    }

    #[test]
    fn an_empty_response_measures_nothing() {
        assert_eq!(Aggregation::TokenMean.measure(0), 0.0);
        assert_eq!(Aggregation::SeqMeanTokenMean.measure(0), 0.0);
    }
}
