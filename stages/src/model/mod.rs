//! The language model: a Hugging Face folder as configuration, weights, tokenizer and chat template.
//!
//! Supports decoder-only transformers of the Qwen2, Qwen3 and Llama families. The parts that need libtorch ([`Decoder`], [`Weights`],
//! [`WeightStore`]) are behind the feature `torch`.
//!
//! Features that would change the results and are not implemented (sliding windows, quantized weights, other RoPE scalings, ...) are
//! rejected with an error that names them. A model that loads computes the same results as in transformers.

pub mod chat;
pub mod config;
mod error;
mod json;
mod layout;
pub mod prompt;
pub mod rope;
#[doc(hidden)]
pub mod tensor_file;
mod token_bound;
pub mod tokenizer;

#[cfg(feature = "torch")]
mod checkpoint;
#[cfg(feature = "torch")]
pub mod decoder;
#[cfg(feature = "torch")]
pub mod device;
#[cfg(feature = "torch")]
mod ends;
#[cfg(feature = "torch")]
mod layer;
#[cfg(feature = "torch")]
pub(crate) mod network;
#[cfg(feature = "torch")]
mod packed;
#[cfg(feature = "torch")]
pub mod streamed;
#[cfg(feature = "torch")]
pub mod weights;

/// The tokenizer files of a model folder.
pub const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];

/// The files that are written to a model folder.
pub const FOLDER_FILES: [&str; 7] = {
    let [tokenizer, tokenizer_config, template, special_tokens] = TOKENIZER_FILES;
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        tokenizer,
        tokenizer_config,
        template,
        special_tokens,
    ]
};

pub use chat::{ChatTemplate, Message};
pub use config::{Family, ModelConfig};
pub use error::ModelError;
pub use prompt::{Encoded, PromptEncoder};
pub use rope::Rope;
pub use tokenizer::Tokenizer;

#[cfg(feature = "torch")]
pub use decoder::Decoder;
#[cfg(feature = "torch")]
pub use device::DeviceChoice;
#[cfg(feature = "torch")]
pub use streamed::StreamedDecoder;
#[cfg(feature = "torch")]
pub use weights::{WeightStore, Weights};
