//! Errors of output files.

use std::io;
use std::path::{Path, PathBuf};

/// The reason why an output file cannot be written, or why abandoned files cannot be removed.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// The path is taken by something that must not be replaced.
    #[error("{}: expected a regular file, or none yet, found {found}; choose another path", path.display())]
    NotRegular {
        /// The path of the output file.
        path: PathBuf,
        /// The kind of file that has this path.
        found: &'static str,
    },
    /// The folder does not exist.
    #[error(
        "{}: expected a file in a folder that exists, found no folder {}",
        path.display(),
        folder.display()
    )]
    NoFolder {
        /// The path of the output file.
        path: PathBuf,
        /// The folder that does not exist.
        folder: PathBuf,
    },
    /// The output file is one of the inputs.
    #[error("{}: expected a file that is not read, found the input {}; choose another path", path.display(), input.display())]
    IsInput {
        /// The path of the output file.
        path: PathBuf,
        /// The path under which the same file is read.
        input: PathBuf,
    },
    /// A file operation failed.
    #[error("cannot {operation} {}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// The operation: `create`, `write`, `rename`, ...
        operation: &'static str,
        /// The error of the system. It is part of the message, and therefore not a source.
        error: io::Error,
    },
}

impl FileError {
    /// Returns a function that turns an error of the system into an error of this file and operation.
    pub(crate) fn io(path: &Path, operation: &'static str) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |error| Self::Io { path, operation, error }
    }
}
