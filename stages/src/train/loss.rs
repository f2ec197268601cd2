//! Losses of tokens as functions of tensors: no model, no batch, no state.
//!
//! Every tensor is packed, `[tokens]`: the response tokens of some sequences end to end, those without loss left out. Nothing here
//! is averaged; [`Aggregation`](super::config::Aggregation) says with which factor each token enters the sum. The formulas are
//! those of verl's `core_algos`, and are tested against its numbers and gradients.

use tch::{TchError, Tensor};

use super::config::{KlPenalty, PolicyLoss};

/// Log-ratios are clamped here before they are exponentiated, as in verl.
const LOG_RATIO_LIMIT: f64 = 20.0;
/// The k3 estimator is clamped here, as in verl.
const KL_LIMIT: f64 = 10.0;

/// The policy loss of each token and what it was made of; all `[tokens]`.
#[derive(Debug)]
pub struct TokenLoss {
    /// The loss; the gradient flows through it to the log-probabilities.
    pub loss: Tensor,
    /// Whether the clipped ratio decided, `Bool`.
    pub clipped: Tensor,
    /// Whether the dual clip decided, `Bool`.
    pub clipped_lower: Tensor,
    /// Log-ratio of the policy to the one that sampled, clamped.
    pub log_ratio: Tensor,
}

impl PolicyLoss {
    /// The loss of tokens with log-probability `logprobs` under the policy and `old` when they were sampled.
    ///
    /// # Errors
    /// If the tensors differ in shape, kind or device.
    pub fn tokens(
        &self,
        logprobs: &Tensor,
        old: &Tensor,
        advantages: &Tensor,
    ) -> Result<TokenLoss, TchError> {
        match *self {
            Self::Vanilla { clip_ratio_low, clip_ratio_high, clip_ratio_c } => {
                let bounds = (1.0 - clip_ratio_low, 1.0 + clip_ratio_high);
                vanilla(logprobs, old, advantages, bounds, clip_ratio_c)
            }
        }
    }
}

/// PPO's clip and dual clip; `bounds` are those of the ratio.
fn vanilla(
    logprobs: &Tensor,
    old: &Tensor,
    advantages: &Tensor,
    bounds: (f64, f64),
    dual: f64,
) -> Result<TokenLoss, TchError> {
    let log_ratio = logprobs.f_sub(old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
    let ratio = log_ratio.f_exp()?;
    let gain = advantages.f_neg()?;
    let plain = gain.f_mul(&ratio)?;
    let bounded = gain.f_mul(&ratio.f_clamp(bounds.0, bounds.1)?)?;
    let upper = plain.f_maximum(&bounded)?;
    let cap = gain.f_mul_scalar(dual)?;
    let negative = advantages.f_lt(0.0)?;
    Ok(TokenLoss {
        loss: upper.f_minimum(&cap)?.f_where_self(&negative, &upper)?,
        clipped: bounded.f_gt_tensor(&plain)?,
        clipped_lower: upper.f_gt_tensor(&cap)?.f_logical_and(&negative)?,
        log_ratio,
    })
}

impl KlPenalty {
    /// The estimate for tokens with log-probability `logprobs` under the policy and `reference` under the reference; `[tokens]`.
    ///
    /// # Errors
    /// If the tensors differ in shape, kind or device.
    pub fn tokens(self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        let log_ratio = logprobs.f_sub(reference)?;
        match self {
            Self::K1 => Ok(log_ratio),
            Self::Abs => log_ratio.f_abs(),
            Self::K2 => half_square(&log_ratio),
            Self::K3 => low_variance(&log_ratio),
            Self::K3Plus => {
                let through = half_square(&log_ratio)?;
                let shift = low_variance(&log_ratio)?.f_sub(&through)?.f_detach()?;
                through.f_add(&shift)
            }
        }
    }
}

fn half_square(log_ratio: &Tensor) -> Result<Tensor, TchError> {
    log_ratio.f_square()?.f_mul_scalar(0.5)
}

fn low_variance(log_ratio: &Tensor) -> Result<Tensor, TchError> {
    let x = log_ratio.f_neg()?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
    x.f_expm1()?.f_sub(&x)?.f_clamp(-KL_LIMIT, KL_LIMIT)
}

/// Log-probability of each target, and entropy of its distribution, from logits `[tokens, vocabulary]`; both `[tokens]`.
///
/// The entropy carries a gradient only if `entropy_grad`, since it doubles what the backward pass keeps.
///
/// # Errors
/// If a target is not in the vocabulary, or the shapes differ.
pub fn log_probs(
    logits: &Tensor,
    targets: &Tensor,
    entropy_grad: bool,
) -> Result<(Tensor, Tensor), TchError> {
    let log_softmax = logits.f_log_softmax(-1, None::<tch::Kind>)?;
    let picked = log_softmax.f_gather(-1, &targets.f_unsqueeze(-1)?, false)?.f_squeeze_dim(-1)?;
    let entropy =
        if entropy_grad { entropy(&log_softmax)? } else { entropy(&log_softmax.f_detach()?)? };
    Ok((picked, entropy))
}

fn entropy(log_softmax: &Tensor) -> Result<Tensor, TchError> {
    log_softmax
        .f_exp()?
        .f_mul(log_softmax)?
        .f_sum_dim_intlist(-1, false, None::<tch::Kind>)?
        .f_neg()
}
