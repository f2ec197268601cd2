//! The loss of a critic.

use tch::{TchError, Tensor};

/// The value loss of tokens; all `[tokens]`.
#[derive(Debug)]
pub struct ValueLoss {
    /// The loss; the gradient flows through it to the predictions.
    pub loss: Tensor,
    /// Whether the clipped prediction decided, `Bool`.
    pub clipped: Tensor,
}

/// PPO's clipped value loss: `max((v - R)^2, (clip(v, V - c, V + c) - R)^2) / 2`, where `v` is predicted now, `V` was before the update,
/// `R` is the return and `c` is `cliprange` (Schulman et al. 2017, as in the authors' code).
///
/// # Errors
/// If the tensors differ in shape, kind or device.
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
