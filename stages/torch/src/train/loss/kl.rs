//! Estimators of the KL divergence of the policy from a reference, from single sampled tokens (Schulman 2020). In the formulas, `p` is the
//! probability of the sampled token under the policy, and `r` is its probability under the reference.

use std::fmt::Debug;
use std::sync::Arc;

use tch::{TchError, Tensor};

use super::LOG_RATIO_LIMIT;

/// The bound to which the k3 estimator is clamped, as in verl.
const K3_LIMIT: f64 = 10.0;

/// An estimator of the KL divergence of the policy from a reference.
///
/// # Contract
/// The estimate of a token must not depend on other tokens.
///
/// # Example
/// ```
/// use rollpacker_torch::train::loss::{K1, KlEstimator};
/// use tch::{TchError, Tensor};
///
/// /// [`K1`] between -1 and 1.
/// #[derive(Debug)]
/// struct Clamped;
///
/// impl KlEstimator for Clamped {
///     fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
///         K1.tokens(logprobs, reference)?.f_clamp(-1.0, 1.0)
///     }
/// }
///
/// let logprobs = Tensor::from_slice(&[-0.5, -1.0, -4.0]);
/// let reference = Tensor::from_slice(&[-2.5, -1.25, -1.0]);
/// let estimates = Clamped.tokens(&logprobs, &reference).and_then(Vec::<f64>::try_from);
/// assert_eq!(estimates.expect("equal shapes"), [1.0, 0.25, -1.0]);
/// ```
pub trait KlEstimator: Debug + Send + Sync {
    /// Returns the estimate of each token from its log-probabilities, in nats: `logprobs` under the policy, `reference` under the
    /// reference. All tensors are `[tokens]`.
    ///
    /// # Errors
    /// Returns an error if an operation fails, for example because the tensors are on different devices.
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError>;
}

/// A KL estimator that the threads of a trainer share.
pub type SharedKl = Arc<dyn KlEstimator>;

/// `log p - log r`: unbiased, with high variance. As a loss on-policy, its gradient is 0 on average.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct K1;

impl KlEstimator for K1 {
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        logprobs.f_sub(reference)
    }
}

/// `|log p - log r|`: biased, never negative.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Abs;

impl KlEstimator for Abs {
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        logprobs.f_sub(reference)?.f_abs()
    }
}

/// `(log p - log r)^2 / 2`: biased, with low variance. On-policy, its gradient is on average the gradient of the divergence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct K2;

impl KlEstimator for K2 {
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        logprobs.f_sub(reference)?.f_square()?.f_mul_scalar(0.5)
    }
}

/// `r/p - 1 - log(r/p)`: never negative, with low variance, and unbiased except for the clamps. As in verl, `log(r/p)` is clamped to
/// [-20, 20] and the estimate to at most 10.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct K3;

impl KlEstimator for K3 {
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        let x = reference.f_sub(logprobs)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)?;
        x.f_expm1()?.f_sub(&x)?.f_clamp(-K3_LIMIT, K3_LIMIT)
    }
}

/// The value of an estimator, with the gradient of [`K2`]. On-policy, this gradient is on average the gradient of the divergence.
#[derive(Clone, Debug)]
pub struct StraightThrough(pub SharedKl);

impl KlEstimator for StraightThrough {
    fn tokens(&self, logprobs: &Tensor, reference: &Tensor) -> Result<Tensor, TchError> {
        let through = K2.tokens(logprobs, reference)?;
        let shift = self.0.tokens(logprobs, reference)?.f_sub(&through)?.f_detach()?;
        through.f_add(&shift)
    }
}
