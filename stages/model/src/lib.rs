//! The parts of a language model that need no libtorch: the configuration, tokenizer, chat template and tensor files of a Hugging Face
//! folder.
//!
//! Supports decoder-only transformers of the Qwen2, Qwen3 and Llama families. Features that would change the results and are not
//! implemented (sliding windows, quantized weights, other RoPE scalings, ...) are rejected with an error that names them.
//!
//! The feature `tokenizer` (default) enables tokenizers, chat templates and the encoding of prompts.
//!
//! Architecture invariant: no neural network and no libtorch in this crate.

#[cfg(feature = "tokenizer")]
pub mod chat;
pub mod config;
mod error;
pub mod json;
pub mod layout;
#[cfg(feature = "tokenizer")]
pub mod prompt;
pub mod rope;
pub mod tensor_file;
#[cfg(feature = "tokenizer")]
pub mod text_stream;
#[cfg(feature = "tokenizer")]
mod token_bound;
#[cfg(feature = "tokenizer")]
pub mod tokenizer;

/// The files of the tokenizer and the chat template that a trained model gets from the folder of its initial model. Model folders may have
/// further tokenizer files, such as `vocab.json`; they are not copied.
pub const TOKENIZER_FILES: [&str; 4] =
    ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json"];

/// The files that this program may write to the folder of a language model. The subfolder `critic`, which has the model of a critic, is not
/// included.
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

#[cfg(feature = "tokenizer")]
pub use chat::{ChatTemplate, Message};
pub use config::{Family, ModelConfig};
pub use error::ModelError;
#[cfg(feature = "tokenizer")]
pub use prompt::{Encoded, PromptEncoder};
pub use rope::Rope;
#[cfg(feature = "tokenizer")]
pub use text_stream::TextStream;
#[cfg(feature = "tokenizer")]
pub use tokenizer::Tokenizer;
