//! Where a judge's weights are.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tch::{Device, TchError, Tensor};

use super::TorchChatOptions;
use crate::model::network::{Attend, Network};
use crate::model::streamed::{MemoryBudget, StreamedDecoder};
use crate::model::{Decoder, ModelConfig, ModelError};
use crate::rollout::generator::Capacity;

/// A judge's weights, in memory once, whoever runs them.
pub(super) enum Weights {
    /// All of them resident; whoever runs them has handles of the same tensors.
    Resident(Decoder),
    /// Some of them read layer by layer at every pass, of which there is one at a time.
    Streamed(Single),
}

impl Weights {
    /// Opens them as the options say; a memory budget has room for `capacity` too.
    pub(super) fn load(
        options: &TorchChatOptions,
        capacity: Capacity,
        device: Device,
    ) -> Result<Self, ModelError> {
        let folder = &options.model_path;
        let Some(bytes) = options.memory_budget else {
            return Decoder::load(folder, device).map(Self::Resident);
        };
        let budget = MemoryBudget::of_bytes(bytes.0);
        let decoder = StreamedDecoder::open(folder, device, budget, capacity.demand())?;
        Ok(Self::Streamed(Single::new(decoder)))
    }

    /// A network to run on one thread.
    pub(super) fn network(&self) -> Box<dyn Network> {
        match self {
            Self::Resident(decoder) => Box::new(decoder.share()),
            Self::Streamed(single) => Box::new(single.clone()),
        }
    }

    /// Whether several instances may run them at once.
    pub(super) fn can_be_shared(&self) -> bool {
        matches!(self, Self::Resident(_))
    }
}

/// A network of which there is one: passes of several threads wait for one another.
#[derive(Clone)]
pub(super) struct Single {
    config: ModelConfig,
    device: Device,
    network: Arc<Mutex<StreamedDecoder>>,
}

impl Single {
    fn new(network: StreamedDecoder) -> Self {
        let (config, device) = (network.config().clone(), network.device());
        Self { config, device, network: Arc::new(Mutex::new(network)) }
    }

    fn lock(&self) -> MutexGuard<'_, StreamedDecoder> {
        self.network.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Network for Single {
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
