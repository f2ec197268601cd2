//! A decoder that is larger than its memory budget, with layer-wise pipelined execution (RollPacker, section 4.3).
//!
//! Embedding, final norm and head stay in memory, together with as many layers as the budget has room for in addition to the expected
//! tokens ([`Residency`]). Every forward pass reads the other layers from the model's files into two alternating buffers, while the layers
//! before them compute. Without [`MemoryBudget::prefetch`], there is one buffer, and each layer is read right before it computes. For
//! example, with six layers, of which 2 and 5 are resident, and buffers A and B:
//!
//! ```text
//! compute  | 0 in A | 1 in B | 2 | 3 in A | 4 in B | 5 | logits |           | 0 in A | 1 in B | ...
//! read       1 to B | 3 to A     | 4 to B | 0 to A | 1 to B |    (waits)             | 3 to A | ...
//! ```
//!
//! The order wraps around: while the last layers compute, the first layers of the next pass are read. A pass takes the longer of its
//! compute time and its read time; without prefetching it would take the sum. The time to read does not depend on the number of tokens, so
//! large passes benefit most. The number of tokens from which compute dominates depends on the machine.
//!
//! The resident layers are chosen for a [`Demand`]. A call of [`plan`](StreamedDecoder::plan) between two passes chooses them again for
//! another demand, since longer sequences need memory that layers used. Weights are float32 in memory for any type in the file; the reading
//! thread converts them. A pass allocates no memory of the size of a layer, because reads overwrite the buffers.
//!
//! Files are read at positions, not mapped: pages of a mapped file are resident memory of this process that no budget counts or bounds. The
//! system's page cache of the files is not memory of the process, and the system reclaims it when needed.
//!
//! On the CPU all results are bit-identical to those of [`Decoder`](super::Decoder). On a CUDA device the buffers are in device memory and
//! the budget applies to device memory. Without the feature `cuda`, torch copies in the order of its stream, so a copy waits for the
//! compute before it. With the feature, copies go through pinned memory on a separate stream; see the module `pinned`.

mod buffers;
#[cfg(feature = "cuda")]
mod pinned;
mod prefetch;
mod reader;
mod residency;
#[cfg(test)]
mod tests;
mod upload;

use std::path::Path;
use std::sync::Arc;

use tch::{Device, TchError, Tensor};

use self::buffers::Buffers;
use self::reader::Reader;
pub use self::residency::{BudgetTooSmall, Demand, MemoryBudget, MemoryNeed, Residency};
use super::checkpoint::Checkpoint;
use super::layer::{Attend, Layer};
use super::network::Network;
use super::outer_layers::OuterLayers;
use super::packed::Packing;
use super::{ModelConfig, ModelError, TorchError};

/// A decoder-only transformer in float32 that keeps some layers in memory and reads the others at every pass; for inference only.
///
/// Dropping it ends the thread that reads ahead, if there is one, and waits for the layer that the thread is reading.
#[derive(Debug)]
pub struct StreamedDecoder {
    config: ModelConfig,
    device: Device,
    budget: MemoryBudget,
    checkpoint: Arc<Checkpoint>,
    reader: Reader,
    outer: OuterLayers,
    residency: Residency,
    /// The resident layers by index; `None` for a streamed layer.
    layers: Vec<Option<Layer>>,
    buffers: Buffers,
    /// `true` if the layers and buffers in memory are the ones that `residency` requires.
    residency_applied: bool,
}

impl StreamedDecoder {
    /// Opens a Hugging Face folder and reads the layers that are resident for `demand`. With [`MemoryBudget::prefetch`], also starts to
    /// read the first streamed layers.
    ///
    /// # Errors
    /// Returns the errors of [`Decoder::load`](super::Decoder::load). Also returns an error if the budget is too small for embedding, norm,
    /// head, the buffers and the tokens, and states the sufficient number of bytes. Also returns an error if the system cannot create the
    /// reading thread, or a CUDA call fails.
    pub fn open(
        folder: &Path,
        device: Device,
        budget: MemoryBudget,
        demand: Demand,
    ) -> Result<Self, TorchError> {
        let config = ModelConfig::from_folder(folder)?;
        let checkpoint = Arc::new(Checkpoint::open(folder, &config)?);
        let residency = residency(&checkpoint, &config, budget, demand)?;
        let outer = OuterLayers::allocate(&config, device)?;
        let mut reader = Reader::new(Arc::clone(&checkpoint), device)?;
        let free = reader.fence()?;
        reader.read_all(
            outer.input_parameters().into_iter().chain(outer.output_parameters()),
            &free,
        )?;
        let mut decoder = Self {
            layers: (0..config.layers).map(|_| None).collect(),
            config,
            device,
            budget,
            checkpoint,
            reader,
            outer,
            residency,
            buffers: Buffers::None,
            residency_applied: false,
        };
        decoder.apply_residency()?;
        Ok(decoder)
    }

