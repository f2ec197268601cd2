//! Snapshots of a training run: their location, their identity, and the choice of the snapshot to resume from.

mod error;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use rollpacker_dataflow::snapshot::{
    Cadence, Damage, Generation, Identity, RestoredSnapshot, SearchResult, SnapshotPlan,
    SnapshotStore, StoreOptions,
};
use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::recipe::Recipe;
use crate::reporter::RunReporter;
use crate::run_folder::RunFolder;

pub use self::error::{ResumeFromError, RunSnapshotsError};

/// The kind of run in the [`Identity`] of its snapshots. A folder holds snapshots of one kind.
const RUN_KIND: &str = "train";
const RECIPE_FACT: &str = "recipe";
const DATA_FACT: &str = "data";

/// The snapshot to resume from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ResumeFrom {
    /// The newest valid snapshot. If there are no snapshots yet, the run starts from the beginning.
    Latest,
    /// The snapshot taken after this number of steps, at least 1.
    Steps(u64),
}

impl FromStr for ResumeFrom {
    type Err = ResumeFromError;

    fn from_str(written: &str) -> Result<Self, ResumeFromError> {
        match written {
            "latest" => Ok(Self::Latest),
            steps => match steps.parse() {
                Ok(steps) if steps > 0 => Ok(Self::Steps(steps)),
                _ => Err(ResumeFromError),
            },
        }
    }
}

/// The start of a run whose folder may have snapshots of an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StartFrom {
    /// The beginning. A folder with snapshots is rejected.
    Empty,
    /// The beginning. Snapshots in the folder are removed.
    Overwrite,
    /// A snapshot in the folder.
    Snapshot(ResumeFrom),
}

impl StartFrom {
    /// Returns the snapshot to resume from; `None` if the run starts from the beginning.
    fn snapshot(self) -> Option<ResumeFrom> {
        match self {
            Self::Empty | Self::Overwrite => None,
            Self::Snapshot(from) => Some(from),
        }
    }
}

/// The snapshots of a run that is about to start.
#[derive(Clone, Default)]
pub struct RunSnapshots {
    /// The plan by which snapshots are taken; `None` disables them. With an engine over servers, a `Session` also lets operators hold the
    /// state of the last step, so that it can be saved when no server is available.
    pub plan: Option<SnapshotPlan>,
    /// The snapshot to resume from; `None` if the run starts from the beginning.
    pub restored: Option<RestoredSnapshot>,
    /// The generation of the store, which the other processes need to join it; `None` if the run neither takes snapshots nor resumes from
    /// one.
    generation: Option<Generation>,
    /// Messages for the user: the snapshots that cannot be used, with the reasons, and a note if there is no snapshot to resume from.
    pub notes: Vec<String>,
}

impl RunSnapshots {
    /// Checks what [`open`](Self::open) checks, without changing the folder. Does not wait for a run that writes into it.
    ///
    /// # Errors
    /// In the same cases as [`open`](Self::open), except that the folder cannot be written.
    pub fn check(recipe: &Recipe, data: u64, start: StartFrom) -> Result<(), RunSnapshotsError> {
        let folder = folder(&recipe.run.default_local_dir);
        let known = SnapshotStore::steps_in(&folder)?;
        check_initial_model(recipe, start)?;
        match start {
            StartFrom::Empty => reject_existing(&folder, &known),
            StartFrom::Overwrite => Ok(()),
            StartFrom::Snapshot(ResumeFrom::Latest) if !folder.exists() => Ok(()),
            StartFrom::Snapshot(from) => {
                let options = store_options(recipe, data);
                let identity = options.identity.clone();
                let store = SnapshotStore::read_only(&folder, options);
                search(recipe, &identity, &store, from, &known).map(drop)
            }
        }
    }

