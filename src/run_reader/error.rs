//! The errors of reading a run folder.

use std::fmt::Display;
use std::path::{Path, PathBuf};

#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error(
        "{folder}: expected the folder of a run, with `metrics.jsonl` (`trainer.default_local_dir` or `--out` of `rollpacker train`); \
         {found}"
    )]
    NoRun {
        /// The path that was given as the run folder.
        folder: PathBuf,
        /// The reason why the path is not a run folder.
        found: String,
    },
    /// A file cannot be read, or has invalid content.
    #[error("{path}: {reason}")]
    File {
        /// The file, followed by the line or the step if the error concerns one.
        path: String,
        /// The error of the system or of the parser.
        reason: String,
    },
    /// The selected steps or responses do not exist. The text is the message.
    #[error("{0}")]
    NoResponses(String),
}

impl ReadError {
    /// Returns a function that makes an error of a file.
    pub(crate) fn file(path: &Path) -> impl Fn(&dyn Display) -> Self + use<> {
        let path = path.display().to_string();
        move |reason| Self::File { path: path.clone(), reason: reason.to_string() }
    }

    /// Returns the error for a path that is not a folder with `metrics.jsonl`.
    pub(crate) fn no_run(folder: &Path) -> Self {
        let found = if folder.is_dir() { "it has none" } else { "it is no folder" }.to_owned();
        Self::NoRun { folder: folder.to_owned(), found }
    }
}
