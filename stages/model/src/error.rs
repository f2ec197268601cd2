//! Errors of reading and writing models.

use std::path::{Path, PathBuf};

use rollpacker_stages::train::TrainError;

/// The reason why a model folder or the state of a trainer cannot be read or written, or why a tokenizer or chat template fails.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// A file or folder cannot be read.
    #[error("cannot read {path}: {error}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system, or another reason, for example that the file is not a regular file or is too large.
        error: std::io::Error,
    },
    /// A file or folder cannot be written.
    #[error("cannot write {path}: {error}")]
    Write {
        /// The file or folder.
        path: PathBuf,
        /// The error of the operating system, or the reason why the values of a tensor are not available.
        error: std::io::Error,
    },
    /// A file cannot be written, or its path holds something that must not be replaced.
    #[error(transparent)]
    File(#[from] rollpacker_files::FileError),
    /// A file is not the expected JSON.
    #[error("{path} is not valid JSON: {error}")]
    Json {
        /// The path of the file in the model folder.
        path: PathBuf,
        /// The position and cause of the error.
        error: serde_json::Error,
    },
    /// A key of the configuration is missing or has an invalid value.
    #[error("{path}: key `{key}`: expected {expected}, found {found}")]
    Key {
        /// The path of the file, or a description of the configuration if the value was not read from a file.
        path: PathBuf,
        /// The key, after the keys of the objects that contain it, such as `rope_scaling.factor`.
        key: String,
        /// The values that are allowed.
        expected: String,
        /// The value in the file, as JSON; `nothing` if the key is missing.
        found: String,
    },
    /// The folder uses a feature that is not implemented and would change the results.
    #[error("{path}: {feature} is not supported")]
    Unsupported {
        /// The path of the file in the model folder.
        path: PathBuf,
        /// The feature, with the key or value of the file that requests it.
        feature: String,
    },
    /// A safetensors file is damaged.
    #[error("{path} is not a safetensors file: {reason}")]
    Safetensors {
        /// The path of the file: of a model folder, or of a trainer's state.
        path: PathBuf,
        /// The damage that was found.
        reason: String,
    },
    /// A folder or file lacks tensors that the model or the trainer requires.
    #[error("{origin}: {} tensor(s) missing: {}", names.len(), list(names))]
    MissingTensors {
        /// The folder or file, or the origin of the weights.
        origin: String,
        /// The names of the missing tensors; at least one.
        names: Vec<String>,
    },
    /// A folder or file contains tensors that the model or the trainer does not have.
    #[error("{origin}: {} tensor(s) not of this model: {}", names.len(), list(names))]
    ExtraTensors {
        /// The folder or file, or the origin of the weights.
        origin: String,
        /// The names of the extra tensors; at least one.
        names: Vec<String>,
    },
    /// A tensor has a shape other than the required one.
    #[error("{origin}: tensor `{tensor}`: expected shape {expected:?}, found {found:?}")]
    Shape {
        /// The file, or the origin of the weights.
        origin: String,
        /// The name of the tensor.
        tensor: String,
        /// The required shape.
        expected: Vec<i64>,
        /// The shape that was found.
        found: Vec<i64>,
    },
    /// A tensor has a type that is not supported or not the required one.
    #[error("{path}: tensor `{tensor}`: expected {expected}, found {found}")]
    Dtype {
        /// The path of the file: of a model folder, or of a trainer's state.
        path: PathBuf,
        /// The name of the tensor.
        tensor: String,
        /// The supported types, or the required one.
        expected: String,
        /// The type that was found.
        found: String,
    },
    /// The tokenizer cannot be read, written or used.
    #[error("tokenizer {origin}: {reason}")]
    Tokenizer {
        /// The file of the tokenizer, or how it was created.
        origin: String,
        /// The cause of the error.
        reason: String,
    },
    /// The chat template cannot be compiled or rendered.
    #[error("chat template of {origin}: {reason}")]
    Template {
        /// The file of the template; `a string` if it was not read from a file.
        origin: String,
        /// The cause of the error.
        reason: String,
    },
}

impl ModelError {
    /// Returns a function that wraps an error of reading `path`.
    pub fn read(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        |error| Self::Read { path, error }
    }

    /// Returns a function that wraps an error of writing `path`.
    pub fn write(path: &Path) -> impl FnOnce(std::io::Error) -> Self + use<> {
        let path = path.to_owned();
        |error| Self::Write { path, error }
    }
}

impl From<ModelError> for TrainError {
    fn from(error: ModelError) -> Self {
        match error {
            ModelError::Write { path, error } => Self::Write { path, error },
            ModelError::File(error) => Self::File(error),
            other => Self::backend("using the model")(other),
        }
    }
}

fn list(names: &[String]) -> String {
    const MAX_LISTED_NAMES: usize = 8;
    let more = if names.len() > MAX_LISTED_NAMES { ", ..." } else { "" };
    format!(
        "{}{more}",
        names
            .iter()
            .take(MAX_LISTED_NAMES)
            .map(|name| format!("`{name}`"))
            .collect::<Vec<_>>()
            .join(", ")
    )
}
