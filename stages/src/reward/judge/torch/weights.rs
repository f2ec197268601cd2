//! Where a judge's weights are.

use tch::Device;

use super::TorchChatOptions;
use crate::model::network::Network;
use crate::model::{Decoder, ModelError};

/// A judge's weights, in memory once, whoever runs them.
pub(super) enum Weights {
    /// All of them resident; whoever runs them has handles of the same tensors.
    Resident(Decoder),
}

impl Weights {
    /// Opens them as the options say.
    pub(super) fn load(options: &TorchChatOptions, device: Device) -> Result<Self, ModelError> {
        Decoder::load(&options.model_path, device).map(Self::Resident)
    }

    /// A network to run on one thread.
    pub(super) fn network(&self) -> Box<dyn Network> {
        match self {
            Self::Resident(decoder) => Box::new(decoder.share()),
        }
    }
}
