//! Token losses as functions of tensors, without model, batch or state.
//!
//! Every tensor is packed, `[tokens]`: the response tokens of some sequences, concatenated; tokens without loss are left out. Token
//! losses are not averaged here: [`Aggregation`] defines the factor of each token in the sum. The formulas follow verl's `core_algos`, and
//! are tested against the values and gradients of verl.

mod builtin;
mod cispo;
mod clip;
mod geo_mean;
mod gpg;
mod gspo;
mod importance;
mod kl;
mod sapo;
mod segments;
mod value;

use std::fmt::Debug;
use std::sync::Arc;

use tch::{TchError, Tensor};

use super::config::{Aggregation, LOG_RATIO_LIMIT};

pub use builtin::{kl_estimators, policy_losses};
pub use cispo::Cispo;
pub use clip::Vanilla;
pub use geo_mean::GeoMean;
pub use gpg::Gpg;
pub use gspo::Gspo;
pub use importance::importance_weights;
pub use kl::{Abs, K1, K2, K3, KlEstimator, SharedKl, StraightThrough};
pub use sapo::Sapo;
pub use segments::Segments;
pub use value::{ValueLoss, value_loss};

/// Tokens of some sequences, as input of a policy loss. All tensors are `[tokens]`.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Log-probabilities under the policy, in nats. They carry the gradient.
    pub logprobs: &'a Tensor,
    /// Log-probabilities under the old policy, in nats: the denominator of ratios.
    pub old: &'a Tensor,
    /// The advantage of each token.
    pub advantages: &'a Tensor,
    /// The assignment of tokens to sequences.
    pub segments: &'a Segments,
}

impl Tokens<'_> {
    /// Returns the log-ratio of the policy to the old policy in nats, clamped to [-20, 20]; `[tokens]`.
    ///
    /// # Errors
    /// Returns an error if an operation fails, for example because the tensors are on different devices.
    pub fn log_ratio(&self) -> Result<Tensor, TchError> {
        self.logprobs.f_sub(self.old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    }
}

/// The output of a policy loss.
#[derive(Debug)]
pub struct TokenLoss {
    /// The loss of each token, `[tokens]`, with a gradient to the log-probabilities.
    pub loss: Tensor,
    /// Metrics by name, each `[tokens]`. They are averaged over the tokens of a step that are not rejected.
    pub metrics: Vec<(&'static str, Tensor)>,
}

/// A policy loss over tokens.
///
/// # Contract
/// The loss of a sequence must not depend on other sequences: sequences are trained on while others are still being generated, in batches
/// that differ from run to run.
///
/// # Example
/// ```
/// use rollpacker_torch::train::loss::{PolicyLoss, Segments, TokenLoss, Tokens};
/// use tch::{Device, TchError, Tensor};
///
/// /// REINFORCE without the tokens whose ratio has left [0.5, 2].
/// #[derive(Debug)]
/// struct Trusted;
///
/// impl PolicyLoss for Trusted {
///     fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError> {
///         let is_near = tokens.log_ratio()?.f_abs()?.f_le(std::f64::consts::LN_2)?;
///         let loss = tokens.logprobs.f_mul(tokens.advantages)?.f_neg()?.f_mul(&is_near)?;
///         let trusted = is_near.f_to_kind(tch::Kind::Double)?;
///         Ok(TokenLoss { loss, metrics: vec![("actor/trusted", trusted)] })
///     }
/// }
///
/// let [logprobs, old, advantages] =
///     [[-0.5, -4.0], [-0.75, -1.0], [2.0, 2.0]].map(|of| Tensor::from_slice(&of));
/// let segments = Segments::new(&[2], Device::Cpu).expect("a sequence of two tokens");
/// let (logprobs, old, advantages, segments) = (&logprobs, &old, &advantages, &segments);
/// let tokens = Tokens { logprobs, old, advantages, segments };
/// let loss = Trusted.tokens(&tokens).and_then(|output| Vec::<f64>::try_from(output.loss));
/// assert_eq!(loss.expect("equal shapes"), [1.0, 0.0]);
/// ```
pub trait PolicyLoss: Debug + Send + Sync {
    /// Returns the loss of each token.
    ///
    /// # Errors
    /// Returns an error if an operation fails, for example because the tensors are on different devices.
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError>;

    /// Converts the importance `weights` of tokens to the factors that multiply the token losses. Both are `[tokens]`.
    ///
    /// The default is the weights themselves. A loss that is defined for whole sequences combines the weights of a sequence.
    ///
    /// # Errors
    /// Returns an error if an operation fails, for example because there are not as many weights as the sequences have tokens. The default
    /// does not fail.
    fn importance(&self, weights: &Tensor, segments: &Segments) -> Result<Tensor, TchError> {
        let _ = segments;
        Ok(weights.shallow_clone())
    }

    /// Returns the aggregation that the definition of the loss fixes; `None` if it fixes none.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }
}

/// A policy loss that the threads of a trainer share.
pub type SharedPolicyLoss = Arc<dyn PolicyLoss>;

/// Names two flags of each token as metrics: `upper` as `actor/pg_clipfrac` and `lower` as `actor/pg_clipfrac_lower`. Each loss defines
/// their meaning.
fn clip_metrics(upper: Tensor, lower: Tensor) -> Vec<(&'static str, Tensor)> {
    vec![("actor/pg_clipfrac", upper), ("actor/pg_clipfrac_lower", lower)]
}

/// Returns the log-probability of each target and the entropy of its distribution in nats, both `[tokens]`, from logits `[tokens,
/// vocabulary]`. `targets` must be `[tokens]`, with ids of the vocabulary.
///
/// The entropy carries a gradient only if `entropy_grad` is `true`, since the gradient doubles the memory that the backward pass needs.
///
/// # Errors
/// Returns an error if an operation fails, for example because there are more targets than rows of logits, or, on the CPU, because a target
/// is not in the vocabulary.
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
