//! Parts: the contribution of one operator on one worker to a snapshot.

use std::cell::Cell;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::writer::FileWriter;
use arrow_schema::ArrowError;
use serde_json::{Map, Value};

use super::error::SnapshotError;
use super::layout::TEMPORARY;
use super::store::SnapshotStore;
use crate::BoxError;
use crate::shared_list::unshared;
use crate::step::Step;

/// The contribution of one operator on one worker to a snapshot: at most one file, with metadata.
pub struct Part {
    pub(crate) content: PartContent,
    pub(crate) facts: Map<String, Value>,
}

pub(crate) enum PartContent {
    Nothing,
    Written { extension: String, write: WriteOnce },
    External { extension: String, draft: PathBuf, wait: WaitForFile },
    Failed(SnapshotError),
}

type WriteOnce = Box<dyn FnOnce(&mut dyn Write) -> io::Result<()> + Send>;

/// A function that waits until another writer has written a file.
type WaitForFile = Box<dyn FnOnce() -> Result<(), BoxError> + Send>;

impl Part {
    /// Creates a part without a file, for a worker that has no state of its own. For example, if all workers hold the same state, only the
    /// first writes it.
    #[must_use]
    pub fn nothing() -> Self {
        Self::of(PartContent::Nothing)
    }

    /// Creates a part with the given bytes; `extension` is the extension of the file.
    #[must_use]
    pub fn bytes(extension: &str, bytes: Vec<u8>) -> Self {
        Self::from_writer(extension, move |file| file.write_all(&bytes))
    }

    /// Creates a part with rows, as an Arrow IPC file.
    ///
    /// The format is not Parquet, because the program that wrote the state reads it back as a whole. Compression and column selection would
    /// gain nothing, and reading an IPC file only copies buffers. [Shared](crate::shared_list) lists and texts are written as `List` and
    /// `Utf8` columns.
    #[must_use]
    pub fn rows(rows: RecordBatch) -> Self {
        Self::from_writer("arrow", move |file| {
            let rows = unshared(&rows);
            let mut writer = FileWriter::try_new(file, &rows.schema()).map_err(into_io_error)?;
            writer.write(&rows).and_then(|()| writer.finish()).map_err(into_io_error)
        })
    }

    /// Creates a part whose file `write` fills, on the writer thread of the worker or, in virtual time, on the worker's own thread.
    /// `extension` is the extension of the file.
    pub fn from_writer(
        extension: &str,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()> + Send + 'static,
    ) -> Self {
        Self::of(PartContent::Written { extension: extension.to_owned(), write: Box::new(write) })
    }

    /// Adds a metadata entry to the part's record in the manifest. Replaces an earlier entry with the same key.
    #[must_use]
    pub fn fact(mut self, key: &str, value: impl Into<Value>) -> Self {
        self.facts.insert(key.to_owned(), value.into());
        self
    }

    fn of(content: PartContent) -> Self {
        Self { content, facts: Map::new() }
    }
}

/// Unwraps the system error inside an Arrow error, so that a full disk is reported as such.
fn into_io_error(error: ArrowError) -> io::Error {
    match error {
        ArrowError::IoError(_, source) => source,
        other => io::Error::other(other),
    }
}

/// The context in which an operator makes a part: the snapshot, the operator and the worker.
pub struct Draft<'a> {
    pub(crate) store: &'a Arc<SnapshotStore>,
    pub(crate) step: Step,
    pub(crate) operator: &'static str,
    pub(crate) worker: u32,
    /// `Some` if the part is only held in memory. The value is `true` once the operator has called `external`: another writer must then
    /// produce the part if it is needed.
    pub(crate) held: Option<Cell<bool>>,
}

impl Draft<'_> {
    /// Returns the step at whose end the snapshot is taken, or [`Step::END`] for the snapshot of the end of the run.
    #[must_use]
    pub fn step(&self) -> Step {
        self.step
    }

    /// Returns the worker that the part belongs to.
    #[must_use]
    pub fn worker(&self) -> u32 {
        self.worker
    }

    /// Creates a part whose file another writer produces, such as a trainer that saves its weights.
    ///
    /// `begin` receives the path immediately and must ensure that the state as of now is what gets written. The path ends with `extension`.
    /// The closure that `begin` returns runs later and waits until the file is complete: on the writer thread of the worker or, in virtual
    /// time, on the worker's own thread. An error of the closure becomes the error of the part.
    ///
    /// If the part is only [held](super::Cadence::with_held_states), `begin` is not called; the operator is asked for the part again if it
    /// is needed. If the folder of the part cannot be created, `begin` is not called either, and the part fails.
    pub fn external<W, E>(&self, extension: &str, begin: impl FnOnce(&Path) -> W) -> Part
    where
        W: FnOnce() -> Result<(), E> + Send + 'static,
        E: Into<BoxError>,
    {
        if let Some(is_external) = &self.held {
            is_external.set(true);
            return Part::nothing();
        }
        let folder = self.store.part_folder(self.step);
        Part::of(match self.store.prepare(&folder) {
            Ok(()) => {
                let draft = temporary(&folder, self.operator, self.worker, extension);
                let wait = begin(&draft);
                let wait: WaitForFile = Box::new(move || wait().map_err(Into::into));
                PartContent::External { extension: extension.to_owned(), draft, wait }
            }
            Err(error) => PartContent::Failed(error),
        })
    }
}

pub(crate) fn path(folder: &Path, operator: &str, worker: u32, extension: &str) -> PathBuf {
    folder.join(format!("{operator}-{worker}.{extension}"))
}

/// Returns the path of a part until it is complete. The extension is kept, because some writers choose the format by it.
pub(crate) fn temporary(folder: &Path, operator: &str, worker: u32, extension: &str) -> PathBuf {
    folder.join(format!("{TEMPORARY}-{operator}-{worker}.{extension}"))
}
