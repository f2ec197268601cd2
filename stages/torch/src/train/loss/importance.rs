//! Truncated importance sampling between the engine's policy and the trained policy.

use rollpacker_stages::train::config::{Level, RolloutIs, Threshold};
use tch::{TchError, Tensor};

use super::{LOG_RATIO_LIMIT, Segments};

/// Returns the weight of each token in the policy loss, without gradient: `exp(old - rollout)` of the token or of its sequence. It is
/// truncated (Yao et al. 2025, TIS) or, outside of a band, set to 0 (IcePop). `old` and `rollout` are log-probabilities of the trainer
/// and of the engine. All tensors are `[tokens]`.
///
/// # Errors
/// If the tensors differ in shape, kind or device.
pub fn importance_weights(
    options: &RolloutIs,
    old: &Tensor,
    rollout: &Tensor,
    segments: &Segments,
) -> Result<Tensor, TchError> {
    let difference = old.f_detach()?.f_sub(rollout)?;
    let log_ratio = match options.level {
        Level::Token => difference,
        Level::Sequence => segments.spread(&segments.sums(&difference)?)?,
    };
    let weights = log_ratio.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?.f_exp()?;
    match options.threshold {
        Threshold::Above(most) => weights.f_clamp_max(most),
        Threshold::Outside(least, most) => {
            let within = weights.f_ge(least)?.f_logical_and(&weights.f_le(most)?)?;
            weights.f_mul(&within.f_to_kind(weights.kind())?)
        }
    }
}
