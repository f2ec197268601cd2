//! Why a model cannot be read, written or run.

use std::path::{Path, PathBuf};

use rollpacker_dataflow::step::PolicyVersion;

/// Why a model cannot be read, written or run.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {path}: {source}")]
    Write {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A file cannot be written, or its place has something that must not be replaced.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// A file is not the JSON that it should be.
    #[error("{path} is not valid JSON: {source}")]
    Json {
        /// The file.
        path: PathBuf,
        /// Where and why.
        source: serde_json::Error,
    },
    /// A key of the configuration is absent or has a wrong value.
    #[error("{path}: key `{key}`: expected {expected}, found {found}")]
    Key {
        /// The file.
        path: PathBuf,
        /// The key, with its parents.
        key: String,
        /// What may stand there.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// The folder asks for something that is not implemented and would change the numbers.
    #[error("{path}: {feature} is not supported")]
    Unsupported {
        /// The file.
        path: PathBuf,
        /// The feature, in the words of the file.
        feature: String,
    },
    /// A weights file is damaged.
    #[error("{path} is not a safetensors file: {reason}")]
    Safetensors {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The configuration asks for tensors that the weights do not hold.
    #[error("{place}: {} tensor(s) missing: {}", names.len(), list(names))]
    MissingTensors {
        /// The folder, or whose weights they are.
        place: String,
        /// Their names.
        names: Vec<String>,
    },
    /// The weights hold tensors that the configuration does not ask for.
    #[error("{place}: {} tensor(s) not of this model: {}", names.len(), list(names))]
    ExtraTensors {
        /// The folder, or whose weights they are.
        place: String,
        /// Their names.
        names: Vec<String>,
    },
    /// A tensor has another shape than the configuration says.
    #[error("{place}: tensor `{tensor}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The file, or whose weights they are.
        place: String,
        /// The tensor.
        tensor: String,
        /// The shape that the configuration asks for.
        expected: Vec<i64>,
        /// The shape that is there.
        found: Vec<i64>,
    },
    /// A tensor is of another type than it may have.
    #[error("{path}: tensor `{tensor}`: expected {expected}, found {found}")]
    Dtype {
        /// The file.
        path: PathBuf,
        /// The tensor.
        tensor: String,
        /// The types that it may have.
        expected: String,
        /// Its type.
        found: String,
    },
    /// The tokenizer cannot be read, written or used.
    #[error("tokenizer {place}: {reason}")]
    Tokenizer {
        /// Its file, or how it was made.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// The chat template cannot be compiled or rendered.
    #[error("chat template of {place}: {reason}")]
    Template {
        /// Its file.
        place: String,
        /// What went wrong.
        reason: String,
    },
    /// A policy is not in the store: never published there, or dropped since.
    #[error("policy {version} is not at `{location}`: the store holds {held}")]
    NotPublished {
        /// Which weights.
        version: PolicyVersion,
        /// Where they were said to be.
        location: String,
        /// What the store holds.
        held: String,
    },
    /// A device that this machine does not have, or a word that names none.
    #[error("device `{choice}`: {reason}")]
    Device {
        /// What was asked for.
        choice: String,
        /// Why it cannot be had.
        reason: String,
    },
    /// A budget of memory that the model does not fit into, however many of its layers are streamed.
    #[error(
        "{place}: a memory budget of {budget} bytes: at least {least} are needed, {ends} for embedding, norm and head, {layers} to \
         stream layers, {demand} for the tokens"
    )]
    MemoryBudget {
        /// The model's folder.
        place: PathBuf,
        /// Bytes that there are.
        budget: u64,
        /// Bytes that would do.
        least: u64,
        /// Bytes of embedding, norm and head.
        ends: u64,
        /// Bytes of the layer buffers, and of what is read.
        layers: u64,
        /// Bytes of keys, values, activations and logits.
        demand: u64,
    },
    /// libtorch refused an operation.
    #[error("libtorch: {reason}")]
    Torch {
        /// What it said.
        reason: String,
    },
}

impl ModelError {
    pub(crate) fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        |source| Self::Read { path, source }
    }

    pub(crate) fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        |source| Self::Write { path, source }
    }
}

#[cfg(feature = "torch")]
impl From<tch::TchError> for ModelError {
    fn from(error: tch::TchError) -> Self {
        // What follows the first line is a C++ stack.
        let text = error.to_string();
        Self::Torch { reason: text.lines().next().unwrap_or_default().to_owned() }
    }
}

fn list(names: &[String]) -> String {
    const SHOWN: usize = 8;
    let more = if names.len() > SHOWN { ", ..." } else { "" };
    format!(
        "{}{more}",
        names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ")
    )
}
