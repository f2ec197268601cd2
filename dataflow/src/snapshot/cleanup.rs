//! Garbage collection: removes surplus snapshots and files that no snapshot needs.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::error::{Damage, SnapshotError};
use super::generation::Generation;
use super::layout::{SnapshotId, draft_of, step_of};
use super::store::SnapshotStore;
use crate::step::Step;

/// Removes the unfinished files of older generations and returns one [`Damage`] for each snapshot whose parts were removed.
pub(crate) fn remove_unfinished(store: &SnapshotStore) -> Result<Vec<Damage>, SnapshotError> {
    remove_unneeded(store, &store.manifests()?, None)
}

/// Keeps the newest snapshots, up to and including the `keep`-th good one, with the files that they need, and removes the older snapshots.
/// Also keeps the files of this generation for the step `committed` and later steps, because they may still be written.
///
/// Manifests are removed first. If a crash interrupts the removal, the remaining parts have no manifest and are removed at the next
/// opening.
pub(crate) fn remove_surplus(store: &SnapshotStore, committed: Step) -> Result<(), SnapshotError> {
    let mut kept = store.manifests()?;
    let mut good = 0;
    let number = kept.iter().position(|&id| {
        good += usize::from(is_good(store, id));
        good == store.keep
    });
    // Damaged snapshots do not count as kept, so that `keep` usable ones remain.
    let dropped = kept.split_off(number.map_or(kept.len(), |last| last + 1));
    for &id in &dropped {
        remove(store, store.layout.manifest(id))?;
    }
    if !dropped.is_empty() {
        store.sync_folder(&store.layout.root)?;
    }
    remove_unneeded(store, &kept, Some(committed)).map(drop)
}

/// Removes the snapshots that are newer than `kept`. Their parts are removed at the next commit.
pub(crate) fn remove_newer(store: &SnapshotStore, kept: SnapshotId) -> Result<(), SnapshotError> {
    for id in store.manifests()?.into_iter().filter(|&id| id > kept) {
        remove(store, store.layout.manifest(id))?;
    }
    store.sync_folder(&store.layout.root)
}

/// Returns `true` if a snapshot is probably good: its manifest is valid and its files have the right length. The content is not read.
fn is_good(store: &SnapshotStore, id: SnapshotId) -> bool {
    store.read(id).is_ok_and(|manifest| {
        manifest.parts.iter().all(|part| {
            let length = store.files.length(&store.layout.root.join(&part.path));
            length.is_ok_and(|length| length == part.length)
        })
    })
}

fn remove(store: &SnapshotStore, path: PathBuf) -> Result<(), SnapshotError> {
    store.files.remove(&path).map_err(SnapshotError::io("remove", &path))
}

/// Removes a folder. A process that has not yet detected that it is fenced may still write into it. Files that it adds meanwhile are
/// removed at the next commit.
fn remove_folder(store: &SnapshotStore, path: &Path) -> Result<(), SnapshotError> {
    match store.files.remove_folder(path) {
        Err(error) if error.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
        removed => removed.map_err(SnapshotError::io("remove", path)),
    }
}

/// Removes the files that no snapshot in `kept` needs, if they belong to an older generation, or to this generation and a step before
/// `before`. `None` means that this generation has written nothing yet. If a manifest in `kept` cannot be read, removes only temporary
/// manifests. Returns one [`Damage`] for each snapshot whose parts were removed.
fn remove_unneeded(
    store: &SnapshotStore,
    kept: &[SnapshotId],
    before: Option<Step>,
) -> Result<Vec<Damage>, SnapshotError> {
    let (layout, files) = (&store.layout, &store.files);
    let needed = needed(store, kept);
    let is_left = |id: SnapshotId| {
        let ours = id.generation == store.generation && before.is_some_and(|step| id.step < step);
        ours || id.generation < store.generation
    };
    let list = |path: &Path| files.list(path).map_err(SnapshotError::io("list", path));
    let mut removed = Vec::new();
    for name in list(&layout.root)? {
        let path = layout.root.join(&name);
        if draft_of(&name).is_some_and(is_left) {
            remove(store, path)?;
        } else if let Some(step) = step_of(&name)
            && let Some(needed) = &needed
        {
            let all = list(&path)?;
            let left: Vec<_> = ids(&all, step)
                .filter(|&id| is_left(id) && !needed.contains(&layout.folder(id)))
                .collect();
            for &id in &left {
                let folder = layout.folder(id);
                remove_folder(store, &folder)?;
                let expected = format!("a manifest of the parts in `{}`", folder.display());
                removed.push(Damage::new(&layout.manifest(id), expected, "none: they are removed"));
            }
            if left.len() == all.len() && before.is_none_or(|before| step < before) {
                remove_folder(store, &path)?;
            }
        }
    }
    Ok(removed)
}

fn ids(names: &[String], step: Step) -> impl Iterator<Item = SnapshotId> {
    names
        .iter()
        .filter_map(|name| name.parse::<Generation>().ok())
        .map(move |generation| SnapshotId { generation, step })
}

/// Returns the folders that hold the parts of the snapshots `kept`. Returns `None` if a manifest cannot be read, because the folders that
/// it needs are then unknown.
fn needed(store: &SnapshotStore, kept: &[SnapshotId]) -> Option<BTreeSet<PathBuf>> {
    let mut needed: BTreeSet<_> = kept.iter().map(|&id| store.layout.folder(id)).collect();
    for &id in kept {
        let manifest = store.read(id).ok()?;
        let parts = manifest.parts.iter().map(|part| store.layout.root.join(&part.path));
        needed.extend(parts.filter_map(|path| path.parent().map(PathBuf::from)));
    }
    Some(needed)
}
