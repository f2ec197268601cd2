//! Snapshots that are read back.

use std::io::{Cursor, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use arrow_array::RecordBatch;
use arrow_ipc::reader::FileReader;
use arrow_schema::ArrowError;

use super::error::{Damage, SnapshotError};
use super::files::{Files, read_all};
use super::hash::{length_and_sha256, sha256};
use super::layout::{SnapshotId, SnapshotLayout};
use super::manifest::{Manifest, PartRecord};
use crate::fault::catch_panic;
use crate::step::Step;

/// The result of the search for a snapshot to resume from.
#[derive(Debug)]
pub struct SearchResult {
    /// The snapshot; `None` if there is none that can be trusted.
    pub restored: Option<RestoredSnapshot>,
    /// The damaged snapshots that were skipped or removed, with reasons. The snapshots that were removed when the folder was opened come
    /// first. The skipped snapshots follow, the newest first. See also [`SnapshotStore::at`](super::SnapshotStore::at).
    pub damage: Vec<Damage>,
}

/// A snapshot whose files are all verified.
#[derive(Clone)]
pub struct RestoredSnapshot {
    files: Arc<dyn Files>,
    layout: SnapshotLayout,
    manifest: Arc<Manifest>,
}

impl RestoredSnapshot {
    pub(crate) fn new(files: Arc<dyn Files>, layout: SnapshotLayout, manifest: Manifest) -> Self {
        Self { files, layout, manifest: Arc::new(manifest) }
    }

    /// Returns the verified manifest of the snapshot.
    #[must_use]
    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the last step that the snapshot includes. A resumed run continues with the next step.
    #[must_use]
    pub fn step(&self) -> Step {
        self.manifest.step
    }

    /// Returns the records of an operator's parts, in the order of the workers that wrote them. The number of parts may differ from the
    /// number of workers of the current run.
    pub fn records<'a>(&'a self, operator: &'a str) -> impl Iterator<Item = &'a PartRecord> {
        self.manifest.parts.iter().filter(move |part| part.operator == operator)
    }

    /// Returns the path of a part's file: [`PartRecord::path`] in the folder of the run's snapshots.
    #[must_use]
    pub fn path(&self, record: &PartRecord) -> PathBuf {
        self.layout.root.join(&record.path)
    }

    /// Returns the content of all parts of an operator, each with the worker that wrote it. Each worker must select the data of its own
    /// keys from all parts.
    ///
    /// # Errors
    /// If the operator has no part, or a file cannot be read or has changed since the snapshot was found.
    pub fn parts(&self, operator: &str) -> Result<Vec<(u32, Vec<u8>)>, SnapshotError> {
        let read = |record: &PartRecord| Ok((record.worker, self.content(record)?));
        let parts: Vec<_> =
            self.records(operator).map(read).collect::<Result<_, SnapshotError>>()?;
        if parts.is_empty() { Err(self.no_part(operator)) } else { Ok(parts) }
    }

    /// Returns the rows in the parts of an operator, each batch with the worker that wrote it. The parts must have been written as rows.
    ///
    /// # Errors
    /// If [`parts`](Self::parts) fails, or a part is not an Arrow IPC file.
    pub fn rows(&self, operator: &str) -> Result<Vec<(u32, RecordBatch)>, SnapshotError> {
        let mut rows = Vec::new();
        for (record, (worker, bytes)) in self.records(operator).zip(self.parts(operator)?) {
            let batches = decode(bytes).map_err(|error| {
                Damage::new(&self.path(record), "an Arrow IPC file", error.to_string())
            })?;
            rows.extend(batches.into_iter().map(|batch| (worker, batch)));
        }
        Ok(rows)
    }

    fn content(&self, record: &PartRecord) -> Result<Vec<u8>, SnapshotError> {
        let path = self.path(record);
        let bytes = read_all(&*self.files, &path).map_err(SnapshotError::io("read", &path))?;
        compare(&path, record, (bytes.len() as u64, sha256(&bytes)))?;
        Ok(bytes)
    }

    fn no_part(&self, operator: &str) -> SnapshotError {
        let mut names: Vec<_> =
            self.manifest.parts.iter().map(|part| part.operator.as_str()).collect();
        names.dedup();
        let found = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
        SnapshotError::NoPart { step: self.step(), operator: operator.to_owned(), found }
    }
}

impl std::fmt::Debug for RestoredSnapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Restored").field("manifest", &self.manifest).finish_non_exhaustive()
    }
}

