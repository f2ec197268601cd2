//! The error of options that cannot be read.

/// Options of a [`Verifier`](crate::Verifier) that are not an object, or have an unknown name or a value of the wrong type. The message
/// names the unknown option, or the expected type and the value that was found.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct OptionsError(pub(crate) serde_json::Error);
