//! The forward pass of a model that generates tokens, independent of where its weights are stored.

use tch::{Device, TchError, Tensor};

pub(crate) use super::layer::Attend;
use super::packed::Packing;
use super::{Decoder, ModelConfig};

/// Maximum number of tokens of a prefill pass, unless the kernels of this crate multiply with packed weights.
pub(crate) const LARGE_PASS: usize = 4096;

/// A decoder-only transformer for inference. Its weights are all in memory, as in a [`Decoder`], or partly read in every forward pass, as
/// in a streamed decoder.
///
/// Inputs and results have the shapes that [`Decoder::forward`] and [`Decoder::logits`] document. The methods take `&mut self`, because
/// streaming weights changes state.
pub(crate) trait Network: Send {
    fn config(&self) -> &ModelConfig;

    /// Returns the device that inputs must be on.
    fn device(&self) -> Device;

    /// Returns the maximum number of tokens of a prefill pass, unless a single sequence is longer. It bounds the memory of a pass.
    fn max_pass_tokens(&self) -> usize {
        LARGE_PASS
    }

    /// Maps ids `[n]` and positions `[n]` to the hidden states after the last norm, `[n, hidden]`.
    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError>;

    /// Maps hidden states `[n, hidden]` to logits `[n, vocab]`.
    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError>;

    /// Runs the layers over sequences that are concatenated without padding; see [`Decoder::forward_packed`].
    fn forward_packed(&mut self, ids: &Tensor, lengths: &[i64]) -> Result<Tensor, TchError> {
        let packing = Packing::new(lengths, ids.size1()?)?;
        let positions = packing.positions()?.f_to_device(self.device())?;
        self.forward(ids, &positions, &mut |_, q, k, v| packing.attend(q, k, v))
    }
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

    fn max_pass_tokens(&self) -> usize {
        self.as_ref().max_pass_tokens()
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
