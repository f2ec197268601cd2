//! A decoder larger than the memory that it may take: layer-wise pipelined execution (RollPacker, section 4.3).
//!
//! Embedding, final norm and head stay in memory, and as many layers as the budget has room for beside the tokens that are expected
//! ([`Residency`]). The other layers are read from the files of the model at every forward pass, each into one of two buffers, while
//! the layers before it compute. Six layers, of which 2 and 5 are resident, with buffers A and B:
//!
//! ```text
//! compute  | 0 in A | 1 in B | 2 | 3 in A | 4 in B | 5 | logits |           | 0 in A | 1 in B | ...
//! read       1 to B | 3 to A     | 4 to B | 0 to A | 1 to B |    (waits)             | 3 to A | ...
//! ```
//!
//! The order goes round: while the last layers compute, the first ones of the next pass are read. A pass takes as long as its compute or
//! its reads, whichever is longer, where one after the other would take the sum. How many tokens a pass needs until compute is the longer
//! is a matter of the machine; what is read does not depend on them, so large passes are what this is for.
//!
//! Resident layers are chosen for a [`Demand`], and chosen anew when [`plan`](StreamedDecoder::plan) tells of another one between two
//! passes: longer sequences take room that layers had. Weights are float32 in memory whatever the file has; the conversion is the reading
//! thread's. Nothing of a layer's size is allocated after the first pass: reads overwrite the buffers.
//!
//! Files are read at positions, not mapped: pages of a mapped file are resident memory of this process that no budget counts or
//! bounds. What the system keeps of the files in its page cache is not the process's, and is given back when memory is wanted.
//!
//! On the CPU all results are bit for bit those of [`Decoder`](super::Decoder). On a CUDA device the buffers are device memory, and the
//! budget is one of device memory. Without the feature `cuda` torch copies in the order of its stream, so that a copy waits for the
//! compute before it; with it copies go through pinned memory on a stream of their own, see the module `pinned`. The latter has been
//! compiled, and has not been run on a device yet.

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
pub use self::residency::{Demand, MemoryBudget, Need, Residency, TooSmall};
use super::checkpoint::Checkpoint;
use super::ends::Ends;
use super::layer::{Attend, Layer};
use super::network::Network;
use super::packed::Packing;
use super::{ModelConfig, ModelError};

/// A decoder-only transformer in float32 that holds some of its layers and reads the others at every pass; for inference only.
///
/// Dropping it ends the thread that reads, after the layer that it is at.
#[derive(Debug)]
pub struct StreamedDecoder {
    config: ModelConfig,
    device: Device,
    budget: MemoryBudget,
    checkpoint: Arc<Checkpoint>,
    reader: Reader,
    ends: Ends,
    residency: Residency,
    /// The resident ones, by index.
    layers: Vec<Option<Layer>>,
    buffers: Buffers,
    /// Whether the layers are where the residency says.
    settled: bool,
}

impl StreamedDecoder {
    /// Opens a Hugging Face folder, reads the resident layers for `demand`, and starts to read the first of the others.
    ///
    /// # Errors
    /// As [`Decoder::load`](super::Decoder::load); and if the budget is too small for embedding, norm, head, the buffers and the
    /// tokens, with the bytes that would do.
    pub fn open(
        folder: &Path,
        device: Device,
        budget: MemoryBudget,
        demand: Demand,
    ) -> Result<Self, ModelError> {
        let config = ModelConfig::from_folder(folder)?;
        let checkpoint = Arc::new(Checkpoint::open(folder, &config)?);
        let residency = residency(&checkpoint, &config, budget, demand)?;
        let ends = Ends::allocate(&config, device)?;
        let mut reader = Reader::new(Arc::clone(&checkpoint), device)?;
        let free = reader.fence()?;
        reader.read_all(ends.before().into_iter().chain(ends.after()), &free)?;
        let mut decoder = Self {
            layers: (0..config.layers).map(|_| None).collect(),
            config,
            device,
            budget,
            checkpoint,
            reader,
            ends,
            residency,
            buffers: Buffers::None,
            settled: false,
        };
        decoder.settle()?;
        Ok(decoder)
    }

    /// What the model is.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights in memory are, and where inputs must be.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Which layers are resident.
    #[must_use]
    pub fn residency(&self) -> &Residency {
        &self.residency
    }

