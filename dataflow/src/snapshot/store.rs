//! The snapshot store: a folder with the snapshots of one run.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::claim::{claim, newest};
use super::cleanup;
use super::error::{Damage, SnapshotError};
use super::files::{Disk, Files};
use super::generation::Generation;
use super::layout::{SnapshotId, SnapshotLayout, claim_of, manifest_of};
use super::manifest::{Identity, LAYOUT, Manifest, PartRecord};
use super::restored::{RestoredSnapshot, SearchResult, verify};
use crate::step::Step;

/// Options of a snapshot store.
#[derive(Clone, Debug)]
pub struct StoreOptions {
    /// The run that the folder belongs to, and the program. Snapshots of other runs are not restored.
    pub identity: Identity,
    /// The number of good snapshots to keep, counted from the newest; 0 counts as 1.
    pub keep: usize,
}

/// A folder with the snapshots of one run, opened by one process. Other processes may have opened it before or may still use it.
///
/// ```text
/// generation-0002                       the claim of a process: the newest may write
/// step-00000009.0001.json               a manifest: complete or absent
/// step-00000009/0001/schedule-0.arrow   a part: operator, worker
/// end/0002/schedule-0.arrow             a part of the last snapshot of a run that ended
/// ```
///
/// Parts and manifests never change once they have their final names. A file is written under a temporary name, synced and renamed, and
/// then its folder is synced. A manifest is published after all of its parts. Whenever a process dies, a snapshot with a manifest is
/// therefore complete. Parts without a manifest are removed by the next process that opens the folder.
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
/// let restored = store.latest()?.restored.expect("a committed snapshot");
/// assert_eq!(restored.step(), Step(9));
/// assert_eq!(restored.parts("schedule")?, [(0, b"[3, 4]".to_vec())]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct SnapshotStore {
    pub(crate) files: Arc<dyn Files>,
    pub(crate) layout: SnapshotLayout,
    pub(crate) generation: Generation,
    pub(crate) keep: usize,
    identity: Identity,
    removed_at_claim: Vec<Damage>,
}

/// The result of a commit.
#[derive(Debug)]
pub struct Committed {
    /// The last step that the snapshot includes.
    pub step: Step,
    /// The total size of the snapshot's parts in bytes.
    pub bytes: u64,
    /// The number of the snapshot's files. Parts without a file do not count.
    pub parts: usize,
    /// The reason why older snapshots could not be removed, if any. The snapshot itself is valid.
    pub cleanup_error: Option<SnapshotError>,
}

impl SnapshotStore {
    /// Opens a folder as a new generation and creates it if necessary. Removes what older generations have left unfinished.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or an unfinished file cannot be removed.
    pub fn open(folder: impl Into<PathBuf>, options: StoreOptions) -> Result<Self, SnapshotError> {
        Self::open_on(Arc::new(Disk), folder.into(), options)
    }

    /// Opens an existing folder to read its snapshots; the folder is not accessed until they are read. Does not [claim](Self::claim) a
    /// generation, so a process that writes into the folder can continue. A commit to this store fails with [`SnapshotError::Fenced`] if
    /// any process has claimed a generation.
    #[must_use]
    pub fn read_only(folder: impl Into<PathBuf>, options: StoreOptions) -> Self {
        Self::of(Arc::new(Disk), folder.into(), Generation::default(), options)
    }

    /// Opens a folder in the generation that another process of the same cluster has claimed.
    ///
    /// # Errors
    /// If the folder cannot be read or does not contain the generation, or a newer generation was claimed.
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

    /// Returns the steps of the snapshots in a folder, the newest first. Does not claim a generation, and does not verify the snapshots.
    /// Returns an empty list if there is no such folder.
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