    /// Returns the model configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the device of the weights in memory; inputs must be on the same device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the current choice of resident layers.
    #[must_use]
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Returns the number of bytes of the weights in memory. Layers in buffers and layers that are being read are included.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten().count() + self.buffers.count();
        self.residency.need().outer + self.residency.need().layer * layers as u64
    }

    /// Chooses the resident layers for `demand`, and releases and reads layers accordingly. Call it before the KV cache grows; a call after
    /// it shrank is optional and lets more layers become resident.
    ///
    /// # Errors
    /// Returns an error if the budget has no room for `demand`; the layers are unchanged in that case. Also returns an error if a layer
    /// cannot be read; the next call or forward pass tries again.
    pub fn plan(&mut self, demand: Demand) -> Result<(), TorchError> {
        let residency = residency(&self.checkpoint, &self.config, self.budget, demand)?;
        let same = residency.streamed().eq(self.residency.streamed());
        self.residency_applied &= same;
        self.residency = residency;
        self.apply_residency()
    }

    /// Runs the layers over `n` tokens, as [`Decoder::forward`](super::Decoder::forward) does.
    ///
    /// # Errors
    /// Returns an error if a layer cannot be read, which leaves the decoder usable, or if an operation or `attend` fails.
    pub fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        self.apply_residency().map_err(torch_error)?;
        let (mut x, rotation) = self.outer.embed(ids, positions)?;
        for index in 0..self.layers.len() {
            let mut work = |layer: &Layer| {
                layer.forward(&x, &rotation, false, &mut |q, k, v| attend(index, q, k, v))
            };
            x = match &self.layers[index] {
                Some(layer) => work(layer)?,
                None => self.buffers.run(index, &mut self.reader, work)?,
            };
        }
        self.outer.apply_norm(&x)
    }

    /// Maps hidden states `[n, hidden]` to logits `[n, vocab]`.
    ///
    /// # Errors
    /// Returns an error if the operation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.outer.logits(hidden)
    }

    /// Runs the layers over concatenated sequences, as [`Decoder::forward_packed`](super::Decoder::forward_packed) does.
    ///
    /// # Errors
    /// Returns the errors of [`forward`](Self::forward), and an error if there are no ids, a length is not positive, or the lengths do not
    /// add up to the number of ids.
    pub fn forward_packed(&mut self, ids: &Tensor, lengths: &[i64]) -> Result<Tensor, TchError> {
        let packing = Packing::new(lengths, ids.size1()?)?;
        let positions = packing.positions()?.f_to_device(self.device)?;
        self.forward(ids, &positions, &mut |_, q, k, v| packing.attend(q, k, v))
    }

    /// Reads and releases layers until the resident layers are the ones that `residency` requires, and starts the buffers for the streamed
    /// layers.
    ///
    /// The memory of layers that are no longer resident is reused for buffers or other layers, so the peak memory never exceeds the larger
    /// of the memory before and the memory after the call. A failed read leaves `residency_applied` at `false`: the layers that were read
    /// stay, and the next call continues.
    fn apply_residency(&mut self) -> Result<(), TorchError> {
        if self.residency_applied {
            return Ok(());
        }
        let mut spare = self.release_layers();
        for index in 0..self.layers.len() {
            if self.residency.is_resident(index) && self.layers[index].is_none() {
                // The fence follows the allocation: torch reuses the memory of a tensor that another thread has freed while kernels of that
                // thread still use it.
                let layer = self.take_or_allocate_layer(&mut spare)?;
                let used = self.reader.fence()?;
                self.reader.read_layer(index, &layer, &used)?;
                self.layers[index] = Some(layer);
            }
        }
        let buffers = (0..self.residency.buffers())
            .map(|_| Ok((self.take_or_allocate_layer(&mut spare)?, self.reader.fence()?)))
            .collect::<Result<_, TorchError>>()?;
        self.buffers = Buffers::start(buffers, &self.residency, || {
            Reader::new(Arc::clone(&self.checkpoint), self.device)
        })?;
        self.residency_applied = true;
        assert!(self.within_budget(), "invariant: a residency is within its budget");
        Ok(())
    }

    /// Removes the buffers and the layers that are no longer resident. Returns as many of these layers as will be reused and frees the
    /// others.
    fn release_layers(&mut self) -> Vec<Layer> {
        let mut spare = std::mem::take(&mut self.buffers).into_layers();
        for (index, slot) in self.layers.iter_mut().enumerate() {
            if !self.residency.is_resident(index) {
                spare.extend(slot.take());
            }
        }
        let staying = self.layers.iter().flatten().count();
        spare.truncate(self.residency.resident() + self.residency.buffers() - staying);
        spare
    }

    fn take_or_allocate_layer(&self, spare: &mut Vec<Layer>) -> Result<Layer, TchError> {
        spare.pop().map_or_else(|| Layer::allocate(&self.config, self.device), Ok)
    }

    fn within_budget(&self) -> bool {
        let need = self.residency.need();
        self.held_bytes() + need.demand + need.reading <= self.budget.bytes
    }
}

impl Network for StreamedDecoder {
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

fn residency(
    checkpoint: &Checkpoint,
    config: &ModelConfig,
    budget: MemoryBudget,
    demand: Demand,
) -> Result<Residency, TorchError> {
    Residency::of(config, budget, demand).map_err(|BudgetTooSmall { need, min }| {
        TorchError::MemoryBudget {
            folder: checkpoint.folder().to_owned(),
            budget: budget.bytes,
            min,
            outer: need.outer,
            demand: need.demand,
            layers: min - need.outer - need.demand,
        }
    })
}

/// Converts the error of reading weights into an error of a forward pass.
fn torch_error(error: TorchError) -> TchError {
    match error {
        TorchError::Torch { reason } => TchError::Torch(reason),
        TorchError::Model(ModelError::Read { error: ref cause, .. }) => {
            TchError::Io(std::io::Error::new(cause.kind(), error.to_string()))
        }
        other => TchError::Io(std::io::Error::other(other)),
    }
}