    /// Opens the folder `snapshots` in the run folder of a recipe, if the run takes snapshots or resumes from one.
    ///
    /// `data` is the fingerprint of the prompts.
    ///
    /// The order of the checks matters: before they have passed, nothing is discarded, and the folder is not taken over from a run that
    /// still writes into it. The initial model must not be the folder into which the run writes its model, because a resumed run needs the
    /// initial weights again. The identity of the snapshot must match the recipe, and the run folder must have the records that the
    /// snapshot continues. Only then, with [`ResumeFrom::Steps`], the store discards the later snapshots: resuming removes the records of
    /// later steps from the run folder, and the later snapshots rely on these records.
    ///
    /// # Errors
    /// If there are snapshots and the run neither resumes nor overwrites them, no snapshot is valid, the requested snapshot does not exist,
    /// the snapshot was taken with another recipe or other prompts, records are missing, the run would write its model over its initial
    /// model, or the folder cannot be read or written.
    pub fn open(recipe: &Recipe, data: u64, start: StartFrom) -> Result<Self, RunSnapshotsError> {
        let folder = folder(&recipe.run.default_local_dir);
        let known = SnapshotStore::steps_in(&folder)?;
        check_initial_model(recipe, start)?;
        match start {
            StartFrom::Empty => reject_existing(&folder, &known)?,
            StartFrom::Overwrite if !known.is_empty() => SnapshotStore::clear(&folder)?,
            StartFrom::Overwrite | StartFrom::Snapshot(_) => {}
        }
        let resume = start.snapshot();
        if recipe.save_freq == 0 && resume.is_none() {
            return Ok(Self::default());
        }
        let options = store_options(recipe, data);
        let identity = options.identity.clone();
        let store = SnapshotStore::read_only(&folder, options);
        let readable = resume.filter(|_| folder.exists());
        let found =
            readable.map(|from| search(recipe, &identity, &store, from, &known)).transpose()?;
        let store = store.claim()?;
        let now = SnapshotStore::steps_in(&folder)?;
        let (restored, mut notes) = match (resume, found) {
            // The snapshots are the same as before the claim, so no run that wrote into the folder until then has taken another one.
            (_, Some(found)) if now == known => found,
            (Some(from), _) => search(recipe, &identity, &store, from, &now)?,
            (None, _) => (None, Vec::new()),
        };
        notes.extend(store.removed_at_claim().iter().map(warning));
        if let Some(restored) = &restored {
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

    /// Returns a note in JSON, which the other processes of the run pass to [`join`](Self::join).
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
    /// If the note or the folder cannot be read, the folder lacks the generation of the note or has a newer one, or this process does not
    /// find the snapshot to resume from.
    pub fn join(recipe: &Recipe, data: u64, note: &str) -> Result<Self, RunSnapshotsError> {
        let JoinNote { generation, resumed } =
            serde_json::from_str(note).map_err(RunSnapshotsError::Note)?;
        let Some(generation) = generation else { return Ok(Self::default()) };
        let folder = folder(&recipe.run.default_local_dir);
        let store = SnapshotStore::join(&folder, generation, store_options(recipe, data))?;
        let restored = resumed.map(|step| leader_snapshot(&store, &folder, step)).transpose()?;
        let plan = plan(recipe, store, restored.as_ref());
        Ok(Self { plan, restored, generation: Some(generation), notes: Vec::new() })
    }
}

/// The content of the note with which the other processes join the snapshots of the first process.
#[derive(Serialize, Deserialize)]
struct JoinNote {
    /// The generation of the store; `None` if the run neither takes snapshots nor resumes from one.
    generation: Option<Generation>,
    /// The last step of the snapshot to resume from; `None` if the run starts from the beginning.
    resumed: Option<Step>,
}

/// Returns `true` if both paths lead to the same folder.
fn is_same_folder(one: &Path, other: &Path) -> bool {
    one.canonicalize().is_ok_and(|one| other.canonicalize().is_ok_and(|other| one == other))
}

/// Returns the plan of snapshots, or `None` if `trainer.save_freq` disables them.
fn plan(
    recipe: &Recipe,
    store: SnapshotStore,
    restored: Option<&RestoredSnapshot>,
) -> Option<SnapshotPlan> {
    let every = recipe.save_freq;
    (every > 0).then(|| SnapshotPlan {
        store: Arc::new(store),
        cadence: Cadence::every(every),
        on_error: recipe.run.snapshot_on_error,
        resumed: restored.map(RestoredSnapshot::step),
    })
}

/// Returns the snapshot that the first process resumes from, as it is visible to this process.
fn leader_snapshot(
    store: &SnapshotStore,
    folder: &Path,
    step: Step,
) -> Result<RestoredSnapshot, RunSnapshotsError> {
    let missing = || RunSnapshotsError::NotShared { folder: folder.to_owned(), steps: step.next() };
    store.at(step)?.restored.ok_or_else(missing)
}

/// Rejects a run that writes its model over its initial model, if it takes snapshots or resumes from one.
fn check_initial_model(recipe: &Recipe, start: StartFrom) -> Result<(), RunSnapshotsError> {
    let (begins, ends) = (&recipe.model.path, RunFolder::model(&recipe.run.default_local_dir));
    if (recipe.save_freq > 0 || start.snapshot().is_some()) && is_same_folder(begins, &ends) {
        return Err(RunSnapshotsError::ModelIsOutput { path: begins.clone() });
    }
    Ok(())
}

fn reject_existing(folder: &Path, known: &[Step]) -> Result<(), RunSnapshotsError> {
    if known.is_empty() {
        return Ok(());
    }
    Err(RunSnapshotsError::Exists { folder: folder.to_owned() })
}

fn store_options(recipe: &Recipe, data: u64) -> StoreOptions {
    StoreOptions { identity: identity(recipe, data), keep: recipe.run.max_ckpt_to_keep }
}

/// Returns the result of [`find`] in the run folder of a recipe, after checking that the run can continue from the snapshot. `ours` is the
/// identity of the run.
fn search(
    recipe: &Recipe,
    ours: &Identity,
    store: &SnapshotStore,
    from: ResumeFrom,
    known: &[Step],
) -> Result<(Option<RestoredSnapshot>, Vec<String>), RunSnapshotsError> {
    let run = &recipe.run.default_local_dir;
    let found = find(store, &folder(run), from, known)?;
    if let Some(restored) = &found.0 {
        check(ours, restored)?;
        check_records(run, restored)?;
    }
    Ok(found)
}

/// Returns the snapshot to resume from, and notes for the user. The snapshot is `None` if there are no snapshots yet and `from` is
/// [`ResumeFrom::Latest`].
fn find(
    store: &SnapshotStore,
    folder: &Path,
    from: ResumeFrom,
    known: &[Step],
) -> Result<(Option<RestoredSnapshot>, Vec<String>), RunSnapshotsError> {
    if let ResumeFrom::Steps(steps) = from
        && !steps.checked_sub(1).is_some_and(|last| known.contains(&Step(last)))
    {
        let (folder, known) = (folder.to_owned(), known.to_vec());
        return Err(RunSnapshotsError::NoStep { folder, steps, known });
    }
    let SearchResult { restored, damage } = match from {
        ResumeFrom::Latest => store.latest()?,
        ResumeFrom::Steps(steps) => store.at(Step(steps - 1))?,
    };
    if restored.is_none() && !known.is_empty() {
        let (folder, damage) = (folder.to_owned(), damage.iter().map(damage_text).collect());
        return Err(RunSnapshotsError::NoneValid { folder, damage });
    }
    let mut notes: Vec<String> = damage.iter().map(warning).collect();
    if restored.is_none() {
        let path = folder.display();
        notes
            .push(format!("{path}: no snapshot to resume from; the run starts from the beginning"));
    }
    Ok((restored, notes))
}

fn damage_text(damage: &Damage) -> String {
    format!("a snapshot cannot be used: {damage}")
}

fn warning(damage: &Damage) -> String {
    format!("warning: {}", damage_text(damage))
}

fn identity(recipe: &Recipe, data: u64) -> Identity {
    let keys: serde_json::Map<_, _> = recipe
        .settings()
        .into_iter()
        .filter(|(key, _)| !Recipe::is_resumable(key))
        .map(|(key, value)| (key, Value::from(value)))
        .collect();
    let facts =
        [(RECIPE_FACT.to_owned(), Value::Object(keys)), (DATA_FACT.to_owned(), data.into())];
    Identity {
        run: RUN_KIND.to_owned(),
        config: recipe.to_toml(),
        code: env!("CARGO_PKG_VERSION").to_owned(),
        facts: facts.into_iter().collect(),
    }
}

/// Rejects a snapshot of a run with other prompts, or with other values of keys that must not change.
fn check(ours: &Identity, restored: &RestoredSnapshot) -> Result<(), RunSnapshotsError> {
    let theirs = &restored.manifest().identity;
    let steps = restored.step().next();
    let keys = differing_keys(ours, theirs);
    if !keys.is_empty() {
        return Err(RunSnapshotsError::OtherRecipe { steps, keys });
    }
    // Keys that change the order of the prompts are among those above.
    if ours.facts.get(DATA_FACT) != theirs.facts.get(DATA_FACT) {
        return Err(RunSnapshotsError::OtherPrompts { steps });
    }
    Ok(())
}

/// Describes the keys whose values differ. A key that an identity lacks has its default.
fn differing_keys(ours: &Identity, theirs: &Identity) -> Vec<String> {
    let recipe =
        |identity: &Identity| identity.facts.get(RECIPE_FACT).and_then(Value::as_object).cloned();
    let [ours, theirs] = [ours, theirs].map(|identity| recipe(identity).unwrap_or_default());
    let defaults = Recipe::default_settings();
    let all: BTreeSet<&String> = ours.keys().chain(theirs.keys()).collect();
    let difference = |key: &String| {
        let [ours, theirs] = [&ours, &theirs].map(|keys| keys.get(key).and_then(Value::as_str));
        if ours == theirs {
            return None;
        }
        // Recording a value again takes time, so only values that differ are recorded again.
        let theirs = theirs.map(|value| Recipe::recorded_setting(key, value));
        let default = defaults.get(key).map_or("nothing", String::as_str);
        let (found, expected) = (ours.unwrap_or(default), theirs.as_deref().unwrap_or(default));
        (found != expected).then(|| format!("key `{key}`: expected {expected}, found {found}"))
    };
    all.into_iter().filter_map(difference).collect()
}

/// Rejects a snapshot that continues records which the run folder does not have.
fn check_records(run: &Path, restored: &RestoredSnapshot) -> Result<(), RunSnapshotsError> {
    let Some(extent) = RunReporter::extent(restored)? else { return Ok(()) };
    let steps = restored.step().next();
    RunFolder::check_records(run, extent)
        .map_err(|error| RunSnapshotsError::Records { steps, error })
}

/// Returns the folder of the snapshots in a run folder.
#[must_use]
pub fn folder(run: &Path) -> PathBuf {
    run.join("snapshots")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the identity of a run whose recipe has one setting that is not a default.
    fn with(key: &str, value: &str) -> Identity {
        let keys = serde_json::json!({ key: value });
        let facts = [(RECIPE_FACT.to_owned(), keys)].into_iter().collect();
        Identity { facts, ..Identity::default() }
    }

    #[test]
    fn a_credential_that_an_earlier_version_recorded_is_no_difference() {
        for (key, before, now) in [
            (
                "reward.options.own.command",
                r#"["score", "--api-key", "secret", "-v"]"#,
                r#"["score", "--api-key", "[redacted]", "-v"]"#,
            ),
            ("rollout.serve.env.HF_TOKEN", r#""secret""#, r#""[redacted]""#),
            ("rollout.servers", r#"["http://me:secret@host"]"#, r#"["http://[redacted]@host"]"#),
        ] {
            assert_eq!(differing_keys(&with(key, now), &with(key, before)), [""; 0], "{key}");
        }
        let (key, before) = ("reward.options.own.command", r#"["score", "--api-key", "secret"]"#);
        let expected = format!(
            r#"key `{key}`: expected ["score", "--api-key", "[redacted]"], found ["other"]"#
        );
        assert_eq!(differing_keys(&with(key, r#"["other"]"#), &with(key, before)), [expected]);
    }
}