    /// Bytes of the weights in memory, those in buffers and on their way into them included.
    #[must_use]
    pub fn held_bytes(&self) -> u64 {
        let layers = self.layers.iter().flatten().count() + self.buffers.count();
        self.residency.need().ends + self.residency.need().layer * layers as u64
    }

    /// Makes room for `demand`: layers are given up or read, if it takes that. To be called before the KV cache grows, and worth a call
    /// after it shrank.
    ///
    /// # Errors
    /// If the budget has no room for `demand`; the layers stay as they were then. Or if a layer cannot be read; the next call or forward
    /// pass tries again.
    pub fn plan(&mut self, demand: Demand) -> Result<(), ModelError> {
        let residency = residency(&self.checkpoint, &self.config, self.budget, demand)?;
        let same = residency.streamed().eq(self.residency.streamed());
        self.settled &= same;
        self.residency = residency;
        self.settle()
    }

    /// Runs the layers over `n` tokens, as [`Decoder::forward`](super::Decoder::forward) does.
    ///
    /// # Errors
    /// If a layer cannot be read, which leaves the decoder usable; if an operation fails, or `attend` does.
    pub fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        self.settle().map_err(torch_error)?;
        let (mut x, rotation) = self.ends.enter(ids, positions)?;
        for index in 0..self.layers.len() {
            let mut work = |layer: &Layer| {
                layer.forward(&x, &rotation, false, &mut |q, k, v| attend(index, q, k, v))
            };
            x = match &self.layers[index] {
                Some(layer) => work(layer)?,
                None => self.buffers.run(index, &mut self.reader, work)?,
            };
        }
        self.ends.leave(&x)
    }

    /// Hidden states `[n, hidden]` to logits `[n, vocab]`.
    ///
    /// # Errors
    /// If the operation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.ends.logits(hidden)
    }

    /// Runs the layers over sequences that lie end to end, as [`Decoder::forward_packed`](super::Decoder::forward_packed) does.
    ///
    /// # Errors
    /// As [`forward`](Self::forward); and if a length is not above 0, or the lengths do not add up to the ids.
    pub fn forward_packed(&mut self, ids: &Tensor, lengths: &[i64]) -> Result<Tensor, TchError> {
        let packing = Packing::new(lengths, ids.size1()?)?;
        let positions = packing.positions()?.f_to_device(self.device)?;
        self.forward(ids, &positions, &mut |_, q, k, v| packing.attend(q, k, v))
    }

    /// Brings the layers to where the residency says.
    ///
    /// Layers that lose their place become buffers or other layers, so that there are never more in memory than before or after.
    fn settle(&mut self) -> Result<(), ModelError> {
        if self.settled {
            return Ok(());
        }
        let mut spare = self.give_up_layers();
        let used = self.reader.fence()?;
        for index in 0..self.layers.len() {
            if self.residency.is_resident(index) && self.layers[index].is_none() {
                let layer = self.spare_layer(&mut spare)?;
                self.reader.read_layer(index, &layer, &used)?;
                self.layers[index] = Some(layer);
            }
        }
        let buffers = (0..self.residency.buffers())
            .map(|_| Ok((self.spare_layer(&mut spare)?, self.reader.fence()?)))
            .collect::<Result<_, ModelError>>()?;
        self.buffers = Buffers::start(buffers, &self.residency, || {
            Reader::new(Arc::clone(&self.checkpoint), self.device)
        })?;
        self.settled = true;
        assert!(self.within_budget(), "invariant: a residency is within its budget");
        Ok(())
    }

    /// Takes away the buffers and the layers that are not to stay; keeps as many as will be wanted.
    fn give_up_layers(&mut self) -> Vec<Layer> {
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

    fn spare_layer(&self, spare: &mut Vec<Layer>) -> Result<Layer, TchError> {
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
) -> Result<Residency, ModelError> {
    Residency::of(config, budget, demand).map_err(|TooSmall { need, least }| {
        ModelError::MemoryBudget {
            place: checkpoint.folder().to_owned(),
            budget: budget.bytes,
            least,
            ends: need.ends,
            demand: need.demand,
            layers: least - need.ends - need.demand,
        }
    })
}

/// What a forward pass says of weights that cannot be read.
fn torch_error(error: ModelError) -> TchError {
    match error {
        ModelError::Torch { reason } => TchError::Torch(reason),
        ModelError::Read { ref source, .. } => {
            TchError::Io(std::io::Error::new(source.kind(), error.to_string()))
        }
        other => TchError::Io(std::io::Error::other(other)),
    }
}
