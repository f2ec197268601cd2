//! The loss of a critic.

use tch::{TchError, Tensor};

/// The value loss of tokens. All tensors are `[tokens]`.
#[derive(Debug)]
pub struct ValueLoss {
    /// The loss, with a gradient to the predictions.
    pub loss: Tensor,
    /// `true` where the loss of the clipped prediction is the larger one; `Bool`.
    pub clipped: Tensor,
}

/// Returns PPO's clipped value loss: `max((v - R)^2, (clip(v, V - c, V + c) - R)^2) / 2`. `v` is the prediction, `V` the prediction before
/// the update, `R` the return, and `c` is `cliprange` (Schulman et al. 2017, as in the authors' code). All tensors are `[tokens]`.
///
/// # Errors
/// Returns an error if an operation fails, for example because the tensors are on different devices.
pub fn value_loss(
    predicted: &Tensor,
    before: &Tensor,
    returns: &Tensor,
    cliprange: f64,
) -> Result<ValueLoss, TchError> {
    let near = before.f_add(&predicted.f_sub(before)?.f_clamp(-cliprange, cliprange)?)?;
    let plain = predicted.f_sub(returns)?.f_square()?;
    let bounded = near.f_sub(returns)?.f_square()?;
    Ok(ValueLoss {
        loss: plain.f_maximum(&bounded)?.f_mul_scalar(0.5)?,
        clipped: bounded.f_gt_tensor(&plain)?,
    })
}
