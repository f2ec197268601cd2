//! Snapshots of a training run: their location, their identity, and the choice of the snapshot to resume from.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use anyhow::{Context, bail, ensure};
use rollpacker_dataflow::snapshot::{
    Cadence, Generation, Identity, RestoredSnapshot, SearchResult, SnapshotPlan, SnapshotStore,
    StoreOptions,
};
use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::recipe::{RawRecipe, Recipe};
use crate::run_folder::RunFolder;

/// The name of the kind of run in its [`Identity`]. A folder holds the snapshots of one kind. The facts contain the rest.
const RUN: &str = "train";
const RECIPE: &str = "recipe";
const DATA: &str = "data";

/// Keys that may change when a run is resumed. They affect the duration, the location or the reports of a run, not what it computes.
const RESUMABLE_KEYS: [&str; 38] = [
    "actor.threads",
    "data.train_files",
    "data.val_files",
    "data.val_max_samples",
    "pipeline.gradient",
    "pipeline.max_groups",
    "pipeline.reward",
    "placement.every",
    "placement.from",
    "placement.headroom",
    "placement.keep",
    "placement.kind",
    "placement.rounds",
    "placement.to",
    "placement.training_instances",
    "placement.trigger",
    "reward.num_workers",
    "rollout.instances",
    "rollout.kv_cache_tokens",
    "rollout.max_num_seqs",
    "rollout.profile",
    "rollout.server_timeout",
    "rollout.servers",
    "rollout.threads_per_instance",
    "trainer.default_local_dir",
    "trainer.device",
    "trainer.max_ckpt_to_keep",
    "trainer.max_wall_time",
    "trainer.on_stall",
    "trainer.save_freq",
    "trainer.snapshot_on_error",
    "trainer.stall_timeout",
    "trainer.test_freq",
    "trainer.total_epochs",
    "trainer.total_training_steps",
    "trainer.val_before_train",
    "trainer.workers",
    "trainer.write_rollouts",
];

/// Sections that do not affect training runs.
const UNUSED: [&str; 1] = ["sft."];

/// The snapshot to resume from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeFrom {
    /// The newest valid snapshot. If there are no snapshots yet, the run starts from the beginning.
    Latest,
    /// The snapshot taken after this number of steps.
    Steps(u64),
}

impl FromStr for ResumeFrom {
    type Err = String;

    fn from_str(written: &str) -> Result<Self, String> {
        match written {
            "latest" => Ok(Self::Latest),
            steps => match steps.parse() {
                Ok(steps) if steps > 0 => Ok(Self::Steps(steps)),
                _ => Err("expected `latest` or a number of steps, at least 1".to_owned()),
            },
        }
    }
}

/// The snapshots of a run that is about to start.
#[derive(Clone, Default)]
pub struct RunSnapshots {
    /// The plan by which snapshots are taken; `None` disables them.
    pub plan: Option<SnapshotPlan>,
    /// The snapshot to resume from, if any.
    pub restored: Option<RestoredSnapshot>,
    /// The generation of the store, which the other processes need to join it.
    generation: Option<Generation>,
    /// Messages for the user: which snapshots were skipped, and why.
    pub notes: Vec<String>,
}

