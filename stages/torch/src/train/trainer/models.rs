//! The models that one thread of a trainer computes with.

use tch::{TchError, Tensor};

use crate::model::Decoder;
use crate::train::critic::{Critic, ValueModel};

/// The policy, the reference and the model of the critic. All threads share the weights. Each thread accumulates gradients of its own, so
/// that backward passes run at the same time and every gradient has one order of summation.
#[derive(Debug)]
pub(super) struct TrainerModels {
    pub(super) policy: Decoder,
    /// The initial weights. Held only if a KL divergence from them is needed.
    pub(super) reference: Option<Decoder>,
    pub(super) critic: Option<ValueModel>,
}

impl TrainerModels {
    /// Returns handles to the models of a trainer, with the trainer's gradients.
    pub(super) fn of(
        policy: &Decoder,
        reference: Option<&Decoder>,
        critic: Option<&Critic>,
    ) -> Self {
        Self {
            policy: policy.share(),
            reference: reference.map(Decoder::share),
            critic: critic.map(|critic| critic.model().share()),
        }
    }

    /// Returns handles for another thread, which share the weights. Policy and critic have their own gradients.
    pub(super) fn with_own_gradients(&self) -> Result<Self, TchError> {
        Ok(Self {
            policy: self.policy.with_own_gradients(),
            reference: self.reference.as_ref().map(Decoder::share),
            critic: self.critic.as_ref().map(ValueModel::with_own_gradients).transpose()?,
        })
    }

    /// Adds the gradients of `other` to the gradients of `self`, and sets the gradients of `other` to 0.
    pub(super) fn collect(&self, other: &Self) -> Result<(), TchError> {
        self.parameters().zip(other.parameters()).try_for_each(|(own, other)| {
            let mut gradient = other.f_grad()?;
            if !gradient.defined() {
                return Ok(());
            }
            // The gradient of this product is the other factor. It is added to the gradient of the leaf, or becomes it.
            own.f_flatten(0, -1)?.f_dot(&gradient.f_flatten(0, -1)?)?.f_backward()?;
            gradient.f_zero_().map(|_same_tensor| ())
        })
    }

    fn parameters(&self) -> impl Iterator<Item = &Tensor> {
        let critic = self.critic.iter().flat_map(ValueModel::parameters);
        self.policy.parameters().iter().chain(critic).map(|(_, tensor)| tensor)
    }
}
