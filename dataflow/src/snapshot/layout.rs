//! The layout of a snapshot folder: where the files are and what their names mean.

use std::path::{Path, PathBuf};

use super::generation::Generation;
use crate::step::Step;

#[derive(Clone, Debug)]
pub(crate) struct SnapshotLayout {
    pub(crate) root: PathBuf,
}

/// The identity of a snapshot: a generation and a step. Ordered by generation first: the snapshots of a newer process descend from the
/// snapshot that the newer process restored, even if an older process got further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SnapshotId {
    pub(crate) generation: Generation,
    pub(crate) step: Step,
}

impl SnapshotLayout {
    pub(crate) fn claim(&self, generation: Generation) -> PathBuf {
        self.root.join(format!("generation-{generation}"))
    }

    pub(crate) fn manifest(&self, id: SnapshotId) -> PathBuf {
        self.root.join(format!("{}.{}.json", folder_of(id.step), id.generation))
    }

    /// Returns the path at which a manifest is written before it is published.
    pub(crate) fn draft(&self, id: SnapshotId) -> PathBuf {
        self.root.join(format!("{}.{}.{TEMPORARY}", folder_of(id.step), id.generation))
    }

    /// Returns the folder of the parts of a snapshot. The parts of the end of a run have a folder of their own, because the last step is
    /// known only when all parts are reported.
    pub(crate) fn folder(&self, id: SnapshotId) -> PathBuf {
        self.root.join(folder_of(id.step)).join(id.generation.to_string())
    }

    /// Returns a path relative to the root, as manifests store it.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned()
    }
}

/// The extension of temporary manifests, and the prefix of temporary parts.
pub(crate) const TEMPORARY: &str = "tmp";

fn folder_of(step: Step) -> String {
    if step == Step::END { "end".to_owned() } else { format!("step-{:08}", step.0) }
}

/// Returns the generation that a file claims; `None` for other files.
pub(crate) fn claim_of(name: &str) -> Option<Generation> {
    name.strip_prefix("generation-")?.parse().ok()
}

/// Returns the snapshot of which a file is the manifest; `None` for other files.
pub(crate) fn manifest_of(name: &str) -> Option<SnapshotId> {
    let (step, generation) = name.strip_suffix(".json")?.split_once('.')?;
    Some(SnapshotId { generation: generation.parse().ok()?, step: step_of(step)? })
}

/// Returns the snapshot for which a temporary manifest was written; `None` for other files.
pub(crate) fn draft_of(name: &str) -> Option<SnapshotId> {
    let (step, generation) = name.strip_suffix(TEMPORARY)?.strip_suffix('.')?.split_once('.')?;
    Some(SnapshotId { generation: generation.parse().ok()?, step: step_of(step)? })
}

/// Returns the step whose parts a folder holds; `None` for other folders.
pub(crate) fn step_of(name: &str) -> Option<Step> {
    if name == "end" {
        return Some(Step::END);
    }
    name.strip_prefix("step-")?.parse().ok().map(Step)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_names_parse_back_to_their_ids() {
        let layout = SnapshotLayout { root: "run".into() };
        let name = |path: PathBuf| {
            path.file_name().expect("a name").to_str().expect("of ASCII").to_owned()
        };
        for step in [Step(0), Step(7), Step(123_456_789), Step::END] {
            let id = SnapshotId { generation: Generation(12), step };
            assert_eq!(manifest_of(&name(layout.manifest(id))), Some(id));
            assert_eq!(draft_of(&name(layout.draft(id))), Some(id));
            assert_eq!(manifest_of(&name(layout.draft(id))), None);
            let folder = layout.folder(id);
            assert_eq!(step_of(&name(folder.parent().expect("a parent").into())), Some(step));
            assert_eq!(name(folder).parse(), Ok(id.generation));
        }
        assert_eq!(claim_of(&name(layout.claim(Generation(3)))), Some(Generation(3)));
        assert_eq!(claim_of("generation-"), None);
    }
}
