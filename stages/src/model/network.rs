//! What generates tokens: a model behind its forward pass, wherever its weights are.

use tch::{Device, TchError, Tensor};

pub(crate) use super::layer::Attend;
use super::{Decoder, ModelConfig};

/// A decoder-only transformer that is run, not trained: resident as [`Decoder`] is, or larger than the memory that it may take.
///
/// Shapes are those of [`Decoder::forward`] and [`Decoder::logits`]. Exclusive, since weights that come and go are state.
pub(crate) trait Network: Send {
    /// What the model is.
    fn config(&self) -> &ModelConfig;

    /// Where inputs must be.
    fn device(&self) -> Device;

    /// Ids `[n]` and positions `[n]` to hidden states after the last norm `[n, hidden]`.
    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError>;

    /// Hidden states `[n, hidden]` to logits `[n, vocab]`.
    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError>;
}

impl Network for Decoder {
    fn config(&self) -> &ModelConfig {
        Self::config(self)
    }

    fn device(&self) -> Device {
        Self::device(self)
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        Self::forward(self, ids, positions, attend)
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        Self::logits(self, hidden)
    }
}

impl Network for Box<dyn Network> {
    fn config(&self) -> &ModelConfig {
        self.as_ref().config()
    }

    fn device(&self) -> Device {
        self.as_ref().device()
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        self.as_mut().forward(ids, positions, attend)
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.as_mut().logits(hidden)
    }
}