/// Reads the batches of an Arrow IPC file. Arrow's reader panics at some files whose parts do not fit each other.
fn decode(bytes: Vec<u8>) -> Result<Vec<RecordBatch>, ArrowError> {
    let read = || FileReader::try_new(Cursor::new(bytes), None)?.collect();
    catch_panic(read).unwrap_or_else(|message| Err(ArrowError::ParseError(message)))
}

/// Reads a manifest, checks that it belongs to the run `run`, and verifies every file that it lists.
pub(crate) fn verify(
    files: &dyn Files,
    layout: &SnapshotLayout,
    id: SnapshotId,
    run: &str,
) -> Result<Manifest, Damage> {
    let manifest = read(files, layout, id)?;
    let path = layout.manifest(id);
    if manifest.identity.run != run {
        let found = format!("one of run `{}`", manifest.identity.run);
        return Err(Damage::new(&path, format!("a snapshot of run `{run}`"), found));
    }
    for part in &manifest.parts {
        let path = layout.root.join(&part.path);
        let measured = files
            .open(&path)
            .and_then(|mut file| length_and_sha256(&mut *file))
            .map_err(|error| unreadable(&path, &format!("{} bytes", part.length), &error))?;
        compare(&path, part, measured)?;
    }
    Ok(manifest)
}

/// Reads a manifest and checks that its step and generation are those of `id`.
pub(crate) fn read(
    files: &dyn Files,
    layout: &SnapshotLayout,
    id: SnapshotId,
) -> Result<Manifest, Damage> {
    let path = layout.manifest(id);
    let bytes = read_all(files, &path).map_err(|error| unreadable(&path, "a manifest", &error))?;
    let manifest = Manifest::decode(&bytes)
        .map_err(|(expected, found)| Damage::new(&path, expected, found))?;
    let (step, generation) = (manifest.step, manifest.generation);
    if (SnapshotId { generation, step }) != id {
        let expected = format!("step {}, generation {}", id.step, id.generation);
        return Err(Damage::new(&path, expected, format!("step {step}, generation {generation}")));
    }
    Ok(manifest)
}

fn compare(path: &Path, part: &PartRecord, (length, sha256): (u64, String)) -> Result<(), Damage> {
    if length != part.length {
        let expected = format!("{} bytes", part.length);
        return Err(Damage::new(path, expected, format!("{length} bytes")));
    }
    if sha256 != part.sha256 {
        let expected = format!("sha256 {}", part.sha256);
        return Err(Damage::new(path, expected, format!("sha256 {sha256}")));
    }
    Ok(())
}

fn unreadable(path: &Path, expected: &str, error: &std::io::Error) -> Damage {
    let found = match error.kind() {
        ErrorKind::NotFound => "no such file".to_owned(),
        _ => error.to_string(),
    };
    Damage::new(path, expected, found)
}

#[cfg(test)]
mod tests {
    use arrow_array::types::Int32Type;
    use arrow_array::{ArrayRef, BooleanArray, ListArray, StringArray, UInt64Array};
    use arrow_ipc::writer::FileWriter;

    use super::*;

    #[test]
    fn a_changed_byte_of_an_arrow_file_is_no_panic() {
        let keys: ArrayRef = Arc::new(UInt64Array::from(vec![Some(3), None, Some(5)]));
        let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "bc", ""]));
        let flags: ArrayRef = Arc::new(BooleanArray::from(vec![true, false, true]));
        let lists = [Some(vec![Some(1), Some(2)]), None, Some(vec![Some(3)])];
        let lists: ArrayRef = Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(lists));
        let columns = [("key", keys), ("name", names), ("flag", flags), ("list", lists)];
        let rows = RecordBatch::try_from_iter(columns).expect("of one length");
        let mut file = Vec::new();
        let mut writer = FileWriter::try_new(&mut file, &rows.schema()).expect("a file");
        writer.write(&rows).and_then(|()| writer.finish()).expect("written");
        assert_eq!(decode(file.clone()).expect("valid"), [rows]);
        // The lowest bit makes no length so large that its memory takes long to reserve.
        let mut refused = 0;
        for at in 0..file.len() {
            let mut changed = file.clone();
            changed[at] ^= 1;
            refused += usize::from(decode(changed).is_err());
        }
        assert!(refused > 0);
        for length in [0, 9, file.len() / 2, file.len() - 1] {
            assert!(decode(file[..length].to_vec()).is_err(), "the first {length} bytes");
        }
    }
}