    /// Removes all snapshots in a folder and all other files except the claims of generations. The claims remain so that a process which
    /// still runs detects that another one has opened the folder.
    ///
    /// # Errors
    /// If the folder cannot be read, or something in it cannot be removed.
    pub fn clear(folder: &Path) -> Result<(), SnapshotError> {
        let names = Disk.list(folder).map_err(SnapshotError::io("list", folder))?;
        for name in names.iter().filter(|name| claim_of(name).is_none()) {
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
        Self::of(files, folder, Generation::default(), options).claim()
    }

    /// Claims a new generation and creates the folder if necessary. Removes what older generations have left unfinished.
    ///
    /// # Errors
    /// If the folder cannot be read or written, or an unfinished file cannot be removed.
    pub fn claim(self) -> Result<Self, SnapshotError> {
        let generation = claim(&*self.files, &self.layout)?;
        let store = Self { generation, ..self };
        Ok(Self { removed_at_claim: cleanup::remove_unfinished(&store)?, ..store })
    }

    /// Returns the unfinished snapshots of older generations that were removed when this generation was claimed. Empty for a store that has
    /// claimed no generation.
    #[must_use]
    pub fn removed_at_claim(&self) -> &[Damage] {
        &self.removed_at_claim
    }

    fn of(
        files: Arc<dyn Files>,
        root: PathBuf,
        generation: Generation,
        options: StoreOptions,
    ) -> Self {
        Self {
            files,
            layout: SnapshotLayout { root },
            generation,
            keep: options.keep.max(1),
            identity: options.identity,
            removed_at_claim: Vec::new(),
        }
    }

    /// Returns the generation in which this store writes; 0 if the store was opened only for reading.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// Returns the newest snapshot of the run whose files are all intact, with the reasons why newer snapshots were skipped
    /// (see [`SearchResult::damage`]).
    ///
    /// # Errors
    /// If the folder cannot be read. Damaged files are not an error: the snapshots that need them are skipped.
    pub fn latest(&self) -> Result<SearchResult, SnapshotError> {
        self.find(|_| true)
    }

    /// Returns the newest intact snapshot of `step`, as [`latest`](Self::latest) does for all steps. If there is no such snapshot and
    /// [`SearchResult::damage`] would be empty, it gets one entry that lists the steps of all snapshots.
    ///
    /// # Errors
    /// If the folder cannot be read.
    pub fn at(&self, step: Step) -> Result<SearchResult, SnapshotError> {
        let mut found = self.find(|id| id.step == step)?;
        if found.restored.is_none() && found.damage.is_empty() {
            let (ids, path) = (self.manifests()?, self.layout.root.clone());
            let steps: Vec<_> = ids.iter().map(|id| id.step.ordinal().to_string()).collect();
            found.damage.push(Damage::new(
                &path,
                format!("a snapshot after step {}", step.ordinal()),
                format!("those after [{}]", steps.join(", ")),
            ));
        }
        Ok(found)
    }

    /// Removes the snapshots that are newer than `restored`, for a run that continues from it. Their steps will be computed again, and
    /// [`latest`](Self::latest) would find them first.
    ///
    /// # Errors
    /// If the folder cannot be read, a snapshot cannot be removed, or a newer generation was claimed.
    pub fn rewind_to(&self, restored: &RestoredSnapshot) -> Result<(), SnapshotError> {
        self.fence()?;
        let Manifest { generation, step, .. } = restored.manifest();
        cleanup::remove_newer(self, SnapshotId { generation: *generation, step: *step })
    }

    fn find(&self, wanted: impl Fn(&SnapshotId) -> bool) -> Result<SearchResult, SnapshotError> {
        let mut found = SearchResult { restored: None, damage: self.removed_at_claim.clone() };
        for id in self.manifests()?.into_iter().filter(wanted) {
            match verify(&*self.files, &self.layout, id, &self.identity.run) {
                Ok(manifest) => {
                    found.restored = Some(RestoredSnapshot::new(
                        self.files.clone(),
                        self.layout.clone(),
                        manifest,
                    ));
                    break;
                }
                Err(damage) => found.damage.push(damage),
            }
        }
        Ok(found)
    }

    /// Returns the snapshots that have a manifest, the newest first.
    pub(crate) fn manifests(&self) -> Result<Vec<SnapshotId>, SnapshotError> {
        let names = self
            .files
            .list(&self.layout.root)
            .map_err(SnapshotError::io("list", &self.layout.root))?;
        Ok(newest_first(&names))
    }

    pub(crate) fn part_folder(&self, step: Step) -> PathBuf {
        self.layout.folder(SnapshotId { generation: self.generation, step })
    }

    /// Commits a snapshot whose parts are on disk, and removes the snapshots beyond [`StoreOptions::keep`]. `step` is the last step that
    /// the snapshot includes, `parts` are the records that [`write`](Self::write) returned, and `workers` is the number of workers of the
    /// graph.
    ///
    /// The order of operations makes a commit atomic and keeps a superseded process from committing. The manifest is written to a temporary
    /// file and synced, the fence is checked, and only then is the file renamed. Old snapshots are removed after the rename, and only after
    /// another check of the fence: a newer process may be restoring one of them.
    ///
    /// # Errors
    /// If the manifest cannot be written, or a newer generation was claimed. The snapshot then does not exist, unless only the last sync of
    /// the folder failed. If older snapshots cannot be removed, the commit succeeds with a [`Committed::cleanup_error`].
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
        self.unless_fenced(self.write_manifest(&manifest))?;
        let bytes = manifest.parts.iter().map(|part| part.length).sum();
        let untidy = self.fence().and_then(|()| cleanup::remove_surplus(self, step)).err();
        Ok(Committed { step, bytes, parts: manifest.parts.len(), cleanup_error: untidy })
    }