impl RunSnapshots {
    /// Opens the folder `snapshots` in the run folder of a recipe, if the run takes snapshots or resumes from one.
    ///
    /// `data` is the fingerprint of the prompts. Existing snapshots are only removed if `overwrite` is set; otherwise a run that does not
    /// resume is rejected.
    ///
    /// The order of the checks matters: nothing is discarded before they have passed. The initial model must not be the folder into which
    /// the run writes its model, because a resumed run needs the initial weights again. The identity of the snapshot must match the recipe.
    /// Only then, with [`ResumeFrom::Steps`], the store discards the later snapshots: resuming removes the records of later steps from the
    /// run folder, and the later snapshots rely on these records.
    ///
    /// # Errors
    /// If there are snapshots and the run neither resumes nor overwrites them, no snapshot is valid, the snapshot was taken with another
    /// recipe, or the folder cannot be read or written.
    pub fn open(
        recipe: &Recipe,
        data: u64,
        resume: Option<ResumeFrom>,
        overwrite: bool,
    ) -> anyhow::Result<Self> {
        let folder = folder(&recipe.raw.trainer.default_local_dir);
        let known = SnapshotStore::steps_in(&folder)?;
        let every = u64::try_from(recipe.raw.trainer.save_freq).unwrap_or(0);
        let (begins, ends) =
            (&recipe.raw.model.path, RunFolder::model(&recipe.raw.trainer.default_local_dir));
        ensure!(
            (every == 0 && resume.is_none()) || !is_same(begins, &ends),
            "key `model.path`: expected a folder that the run does not write to, found `{}`, where it writes its model; resuming needs the initial weights, so start from a copy",
            begins.display()
        );
        if resume.is_none() && !known.is_empty() {
            remove(&folder, overwrite)?;
        }
        if every == 0 && resume.is_none() {
            return Ok(Self::default());
        }
        let identity = identity(recipe, data);
        let keep = recipe.raw.trainer.max_ckpt_to_keep;
        let store =
            SnapshotStore::open(&folder, StoreOptions { identity: identity.clone(), keep })?;
        let mut notes = Vec::new();
        let restored = match resume {
            None => None,
            Some(from) => find(&store, &folder, from, &known, &mut notes)?,
        };
        if let Some(restored) = &restored {
            check(&identity, restored)?;
            // Resuming removes the records of later steps from the run folder, and the later snapshots rely on them.
            if matches!(resume, Some(ResumeFrom::Steps(_))) {
                store.rewind_to(restored)?;
            }
        }
        let generation = store.generation();
        let plan = plan(recipe, store, restored.as_ref());
        let generation = Some(generation);
        Ok(Self { plan, restored, generation, notes })
    }

    /// Returns the note with which other processes of the run [join](Self::join).
    #[must_use]
    pub fn note(&self) -> String {
        let note = JoinNote {
            generation: self.generation,
            resumed: self.restored.as_ref().map(RestoredSnapshot::step),
        };
        serde_json::to_string(&note).expect("invariant: a note is plain data")
    }

    /// Joins the snapshots that the first process has opened, according to its `note`. All processes must have access to the same run
    /// folder.
    ///
    /// # Errors
    /// If the snapshot to resume from cannot be read in this process.
    pub fn join(recipe: &Recipe, data: u64, note: &str) -> anyhow::Result<Self> {
        let JoinNote { generation, resumed } = serde_json::from_str(note)
            .context("cannot read the first process's note about its snapshots")?;
        let Some(generation) = generation else { return Ok(Self::default()) };
        let (folder, identity) =
            (folder(&recipe.raw.trainer.default_local_dir), identity(recipe, data));
        let options = StoreOptions { identity, keep: recipe.raw.trainer.max_ckpt_to_keep };
        let store = SnapshotStore::join(&folder, generation, options)?;
        let restored = resumed.map(|step| joined_snapshot(&store, &folder, step)).transpose()?;
        let plan = plan(recipe, store, restored.as_ref());
        Ok(Self { plan, restored, generation: Some(generation), notes: Vec::new() })
    }
}

/// The message of the first process to the others.
#[derive(Serialize, Deserialize)]
struct JoinNote {
    generation: Option<Generation>,
    /// The last step of the snapshot to resume from.
    resumed: Option<Step>,
}

