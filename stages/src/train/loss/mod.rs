//! Losses of tokens as functions of tensors: no model, no batch, no state.
//!
//! Every tensor is packed, `[tokens]`: the response tokens of some sequences end to end, those without loss left out. Nothing here
//! is averaged; [`Aggregation`] says with which factor each token enters the sum. The formulas are
//! those of verl's `core_algos`, and are tested against its numbers and gradients.

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

use super::config::Aggregation;

pub use builtin::{kl_estimators, policy_losses};
pub use cispo::Cispo;
pub use clip::Vanilla;
pub use geo_mean::GeoMean;
pub use gpg::Gpg;
pub use gspo::Gspo;
pub use kl::{Abs, K1, K2, K3, KlEstimator, SharedKl, StraightThrough};
pub use sapo::Sapo;
pub use segments::Segments;
pub use value::{ValueLoss, value_loss};

/// Log-ratios are clamped here before they are exponentiated, as in verl.
pub(crate) const LOG_RATIO_LIMIT: f64 = 20.0;

/// Tokens of some sequences, for a policy loss; all `[tokens]`.
#[derive(Clone, Copy, Debug)]
pub struct Tokens<'a> {
    /// Log-probabilities under the policy, in nats; the gradient flows to them.
    pub logprobs: &'a Tensor,
    /// Log-probabilities under the policy that ratios are against.
    pub old: &'a Tensor,
    /// Advantages.
    pub advantages: &'a Tensor,
    /// Which tokens are of one sequence.
    pub segments: &'a Segments,
}

impl Tokens<'_> {
    /// Log-ratio of the policy to the old one, clamped; `[tokens]`.
    ///
    /// # Errors
    /// If the tensors differ in shape, kind or device.
    pub fn log_ratio(&self) -> Result<Tensor, TchError> {
        self.logprobs.f_sub(self.old)?.f_clamp(-LOG_RATIO_LIMIT, LOG_RATIO_LIMIT)
    }
}

/// What a policy loss says of tokens.
#[derive(Debug)]
pub struct TokenLoss {
    /// The loss of each token, `[tokens]`; the gradient flows through it to the log-probabilities.
    pub loss: Tensor,
    /// Metrics by name, each `[tokens]`, averaged over the tokens of a step.
    pub metrics: Vec<(&'static str, Tensor)>,
}

/// The policy loss of tokens.
///
/// # Contract
/// The loss of a sequence does not depend on other sequences: they are trained on while others are still being generated, in pieces that
/// differ from run to run.
pub trait PolicyLoss: Debug + Send + Sync {
    /// The loss of each token.
    ///
    /// # Errors
    /// If the tensors differ in shape, kind or device.
    fn tokens(&self, tokens: &Tokens<'_>) -> Result<TokenLoss, TchError>;

    /// Returns the factors by which the importance `weights` of tokens multiply the token losses; all `[tokens]`.
    ///
    /// The default is the weights themselves. A loss that is defined for whole sequences combines the weights of a sequence.
    ///
    /// # Errors
    /// If there are not as many weights as the sequences have tokens.
    fn importance(&self, weights: &Tensor, segments: &Segments) -> Result<Tensor, TchError> {
        let _ = segments;
        Ok(weights.shallow_clone())
    }

    /// The aggregation that its definition fixes, if it does.
    fn aggregation(&self) -> Option<Aggregation> {
        None
    }
}

/// A policy loss that several hold.
pub type SharedPolicyLoss = Arc<dyn PolicyLoss>;

/// Metrics of the two clips.
fn clip_metrics(upper: Tensor, lower: Tensor) -> Vec<(&'static str, Tensor)> {
    vec![("actor/pg_clipfrac", upper), ("actor/pg_clipfrac_lower", lower)]
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