    fn write_manifest(&self, manifest: &Manifest) -> Result<(), SnapshotError> {
        let id = SnapshotId { generation: self.generation, step: manifest.step };
        let draft = self.layout.draft(id);
        let encoded = manifest.encode();
        let written = self
            .fill(&draft, |file| file.write_all(&encoded))
            // Check the fence as late as possible: a process that opens the folder after this finds a complete snapshot of an older
            // generation.
            .and_then(|_| self.fence())
            .and_then(|()| self.publish(&draft, &self.layout.manifest(id)));
        written.inspect_err(|_| drop(self.files.remove(&draft)))
    }

    /// Removes the parts of a snapshot that is not committed, because it failed or contains nothing new. `step` is the step for which this
    /// process wrote the parts.
    ///
    /// # Errors
    /// If the parts cannot be removed.
    pub fn discard(&self, step: Step) -> Result<(), SnapshotError> {
        let folder = self.part_folder(step);
        self.files.remove_folder(&folder).map_err(SnapshotError::io("remove", &folder))
    }

    /// Checks that this process may still write.
    ///
    /// # Errors
    /// If a newer generation was claimed, or the folder cannot be read.
    pub fn fence(&self) -> Result<(), SnapshotError> {
        let newest = newest(&*self.files, &self.layout)?;
        if newest > self.generation {
            let (folder, ours) = (self.layout.root.clone(), self.generation);
            return Err(SnapshotError::Fenced { folder, ours, newest });
        }
        Ok(())
    }

    /// Replaces an error by [`SnapshotError::Fenced`] if a newer generation was claimed. The newer process removes the files of this one,
    /// which explains any other failure.
    pub(crate) fn unless_fenced<T>(
        &self,
        result: Result<T, SnapshotError>,
    ) -> Result<T, SnapshotError> {
        result.map_err(|error| match self.fence() {
            Err(fenced @ SnapshotError::Fenced { .. }) => fenced,
            _ => error,
        })
    }

    pub(crate) fn read(&self, id: SnapshotId) -> Result<Manifest, Damage> {
        super::restored::read(&*self.files, &self.layout, id)
    }
}

/// Returns the snapshots whose manifests are among `names`, the newest first.
fn newest_first(names: &[String]) -> Vec<SnapshotId> {
    let mut ids: Vec<_> = names.iter().filter_map(|name| manifest_of(name)).collect();
    ids.sort_unstable_by(|one, other| other.cmp(one));
    ids
}
