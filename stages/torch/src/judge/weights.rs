//! The weights of an in-process judge, all in memory or partly read in every forward pass.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rollpacker_model::ModelConfig;
use tch::{Device, TchError, Tensor};

use super::TorchChatOptions;
use crate::model::network::{Attend, Network};
use crate::model::streamed::{MemoryBudget, StreamedDecoder};
use crate::model::{Decoder, TorchError};
use crate::rollout::generator::Capacity;

/// The weights of a judge. They are in memory once, even if several threads run the model.
pub(super) enum JudgeWeights {
    /// All weights are in memory. Every network has handles to the same tensors.
    Resident(Decoder),
    /// Some layers are read from the files in every forward pass. Passes run one at a time, because they share the layer buffers.
    Streamed(LockedDecoder),
}

impl JudgeWeights {
    /// Loads the weights. A memory budget also has to cover the KV cache of `capacity`.
    pub(super) fn load(
        options: &TorchChatOptions,
        capacity: Capacity,
        device: Device,
    ) -> Result<Self, TorchError> {
        let folder = &options.model_path;
        let Some(bytes) = options.memory_budget else {
            return Decoder::load(folder, device).map(Self::Resident);
        };
        let budget = MemoryBudget::of_bytes(bytes.0);
        let decoder = StreamedDecoder::open(folder, device, budget, capacity.demand())?;
        Ok(Self::Streamed(LockedDecoder::new(decoder)))
    }

    /// Returns a network over these weights, for use on one thread.
    pub(super) fn network(&self) -> Box<dyn Network> {
        match self {
            Self::Resident(decoder) => Box::new(decoder.share()),
            Self::Streamed(single) => Box::new(single.clone()),
        }
    }

    /// Returns `true` if several instances may run the model at once.
    pub(super) fn can_be_shared(&self) -> bool {
        matches!(self, Self::Resident(_))
    }
}

/// A streamed network that its clones share. Concurrent forward passes wait for each other.
#[derive(Clone)]
pub(super) struct LockedDecoder {
    config: ModelConfig,
    device: Device,
    network: Arc<Mutex<StreamedDecoder>>,
}

impl LockedDecoder {
    fn new(network: StreamedDecoder) -> Self {
        let (config, device) = (network.config().clone(), network.device());
        Self { config, device, network: Arc::new(Mutex::new(network)) }
    }

    fn lock(&self) -> MutexGuard<'_, StreamedDecoder> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for LockedDecoder {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn device(&self) -> Device {
        self.device
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        self.lock().forward(ids, positions, attend)
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.lock().logits(hidden)
    }
}
