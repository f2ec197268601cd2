//! Parts: what one operator on one worker adds to a snapshot.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::error::ArrowError;
use arrow::ipc::writer::FileWriter;
use serde_json::{Map, Value};

use super::error::SnapshotError;
use super::layout::TEMPORARY;
use super::store::SnapshotStore;
use crate::step::Step;

/// What one operator on one worker adds to a snapshot: one file, and facts beside it.
pub struct Part {
    pub(crate) content: Content,
    pub(crate) version: u32,
    pub(crate) facts: Map<String, Value>,
}

pub(crate) enum Content {
    Nothing,
    Written { extension: String, write: Write1 },
    External { extension: String, draft: PathBuf, wait: Wait },
    Failed(SnapshotError),
}

/// Writes a file, once.
type Write1 = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// Waits until someone else has written a file.
type Wait = Box<dyn FnOnce() -> Result<(), String> + Send>;

impl Part {
    /// No file: this worker has no state of its own, as where all hold the same and the first writes it.
    #[must_use]
    pub fn nothing() -> Self {
        Self::of(Content::Nothing)
    }

    /// A file of these bytes; `extension` is that of its name.
    #[must_use]
    pub fn bytes(extension: &str, bytes: Vec<u8>) -> Self {
        Self::written(extension, move |file| file.write_all(&bytes))
    }

    /// Rows, as an Arrow IPC file.
    ///
    /// Not Parquet: the state of operators is read whole, by the program that wrote it; there is nothing to compress for, no column to
    /// leave out, and reading an IPC file back is a copy of buffers.
    #[must_use]
    pub fn rows(rows: RecordBatch) -> Self {
        Self::written("arrow", move |file| {
            let mut writer = FileWriter::try_new(file, &rows.schema()).map_err(unpack)?;
            writer.write(&rows).and_then(|()| writer.finish()).map_err(unpack)
        })
    }

    /// A file that `write` fills, on the thread that writes.
    pub fn written(
        extension: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self::of(Content::Written { extension: extension.to_owned(), write: Box::new(write) })
    }

    /// The version of the file's layout; 1 otherwise.
    #[must_use]
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// Adds a fact to what the manifest says of the part.
    #[must_use]
    pub fn fact(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(key.to_owned(), value.into());
        self
    }

    fn of(content: Content) -> Self {
        Self { content, version: 1, facts: Map::new() }
    }
}

/// The error of the system below an error of Arrow: a full disk is to be called that.
fn unpack(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, source) => source,
        other => io::Error::other(other),
    }
}

/// A part that is about to be made: who makes it, of which snapshot.
pub struct Draft<'a> {
    pub(crate) store: &'a Arc<SnapshotStore>,
    pub(crate) step: Step,
    pub(crate) operator: &'static str,
    pub(crate) worker: u32,
}

impl Draft<'_> {
    /// The step whose end the snapshot is of; [`Step::END`] for that of the end of the run.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// The worker whose part it is.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// A file that someone else writes, such as a trainer its weights.
    ///
    /// `begin` is told the path at once, and sees to it that what is written is the state as it is now; what it returns is called on the
    /// thread that writes, and waits until the file is complete. Its error is that of the part.
    pub fn external<W>(&self, extension: &str, begin: impl FnOnce(&Path) -> W) -> Part
    where
        W: FnOnce() -> Result<(), String> + Send + 'static,
    {
        let folder = self.store.part_folder(self.step);
        Part::of(match self.store.prepare(&folder) {
            Ok(()) => {
                let draft = temporary(&folder, self.operator, self.worker, extension);
                let wait = Box::new(begin(&draft));
                Content::External { extension: extension.to_owned(), draft, wait }
            }
            Err(error) => Content::Failed(error),
        })
    }
}

/// The path of a part.
pub(crate) fn path(folder: &Path, operator: &str, worker: u32, extension: &str) -> PathBuf {
    folder.join(format!("{operator}-{worker}.{extension}"))
}

/// The path of a part until it is complete; with its extension, which some writers go by.
pub(crate) fn temporary(folder: &Path, operator: &str, worker: u32, extension: &str) -> PathBuf {
    folder.join(format!("{TEMPORARY}-{operator}-{worker}.{extension}"))
}
