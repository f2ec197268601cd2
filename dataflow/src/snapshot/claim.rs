//! The claims of generations in the folder of a run.

use std::io::ErrorKind;
use std::path::Path;

use super::error::SnapshotError;
use super::files::Files;
use super::generation::Generation;
use super::layout::{SnapshotLayout, claim_of, manifest_of, step_of};

/// Claims the generation after the newest. Claim files are never removed, because another process could claim the generation of a removed
/// file again.
pub(crate) fn claim(
    files: &dyn Files,
    layout: &SnapshotLayout,
) -> Result<Generation, SnapshotError> {
    files
        .create_folder(&layout.root)
        .map_err(SnapshotError::io("make the folder", &layout.root))?;
    let above = layout.root.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new("."));
    // The name of the folder itself must be durable, too.
    files.sync_folder(above).map_err(SnapshotError::io("sync", above))?;
    loop {
        let next = Generation(newest(files, layout)?.0 + 1);
        let path = layout.claim(next);
        match files.create_new(&path) {
            Ok(()) => {
                files.sync_folder(&layout.root).map_err(SnapshotError::io("sync", &layout.root))?;
                return Ok(next);
            }
            // Another process was faster. Its file is listed from now on.
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(SnapshotError::io("make", &path)(error)),
        }
    }
}

/// Returns the newest generation of which the folder contains a claim, a manifest or a folder of parts, or 0 if there is none.
pub(crate) fn newest(
    files: &dyn Files,
    layout: &SnapshotLayout,
) -> Result<Generation, SnapshotError> {
    let list = |path: &Path| files.list(path).map_err(SnapshotError::io("list", path));
    let mut newest = Generation::default();
    for name in list(&layout.root)? {
        let named = claim_of(&name).or_else(|| manifest_of(&name).map(|id| id.generation));
        newest = newest.max(named.unwrap_or_default());
        if step_of(&name).is_some() {
            let within = list(&layout.root.join(&name))?;
            newest = within.iter().filter_map(|name| name.parse().ok()).fold(newest, Ord::max);
        }
    }
    Ok(newest)
}
