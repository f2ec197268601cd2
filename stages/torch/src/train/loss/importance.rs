//! Truncated importance sampling between the engine's policy and the trained policy.

use rollpacker_stages::train::config::{Level, RolloutIs, Threshold};
use tch::{TchError, Tensor};

use super::{LOG_RATIO_LIMIT, Segments};

/// Returns the importance weight of each token in the policy loss, without gradient. The weight is the exponential of a log-ratio, which is
/// `old - rollout` of the token or its sum over the sequence, clamped to [-20, 20]. The weight is then truncated (Yao et al. 2025, TIS), or
/// set to 0 outside of a band (IcePop). `old` and `rollout` are log-probabilities of the trainer and of the engine. All tensors are
/// `[tokens]`.
///
/// # Errors
/// Returns an error if an operation fails, for example because the tensors are on different devices. Also returns an error if `options`
/// weights whole sequences and `segments` has another number of tokens.
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
        Threshold::Above(max) => weights.f_clamp_max(max),
        Threshold::Outside(min, max) => {
            let within = weights.f_ge(min)?.f_logical_and(&weights.f_le(max)?)?;
            weights.f_mul(&within.f_to_kind(weights.kind())?)
        }
    }
}
