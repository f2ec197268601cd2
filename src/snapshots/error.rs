//! The errors of the snapshots of a run.

use std::fmt;
use std::path::PathBuf;

use rollpacker_dataflow::snapshot::SnapshotError;
use rollpacker_dataflow::step::Step;
use rollpacker_operators::resume::ResumeError;

use crate::run_folder::RecordError;

/// The error of a value of `--resume` that is neither `latest` nor a number of steps from 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected `latest` or a number of steps, at least 1")]
pub struct ResumeFromError;

/// The reason why the snapshots of a run cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum RunSnapshotsError {
    /// The folder of the snapshots cannot be read or written.
    #[error(transparent)]
    Store(#[from] SnapshotError),
    /// The run would write its model over its initial model.
    #[error(
        "key `model.path`: expected a folder that the run does not write to, found `{}`, where it writes its model; resuming needs the initial weights, so start from a copy",
        path.display()
    )]
    ModelIsOutput {
        /// The folder of the initial model, into which the run would write its model.
        path: PathBuf,
    },
    /// There are snapshots, and the run neither resumes nor overwrites them.
    #[error(
        "{} already has snapshots: resume from them with --resume, or remove them with --overwrite",
        folder.display()
    )]
    Exists {
        /// The folder of the snapshots.
        folder: PathBuf,
    },
    /// There is no snapshot of the state after the requested number of steps.
    #[error("{}: expected a snapshot after step {steps}, found {}", folder.display(), StepList(known))]
    NoStep {
        /// The folder of the snapshots.
        folder: PathBuf,
        /// The requested number of steps.
        steps: u64,
        /// The last steps of the snapshots that exist.
        known: Vec<Step>,
    },
    /// The requested snapshot is damaged, or all snapshots are damaged if the newest valid one was requested.
    #[error("{}: no snapshot is valid\n{}", folder.display(), damage.join("\n"))]
    NoneValid {
        /// The folder of the snapshots.
        folder: PathBuf,
        /// A description of the damage of each snapshot that was tried.
        damage: Vec<String>,
    },
    /// The snapshot belongs to other prompts.
    #[error(
        "the snapshot after step {steps} was taken with other prompts: the files of `data.train_files` have other names or rows now; resume with the same files, or train from the start in another run folder"
    )]
    OtherPrompts {
        /// The number of steps after which the snapshot was taken.
        steps: Step,
    },
    /// The snapshot belongs to another recipe.
    #[error("the snapshot after step {steps} was taken with another recipe\n{}", keys.join("\n"))]
    OtherRecipe {
        /// The number of steps after which the snapshot was taken.
        steps: Step,
        /// One line per key that differs, with the value in the snapshot and the value of this run.
        keys: Vec<String>,
    },
    /// The state of the run folder in the snapshot cannot be read.
    #[error(transparent)]
    Resume(#[from] ResumeError),
    /// The run folder does not have the records that the snapshot continues.
    #[error(
        "{error}: the snapshot after step {steps} continues this file; restore it, resume from an earlier snapshot (--resume STEPS), or train from the start in another run folder"
    )]
    Records {
        /// The number of steps after which the snapshot was taken.
        steps: Step,
        /// The record that is missing or too short.
        error: RecordError,
    },
    /// The first process resumes from a snapshot that this process does not find.
    #[error(
        "{}: the first process resumes from the snapshot after step {steps}, which this process cannot find: all processes need one run folder",
        folder.display()
    )]
    NotShared {
        /// The folder of the snapshots, as this process sees it.
        folder: PathBuf,
        /// The number of steps after which the snapshot was taken.
        steps: Step,
    },
    /// The note of the first process about its snapshots cannot be read.
    #[error("cannot read the first process's note about its snapshots")]
    Note(#[source] serde_json::Error),
}

/// The last steps of snapshots, printed in reverse order and counted from 1.
struct StepList<'a>(&'a [Step]);

impl fmt::Display for StepList<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0.is_empty() {
            return f.write_str("none");
        }
        let steps: Vec<_> = self.0.iter().rev().map(|step| step.next().to_string()).collect();
        write!(f, "snapshots after {}", steps.join(", "))
    }
}
