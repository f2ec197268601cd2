//! The store: a folder of the snapshots of one run.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::{Damage, SnapshotError};
use super::files::{Disk, Files};
use super::garbage;
use super::generation::{Generation, claim, newest};
use super::layout::{Id, Layout, claimed, manifest_of};
use super::manifest::{Identity, LAYOUT, Manifest, PartRecord};
use super::restored::{Found, Restored, verify};
use crate::step::Step;

/// How a folder of snapshots is kept.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// Which run it is of, and what is running; snapshots of another run are not restored.
    pub identity: Identity,
    /// How many good snapshots are kept, the newest; at least 1.
    pub keep: usize,
}

/// A folder of the snapshots of one run, opened by one process of several that may have run, or still run.
///
/// ```text
/// generation-0002                       which process may write: the newest
/// step-00000009.0001.json               a manifest: there whole, or not at all
/// step-00000009/0001/schedule-0.arrow   a part: operator, worker
/// end/0002/schedule-0.arrow             a part of the last snapshot of a run that ended
/// ```
///
/// Parts and manifests never change once they have their names. A file is written under a temporary name, brought to the disk and then
/// renamed, and the folder is brought to the disk; a manifest comes after all of its parts. So whatever instant a process dies at,
/// what has a manifest is complete, and what has none is removed by the next process that opens the folder.
///
/// ```
/// use rollpacker_dataflow::snapshot::{Identity, Part, SnapshotStore, StoreOptions};
/// use rollpacker_dataflow::step::Step;
///
/// let folder = tempfile::tempdir()?;
/// let options = StoreOptions { identity: Identity::default(), keep: 2 };
/// let store = SnapshotStore::open(folder.path(), options)?;
/// assert!(store.latest()?.restored.is_none());
///
/// let part = Part::bytes("json", b"[3, 4]".to_vec()).fact("cursor", 12);
/// let parts = store.write(Step(9), "schedule", 0, part)?;
/// store.commit(Step(9), parts.into_iter().collect(), 1)?;
///
/// let restored = store.latest()?.restored.expect("one was committed");
/// assert_eq!(restored.step(), Step(9));
/// assert_eq!(restored.parts("schedule")?, [(0, b"[3, 4]".to_vec())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SnapshotStore {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) layout: Layout,
    pub(crate) generation: Generation,
    pub(crate) keep: usize,
    identity: Identity,
    swept: Vec<Damage>,
}

/// What a commit did.
#[derive(Debug)]
pub struct Committed {
    /// The snapshot's step.
    pub step: Step,
    /// The bytes of its parts.
    pub bytes: u64,
    /// The number of its parts.
    pub parts: usize,
    /// Why older snapshots could not be removed. The snapshot itself is good.
    pub untidy: Option<SnapshotError>,
}

impl SnapshotStore {
    /// Opens the folder, which is made if there is none, as a new generation; what older ones have left unfinished is removed.
    ///
    /// # Errors
    /// If the folder cannot be written.
    pub fn open(folder: impl Into<PathBuf>, options: StoreOptions) -> Result<Self, SnapshotError> {
        Self::open_on(Arc::new(Disk), folder.into(), options)
    }

    /// Takes part in a generation that another process of the same cluster has opened.
    ///
    /// # Errors
    /// If it was not opened in this folder, or a newer one was.
    pub fn join(
        folder: impl Into<PathBuf>,
        generation: Generation,
        options: StoreOptions,
    ) -> Result<Self, SnapshotError> {
        let store = Self::of(Arc::new(Disk), folder.into(), generation, options);
        store.fence()?;
        if newest(&*store.files, &store.layout)? < generation {
            return Err(SnapshotError::Elsewhere { folder: store.layout.root, generation });
        }
        Ok(store)
    }

