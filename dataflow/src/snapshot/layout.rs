//! Where the files of a run's snapshots are, and what their names say.

use std::path::{Path, PathBuf};

use super::generation::Generation;
use crate::step::Step;

/// The folder of a run's snapshots.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub(crate) root: PathBuf,
}

/// Which snapshot: of a step, by a generation. Ordered by generation first: what a newer process commits descends from what it
/// restored, also where an older one had got further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Id {
    pub(crate) generation: Generation,
    pub(crate) step: Step,
}

impl Layout {
    pub(crate) fn claim(&self, generation: Generation) -> PathBuf {
        self.root.join(format!("generation-{generation}"))
    }

    pub(crate) fn manifest(&self, id: Id) -> PathBuf {
        self.root.join(format!("{}.{}.json", folder_of(id.step), id.generation))
    }

    /// Where a manifest is written before it is one.
    pub(crate) fn draft(&self, id: Id) -> PathBuf {
        self.root.join(format!("{}.{}.{TEMPORARY}", folder_of(id.step), id.generation))
    }

    /// The folder of the parts of a snapshot. Those of the end of a run have one of their own: which step was the last is known
    /// only when all of them are in.
    pub(crate) fn folder(&self, id: Id) -> PathBuf {
        self.root.join(folder_of(id.step)).join(id.generation.to_string())
    }

    /// A path below the root, as manifests name it.
    pub(crate) fn relative(&self, path: &Path) -> String {
        path.strip_prefix(&self.root).unwrap_or(path).to_string_lossy().into_owned()
    }
}

/// How the names of files end that are not yet, or no longer, part of anything.
pub(crate) const TEMPORARY: &str = "tmp";

fn folder_of(step: Step) -> String {
    if step == Step::END { "end".to_owned() } else { format!("step-{:08}", step.0) }
}

/// The generation that a file claims.
pub(crate) fn claimed(name: &str) -> Option<Generation> {
    name.strip_prefix("generation-")?.parse().ok()
}

/// The snapshot of which a file is the manifest.
pub(crate) fn manifest_of(name: &str) -> Option<Id> {
    let (step, generation) = name.strip_suffix(".json")?.split_once('.')?;
    Some(Id { generation: generation.parse().ok()?, step: step_of(step)? })
}

/// The snapshot for which a manifest was being written.
pub(crate) fn draft_of(name: &str) -> Option<Id> {
    let (step, generation) = name.strip_suffix(TEMPORARY)?.strip_suffix('.')?.split_once('.')?;
    Some(Id { generation: generation.parse().ok()?, step: step_of(step)? })
}

/// The step whose parts are in a folder.
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
    fn names_say_what_they_are_of() {
        let layout = Layout { root: "run".into() };
        let name = |path: PathBuf| {
            path.file_name().expect("a name").to_str().expect("of ASCII").to_owned()
        };
        for step in [Step(0), Step(7), Step(123_456_789), Step::END] {
            let id = Id { generation: Generation(12), step };
            assert_eq!(manifest_of(&name(layout.manifest(id))), Some(id));
            assert_eq!(draft_of(&name(layout.draft(id))), Some(id));
            assert_eq!(manifest_of(&name(layout.draft(id))), None);
            let folder = layout.folder(id);
            assert_eq!(step_of(&name(folder.parent().expect("a parent").into())), Some(step));
            assert_eq!(name(folder).parse(), Ok(id.generation));
        }
        assert_eq!(claimed(&name(layout.claim(Generation(3)))), Some(Generation(3)));
        assert_eq!(claimed("generation-"), None);
    }
}
