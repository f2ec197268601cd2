//! Writes files under a temporary name, syncs them and renames them.

use std::io::{self, Write};
use std::path::Path;

use super::error::SnapshotError;
use super::hash::{HashingWriter, length_and_sha256};
use super::manifest::PartRecord;
use super::part::{self, Part, PartContent};
use super::store::SnapshotStore;
use crate::step::Step;

/// The version of the layout of all parts.
const PART_VERSION: u32 = 1;

impl SnapshotStore {
    /// Writes the part of `operator` on `worker` to the snapshot of `step`, or of the end of the run for [`Step::END`]. The part is on disk
    /// when this returns. Returns `None` if the part has no file.
    ///
    /// # Errors
    /// If the part cannot be written, or a newer generation was claimed. An incomplete file is removed if possible.
    pub fn write(
        &self,
        step: Step,
        operator: &str,
        worker: u32,
        part: Part,
    ) -> Result<Option<PartRecord>, SnapshotError> {
        self.fence()?;
        let folder = self.part_folder(step);
        let (extension, write) = match part.content {
            PartContent::Nothing => return Ok(None),
            PartContent::Failed(error) => return self.unless_fenced(Err(error)),
            PartContent::Written { extension, write } => (extension, Some(write)),
            PartContent::External { extension, draft, wait } => {
                let written = wait().map_err(|error| SnapshotError::Unwritten {
                    operator: operator.to_owned(),
                    worker,
                    message: error.to_string(),
                });
                self.unless_fenced(written.inspect_err(|_| drop(self.files.remove(&draft))))?;
                (extension, None)
            }
        };
        let draft = part::temporary(&folder, operator, worker, &extension);
        let path = part::path(&folder, operator, worker, &extension);
        let published = self.fill_and_publish(&folder, &draft, &path, write);
        let (length, sha256) =
            self.unless_fenced(published.inspect_err(|_| drop(self.files.remove(&draft))))?;
        Ok(Some(PartRecord {
            operator: operator.to_owned(),
            worker,
            path: self.layout.relative(&path),
            length,
            sha256,
            version: PART_VERSION,
            facts: part.facts,
        }))
    }

    /// Fills `draft`, unless an external writer has filled it, and renames it to `path`. Returns the length and SHA-256 of the file.
    fn fill_and_publish(
        &self,
        folder: &Path,
        draft: &Path,
        path: &Path,
        write: Option<impl FnOnce(&mut dyn Write) -> io::Result<()>>,
    ) -> Result<(u64, String), SnapshotError> {
        let measured = if let Some(write) = write {
            self.prepare(folder)?;
            self.fill(draft, write)?
        } else {
            self.files.sync(draft).map_err(SnapshotError::io("sync", draft))?;
            let mut file = self.files.open(draft).map_err(SnapshotError::io("read", draft))?;
            length_and_sha256(&mut *file).map_err(SnapshotError::io("read", draft))?
        };
        self.publish(draft, path)?;
        Ok(measured)
    }

    pub(crate) fn fill(
        &self,
        path: &Path,
        write: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(u64, String), SnapshotError> {
        let (mut write, mut measured) = (Some(write), None);
        self.files
            .write(path, &mut |file| {
                let mut hashing = HashingWriter::new(file);
                if let Some(write) = write.take() {
                    write(&mut hashing)?;
                }
                measured = Some(hashing.finish());
                Ok(())
            })
            .map_err(SnapshotError::io("write", path))?;
        Ok(measured.expect("invariant: a file is filled before it is written"))
    }

    /// Creates a folder below the root and makes its name durable.
    pub(crate) fn prepare(&self, folder: &Path) -> Result<(), SnapshotError> {
        self.files.create_folder(folder).map_err(SnapshotError::io("make the folder", folder))?;
        // Sync the parents: the name of a new folder is durable only with the folder that contains it.
        let above =
            folder.ancestors().skip(1).take_while(|path| path.starts_with(&self.layout.root));
        for path in above {
            self.sync_folder(path)?;
        }
        Ok(())
    }

    pub(crate) fn publish(&self, draft: &Path, path: &Path) -> Result<(), SnapshotError> {
        self.files.rename(draft, path).map_err(SnapshotError::io("rename to", path))?;
        self.sync_folder(path.parent().unwrap_or(&self.layout.root))
    }

    pub(crate) fn sync_folder(&self, path: &Path) -> Result<(), SnapshotError> {
        self.files.sync_folder(path).map_err(SnapshotError::io("sync", path))
    }
}