    /// The steps of the snapshots in a folder, the newest first, without opening it; none where there is no folder.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn steps_in(folder: &Path) -> Result<Vec<Step>, SnapshotError> {
        match Disk.list(folder) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
            names => {
                let names = names.map_err(SnapshotError::io("list", folder))?;
                Ok(newest_first(&names).into_iter().map(|id| id.step).collect())
            }
        }
    }

    /// Removes all snapshots in a folder, and what else is in it but for the claims of those who opened it: one that is still running finds
    /// that someone has opened it since.
    ///
    /// # Errors
    /// If something cannot be removed.
    pub fn clear(folder: &Path) -> Result<(), SnapshotError> {
        let names = Disk.list(folder).map_err(SnapshotError::io("list", folder))?;
        for name in names.iter().filter(|name| claimed(name).is_none()) {
            let path = folder.join(name);
            let is_folder = path.symlink_metadata().is_ok_and(|found| found.is_dir());
            let removed = if is_folder { Disk.remove_folder(&path) } else { Disk.remove(&path) };
            removed.map_err(SnapshotError::io("remove", &path))?;
        }
        Ok(())
    }

    pub(crate) fn open_on(
        files: Arc<dyn Files>,
        folder: PathBuf,
        options: StoreOptions,
    ) -> Result<Self, SnapshotError> {
        let layout = Layout { root: folder.clone() };
        let generation = claim(&*files, &layout)?;
        let mut store = Self::of(files, folder, generation, options);
        store.swept = garbage::sweep(&store)?;
        Ok(store)
    }

    fn of(
        files: Arc<dyn Files>,
        root: PathBuf,
        generation: Generation,
        options: StoreOptions,
    ) -> Self {
        Self {
            files,
            layout: Layout { root },
            generation,
            keep: options.keep.max(1),
            identity: options.identity,
            swept: Vec::new(),
        }
    }

    /// The generation of this process.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The newest snapshot of which every file is as it was written, and why newer ones are not it.
    ///
    /// # Errors
    /// If the folder cannot be read. Damaged files are no error: the snapshots that need them are passed over.
    pub fn latest(&self) -> Result<Found, SnapshotError> {
        self.find(|_| true)
    }

    /// The same, of the snapshots of `step`.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn at(&self, step: Step) -> Result<Found, SnapshotError> {
        let mut found = self.find(|id| id.step == step)?;
        if found.restored.is_none() && found.damage.is_empty() {
            let (ids, path) = (self.manifests()?, self.layout.root.clone());
            let steps: Vec<_> = ids.iter().map(|id| id.step.ordinal().to_string()).collect();
            found.damage.push(Damage::new(
                &path,
                format!("a snapshot behind step {}", step.ordinal()),
                format!("those behind [{}]", steps.join(", ")),
            ));
        }
        Ok(found)
    }

    /// Removes the snapshots that are newer than `restored`, for a run that goes on from it: they are of steps that are done again, and
    /// [`latest`](Self::latest) would find them first.
    ///
    /// # Errors
    /// If one cannot be removed, or if a newer generation was opened.
    pub fn go_back_to(&self, restored: &Restored) -> Result<(), SnapshotError> {
        self.fence()?;
        let Manifest { generation, step, .. } = restored.manifest();
        garbage::abandon(self, Id { generation: *generation, step: *step })
    }

    fn find(&self, wanted: impl Fn(&Id) -> bool) -> Result<Found, SnapshotError> {
        let mut found = Found { restored: None, damage: self.swept.clone() };
        for id in self.manifests()?.into_iter().filter(wanted) {
            match verify(&*self.files, &self.layout, id, &self.identity.run) {
                Ok(manifest) => {
                    found.restored =
                        Some(Restored::new(self.files.clone(), self.layout.clone(), manifest));
                    break;
                }
                Err(damage) => found.damage.push(damage),
            }
        }
        Ok(found)
    }

    /// The snapshots that have a manifest, the newest first.
    pub(crate) fn manifests(&self) -> Result<Vec<Id>, SnapshotError> {
        let names = self
            .files
            .list(&self.layout.root)
            .map_err(SnapshotError::io("list", &self.layout.root))?;
        Ok(newest_first(&names))
    }

    pub(crate) fn part_folder(&self, step: Step) -> PathBuf {
        self.layout.folder(Id { generation: self.generation, step })
    }

    /// Makes a snapshot of parts that are on the disk, and removes the oldest ones. `step` is the last step that is in it, `workers` how
    /// many the graph has.
    ///
    /// # Errors
    /// If the manifest cannot be written, or if a newer generation was opened; the snapshot then is none.
    pub fn commit(
        &self,
        step: Step,
        mut parts: Vec<PartRecord>,
        workers: u32,
    ) -> Result<Committed, SnapshotError> {
        parts.sort_by(|one, other| {
            (&one.operator, one.worker).cmp(&(&other.operator, other.worker))
        });
        let manifest = Manifest {
            layout: LAYOUT,
            identity: self.identity.clone(),
            generation: self.generation,
            step,
            workers,
            parts,
        };
        self.unless_fenced(self.put(&manifest))?;
        let bytes = manifest.parts.iter().map(|part| part.length).sum();
        let untidy = self.fence().and_then(|()| garbage::retain(self, step)).err();
        Ok(Committed { step, bytes, parts: manifest.parts.len(), untidy })
    }

    fn put(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let id = Id { generation: self.generation, step: manifest.step };
        let draft = self.layout.draft(id);
        let encoded = manifest.encode();
        let written = self
            .fill(&draft, |file| file.write_all(&encoded))
            // As late as can be: whoever opens the folder after this finds the snapshot of an older generation, complete.
            .and_then(|_| self.fence())
            .and_then(|()| self.publish(&draft, &self.layout.manifest(id)));
        written.inspect_err(|_| drop(self.files.remove(&draft)))
    }

    /// Removes the parts of a snapshot that has failed.
    ///
    /// # Errors
    /// If they cannot be removed.
    pub fn discard(&self, step: Step) -> Result<(), SnapshotError> {
        let folder = self.part_folder(step);
        self.files.remove_folder(&folder).map_err(SnapshotError::io("remove", &folder))
    }

    /// Whether this process may still write.
    ///
    /// # Errors
    /// If a newer generation was opened.
    pub fn fence(&self) -> Result<(), SnapshotError> {
        let newest = newest(&*self.files, &self.layout)?;
        if newest > self.generation {
            let (folder, ours) = (self.layout.root.clone(), self.generation);
            return Err(SnapshotError::Fenced { folder, ours, newest });
        }
        Ok(())
    }

    /// That a newer generation was opened explains whatever else failed: it removes what this one writes.
    pub(crate) fn unless_fenced<T>(
        &self,
        result: Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        result.map_err(|error| match self.fence() {
            Err(fenced @ SnapshotError::Fenced { .. }) => fenced,
            _ => error,
        })
    }

    pub(crate) fn read(&self, id: Id) -> Result<Manifest, Damage> {
        super::restored::read(&*self.files, &self.layout, id)
    }
}

/// The snapshots whose manifests are among `names`.
fn newest_first(names: &[String]) -> Vec<Id> {
    let mut ids: Vec<_> = names.iter().filter_map(|name| manifest_of(name)).collect();
    ids.sort_unstable_by(|one, other| other.cmp(one));
    ids
}

/// All of a file.
pub(crate) fn read_all(files: &dyn Files, path: &Path) -> std::io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    files.open(path)?.read_to_end(&mut bytes)?;
    Ok(bytes)
}