/// Returns `true` if both paths lead to the same folder.
fn is_same(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Returns the plan of snapshots, or `None` if `trainer.save_freq` disables them.
fn plan(
    recipe: &Recipe,
    store: SnapshotStore,
    restored: Option<&RestoredSnapshot>,
) -> Option<SnapshotPlan> {
    let every = u64::try_from(recipe.raw.trainer.save_freq).unwrap_or(0);
    (every > 0).then(|| SnapshotPlan {
        store: Arc::new(store),
        cadence: Cadence::every(every),
        on_error: recipe.raw.trainer.snapshot_on_error.into(),
        resumed: restored.map(RestoredSnapshot::step),
    })
}

/// Returns the snapshot that the first process resumes from, as it is visible to this process.
fn joined_snapshot(
    store: &SnapshotStore,
    folder: &Path,
    step: Step,
) -> anyhow::Result<RestoredSnapshot> {
    let found = store.at(step)?.restored;
    found.with_context(|| {
        let steps = step.next();
        format!("{}: the first process resumes from the snapshot after step {steps}, which this process cannot find: all processes need one run folder", folder.display())
    })
}

fn remove(folder: &Path, overwrite: bool) -> anyhow::Result<()> {
    let path = folder.display();
    if !overwrite {
        bail!(
            "{path} already has snapshots: resume from them with --resume, or remove them with --overwrite"
        );
    }
    Ok(SnapshotStore::clear(folder)?)
}

/// Returns the snapshot to resume from, or `None` if there are no snapshots yet.
fn find(
    store: &SnapshotStore,
    folder: &Path,
    from: ResumeFrom,
    known: &[Step],
    notes: &mut Vec<String>,
) -> anyhow::Result<Option<RestoredSnapshot>> {
    let path = folder.display();
    if let ResumeFrom::Steps(steps) = from
        && !known.contains(&Step(steps - 1))
    {
        bail!("{path}: expected a snapshot after step {steps}, found {}", StepList(known));
    }
    let SearchResult { restored, damage } = match from {
        ResumeFrom::Latest => store.latest()?,
        ResumeFrom::Steps(steps) => store.at(Step(steps - 1))?,
    };
    let told = damage.iter().map(|damage| format!("a snapshot cannot be used: {damage}"));
    if restored.is_none() && !known.is_empty() {
        let told: Vec<_> = told.collect();
        bail!("{path}: no snapshot is valid\n{}", told.join("\n"));
    }
    notes.extend(told.map(|line| format!("warning: {line}")));
    if restored.is_none() {
        notes
            .push(format!("{path}: no snapshot to resume from; the run starts from the beginning"));
    }
    Ok(restored)
}

/// Steps, counted from 1 as in messages to users.
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

fn identity(recipe: &Recipe, data: u64) -> Identity {
    let keys: serde_json::Map<_, _> = recipe
        .raw
        .settings()
        .into_iter()
        .filter(|(key, _)| !is_free(key))
        .map(|(key, value)| (key, Value::from(value)))
        .collect();
    let facts = [(RECIPE.to_owned(), Value::Object(keys)), (DATA.to_owned(), data.into())];
    Identity {
        run: RUN.to_owned(),
        config: recipe.to_toml(),
        code: env!("CARGO_PKG_VERSION").to_owned(),
        facts: facts.into_iter().collect(),
    }
}

fn is_free(key: &str) -> bool {
    RESUMABLE_KEYS.contains(&key) || UNUSED.iter().any(|section| key.starts_with(section))
}

/// Rejects a snapshot of a run with other prompts, or with other values of keys that must not change.
fn check(ours: &Identity, restored: &RestoredSnapshot) -> anyhow::Result<()> {
    let theirs = &restored.manifest().identity;
    let steps = restored.step().next();
    if ours.facts.get(DATA) != theirs.facts.get(DATA) {
        bail!(
            "the snapshot after step {steps} was taken with other prompts or in another order: key `data.train_files` or the files have changed"
        );
    }
    let of = |identity: &Identity| {
        identity.facts.get(RECIPE).and_then(Value::as_object).cloned().unwrap_or_default()
    };
    let (ours, theirs) = (of(ours), of(theirs));
    let defaults = RawRecipe::default().settings();
    let said = |keys: &serde_json::Map<String, Value>, key: &str| {
        let said = keys.get(key).and_then(Value::as_str).map(str::to_owned);
        said.or_else(|| defaults.get(key).cloned()).unwrap_or_else(|| "nothing".to_owned())
    };
    let mut all: Vec<&String> = ours.keys().chain(theirs.keys()).collect();
    all.sort();
    all.dedup();
    let differing: Vec<String> = all
        .into_iter()
        .filter(|key| said(&ours, key) != said(&theirs, key))
        .map(|key| {
            format!("key `{key}`: expected {}, found {}", said(&theirs, key), said(&ours, key))
        })
        .collect();
    if !differing.is_empty() {
        bail!(
            "the snapshot after step {steps} was taken with another recipe\n{}",
            differing.join("\n")
        );
    }
    Ok(())
}

/// Returns the folder of the snapshots in a run folder.
#[must_use]
pub fn folder(run: &Path) -> PathBuf {
    run.join("snapshots")
}
