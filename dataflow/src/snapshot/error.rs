//! Errors of snapshots.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::generation::Generation;
use crate::fault::{HasOrigin, Origin};
use crate::step::Step;

/// An error of writing, committing or reading a snapshot.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// A file operation failed: for example, the disk is full, the folder is read-only, or a file is missing.
    // The message includes the cause: it travels as the text of a fault, which has no error chain.
    #[error("cannot {operation} `{}`: {error}", path.display())]
    Io {
        /// The operation that failed.
        operation: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
    /// The folder lacks the generation that another process of the cluster opened.
    #[error(
        "`{}`: expected generation {generation}, which the first process opened, found none: all processes need one run folder",
        folder.display()
    )]
    Elsewhere {
        /// The folder of this process.
        folder: PathBuf,
        /// The generation that the other process opened.
        generation: Generation,
    },
    /// Another process has opened the folder since, so this process must no longer write.
    #[error(
        "`{}`: this run is generation {ours} of the folder, and generation {newest} has been opened since: another process \
         resumes the same run",
        folder.display()
    )]
    Fenced {
        /// The folder of the run's snapshots.
        folder: PathBuf,
        /// The generation of this process.
        ours: Generation,
        /// The newest generation.
        newest: Generation,
    },
    /// An external writer could not write its file.
    #[error("part `{operator}` of worker {worker}: {message}")]
    Unwritten {
        /// The operator that the part belongs to.
        operator: String,
        /// The worker that the part belongs to.
        worker: u32,
        /// The message of the writer.
        message: String,
    },
    /// A file differs from its record in the manifest, or is not an Arrow IPC file although rows were requested.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A restored snapshot has no part of the requested operator.
    #[error("snapshot after step {}: expected parts of `{operator}`, found those of {found}", step.ordinal())]
    NoPart {
        /// The step of the snapshot.
        step: Step,
        /// The requested operator.
        operator: String,
        /// The names of the operators that have parts, separated by commas; `none` if there are none.
        found: String,
    },
}

impl SnapshotError {
    pub(crate) fn io<'a>(
        operation: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |error| Self::Io { operation, path: path.to_owned(), error }
    }
}

impl HasOrigin for SnapshotError {
    fn origin(&self) -> Origin {
        match self {
            Self::Io { .. } | Self::Unwritten { .. } | Self::Damaged(_) => Origin::Environment,
            Self::Elsewhere { .. } | Self::Fenced { .. } | Self::NoPart { .. } => Origin::User,
        }
    }
}

/// The reason why a snapshot cannot be used. A file is missing, changed or unreadable, or a manifest is invalid or belongs to another run,
/// step or generation. Otherwise parts have no manifest, or no snapshot of the requested step exists.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    /// The file or folder.
    pub path: PathBuf,
    /// The expected content of the file or folder.
    pub expected: String,
    /// The content that was found.
    pub found: String,
}

impl Damage {
    pub(crate) fn new(path: &Path, expected: impl Into<String>, found: impl Into<String>) -> Self {
        Self { path: path.to_owned(), expected: expected.into(), found: found.into() }
    }
}

impl fmt::Display for Damage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { path, expected, found } = self;
        write!(f, "`{}`: expected {expected}, found {found}", path.display())
    }
}
