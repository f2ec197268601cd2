//! The network of a language model and its weights.
//!
//! A model that loads without an error computes the same results as in transformers, up to rounding. This module reads only the weights of
//! a model folder; [`rollpacker_model`] reads the other files.

pub(crate) mod allocator;
mod checkpoint;
pub mod decoder;
pub mod device;
mod error;
pub(crate) mod host;
pub(crate) mod inference;
pub(crate) mod kernel_threads;
mod layer;
pub(crate) mod matrix;
pub(crate) mod network;
mod outer_layers;
pub(crate) mod packed;
mod rows;
pub(crate) mod stored;
pub mod streamed;
pub(crate) mod vectorized;
pub mod weights;

use rollpacker_model::{ModelConfig, ModelError, json, layout, tensor_file};

pub use decoder::Decoder;
pub use device::resolve_device;
pub use error::TorchError;
pub use streamed::StreamedDecoder;
pub use weights::{WeightStore, Weights};
