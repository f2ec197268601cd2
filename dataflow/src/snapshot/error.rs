//! What can go wrong with snapshots.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use super::generation::Generation;
use crate::step::Step;

/// What can go wrong with snapshots.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The operating system refused: the disk is full, the folder is read-only, a file is gone.
    // The cause is in the message: it travels as the text of a fault, which has no chain.
    #[error("cannot {operation} `{}`: {source}", path.display())]
    Io {
        /// What was tried.
        operation: &'static str,
        /// On which file or folder.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// What another process of the cluster has opened is not in the folder.
    #[error(
        "`{}`: the first process writes snapshots as generation {generation} of another folder: all processes need one run folder",
        folder.display()
    )]
    Elsewhere {
        /// The folder of this process.
        folder: PathBuf,
        /// What was opened.
        generation: Generation,
    },
    /// Another process has opened the folder since: this one must write no more.
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
        /// The newest.
        newest: Generation,
    },
    /// Whoever was to write a file could not.
    #[error("part `{operator}` of worker {worker}: {message}")]
    Unwritten {
        /// The operator whose part it is.
        operator: String,
        /// Its worker.
        worker: u32,
        /// What it says.
        message: String,
    },
    /// A file is other than its manifest says.
    #[error(transparent)]
    Damaged(#[from] Damage),
    /// A restored snapshot has no part of that name.
    #[error("snapshot behind step {}: expected parts of `{operator}`, found those of {found}", step.ordinal())]
    NoPart {
        /// The step of the snapshot.
        step: Step,
        /// The operator asked for.
        operator: String,
        /// Those that have parts.
        found: String,
    },
}

impl SnapshotError {
    pub(crate) fn io<'a>(
        operation: &'static str,
        path: &'a Path,
    ) -> impl FnOnce(io::Error) -> Self + 'a {
        move |source| Self::Io { operation, path: path.to_owned(), source }
    }
}

/// Something about a file of a snapshot that keeps it from being trusted.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub struct Damage {
    /// The file or folder.
    pub path: PathBuf,
    /// What should be there.
    pub expected: String,
    /// What is.
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
