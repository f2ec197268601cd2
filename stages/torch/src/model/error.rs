//! Errors of models on libtorch.

use std::path::PathBuf;

use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_files::FileError;
use rollpacker_model::ModelError;
use rollpacker_stages::device::DeviceChoice;
use rollpacker_stages::train::TrainError;
use tch::TchError;

/// The reason why a model cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
pub enum TorchError {
    /// A file of a model cannot be read or written, or its contents are invalid or not supported.
    #[error(transparent)]
    Model(#[from] ModelError),
    /// The store does not hold a policy version: the version was never published there, or the store has dropped it since.
    #[error("policy {version} is not at `{location}`: the store holds {held}")]
    NotPublished {
        /// The requested policy version.
        version: PolicyVersion,
        /// The location of the requested policy, such as `memory:v3`.
        location: String,
        /// The versions that the store holds, separated by commas.
        held: String,
    },
    /// A device that this machine does not have, or on which a CUDA call failed.
    #[error("device `{choice}`: {reason}")]
    Device {
        /// The requested device.
        choice: DeviceChoice,
        /// The reason why the device cannot be used.
        reason: String,
    },
    /// A memory budget that is too small for the model even with the fewest resident layers.
    #[error(
        "{folder}: a memory budget of {budget} bytes is too small: at least {min} are needed, {outer} for embedding, norm and head, \
         {layers} to stream layers, {demand} for the tokens"
    )]
    MemoryBudget {
        /// The model's folder.
        folder: PathBuf,
        /// The configured budget, in bytes.
        budget: u64,
        /// The smallest sufficient budget, in bytes.
        min: u64,
        /// Bytes of embedding, norm and head.
        outer: u64,
        /// Bytes of the layer buffers and of the reading buffers.
        layers: u64,
        /// Bytes of keys and values, plus the larger of activations and logits.
        demand: u64,
    },
    /// A libtorch operation failed, or a tensor has a type that cannot be written to a file.
    #[error("libtorch: {reason}")]
    Torch {
        /// The first line of libtorch's error message, or the tensor type that cannot be written.
        reason: String,
    },
}

impl From<FileError> for TorchError {
    fn from(error: FileError) -> Self {
        Self::Model(error.into())
    }
}

impl From<TchError> for TorchError {
    fn from(error: TchError) -> Self {
        // The lines after the first are a C++ stack trace.
        let text = error.to_string();
        Self::Torch { reason: text.lines().next().unwrap_or_default().to_owned() }
    }
}

impl From<TorchError> for TrainError {
    fn from(error: TorchError) -> Self {
        match error {
            TorchError::Model(error) => error.into(),
            other => Self::backend("using the model")(other),
        }
    }
}
