//! A process that dies after any file operation: the next process finds the previous snapshot or the new one, never a mix.

use super::memory::{CRASHES, Crash, Memory};
use super::{PARTS, SnapshotError, open, restored, root, take};
use crate::snapshot::{Part, SnapshotStore};
use crate::step::Step;

/// Opens the folder and takes a snapshot of each of `steps`, until an operation fails. Returns the committed steps.
fn process(files: &Memory, keep: usize, steps: &[u64]) -> Vec<u64> {
    let mut done = Vec::new();
    let mut run = || -> Result<(), SnapshotError> {
        let store = open(files, keep)?;
        for &step in steps {
            take(&store, Step(step))?;
            done.push(step);
        }
        Ok(())
    };
    drop(run());
    done
}

/// Opens the folder after a crash. Returns the store and the step of the newest snapshot; `None` if there is none. Checks that only parts
/// without a manifest are reported as damage, and that every snapshot with a manifest is complete.
fn found(files: &Memory) -> (SnapshotStore, Option<u64>) {
    let store = open(files, 1).expect("the folder can be opened after any crash");
    let found = store.latest().expect("the folder can be read");
    for damage in &found.damage {
        assert!(damage.found.starts_with("none"), "no manifest names what is not there: {damage}");
    }
    for id in store.manifests().expect("the folder can be read") {
        let whole = store.at(id.step).expect("the folder can be read").restored.is_some();
        assert!(whole, "the parts of {id:?} are there as long as its manifest");
    }
    let step = restored(&store).map(|step| step.0);
    (store, step)
}

/// Returns `true` if the snapshot `found` is the last committed one or the one that was being taken. The process has committed the steps
/// `done`, the first of `steps`; `before` is the step of the snapshot that it found.
fn is_old_or_new(found: Option<u64>, done: &[u64], steps: &[u64], before: Option<u64>) -> bool {
    let last = done.last().copied().or(before);
    found == last || found == steps.get(done.len()).copied()
}

/// Lets `first` die at each of its operations in each way, on a copy of `disk`. Calls `look` with the remaining files, the index of the
/// operation and the kind of crash.
fn at_each_operation(
    disk: &Memory,
    first: impl Fn(&Memory),
    mut look: impl FnMut(&Memory, usize, Crash),
) {
    for operation in 0.. {
        let files = disk.copy();
        files.crash_at(operation);
        first(&files);
        if files.operations() <= operation {
            assert!(operation > 20, "enough operations are tested");
            return;
        }
        for crash in CRASHES {
            let left = files.copy();
            left.restart(crash);
            look(&left, operation, crash);
        }
    }
}

#[test]
fn a_crash_at_any_operation_leaves_the_old_or_new_snapshot() {
    const STEPS: [u64; 3] = [4, 9, 14];
    for keep in [1, 2] {
        let mut seen = Vec::new();
        let done = std::cell::RefCell::default();
        at_each_operation(
            &Memory::default(),
            |files| *done.borrow_mut() = process(files, keep, &STEPS),
            |left, operation, crash| {
                let (store, found) = found(left);
                let done = done.borrow();
                assert!(
                    is_old_or_new(found, &done, &STEPS, None),
                    "operation {operation}, {crash:?}: {done:?} were committed, found {found:?}"
                );
                seen.push(found);
                // The next process continues from there, and no older files remain.
                take(&store, Step(19)).expect("the folder can be written");
                assert_eq!(restored(&store), Some(Step(19)));
                let mut all = left.paths();
                all.retain(|path| !path.to_string_lossy().contains("generation-"));
                assert_eq!(all.len(), PARTS.len() + 1, "operation {operation}, {crash:?}: {all:?}");
            },
        );
        seen.dedup();
        for step in STEPS.map(Some).iter().chain([&None]) {
            assert!(seen.contains(step), "a crash that leaves {step:?}");
        }
    }
}

#[test]
fn a_second_crash_during_recovery_leaves_the_old_or_new_snapshot() {
    let done = std::cell::RefCell::default();
    at_each_operation(
        &Memory::default(),
        |files| *done.borrow_mut() = process(files, 1, &[4, 9]),
        |left, operation, crash| {
            if !matches!(crash, Crash::Killed | Crash::Cut) || operation % 3 != 0 {
                return;
            }
            let before = found(&left.copy()).1;
            assert!(is_old_or_new(before, &done.borrow(), &[4, 9], None));
            let again = std::cell::RefCell::default();
            at_each_operation(
                left,
                |files| *again.borrow_mut() = process(files, 1, &[14]),
                |left, second, crash| {
                    let found = found(left).1;
                    assert!(
                        is_old_or_new(found, &again.borrow(), &[14], before),
                        "operations {operation} and {second}, {crash:?}: {before:?} before, {found:?} after"
                    );
                },
            );
        },
    );
}

/// A part that did not change belongs to several snapshots and must live as long as the last of them.
#[test]
fn a_shared_part_is_kept_after_the_snapshot_that_wrote_it() {
    let run = |files: &Memory| -> Result<(), SnapshotError> {
        let store = open(files, 1)?;
        let write = |step, operator| {
            let part = Part::bytes("bin", b"state".to_vec());
            store.write(Step(step), operator, 0, part).map(|record| record.expect("a file"))
        };
        let shared = write(4, "update")?;
        store.commit(Step(4), vec![write(4, "schedule")?, shared.clone()], 1)?;
        store.commit(Step(9), vec![write(9, "schedule")?, shared.clone()], 1)?;
        store.commit(Step(14), vec![write(14, "schedule")?, shared], 1)?;
        // Now the part of step 4 can be removed.
        store.commit(Step(19), vec![write(19, "schedule")?, write(19, "update")?], 1).map(drop)
    };
    at_each_operation(
        &Memory::default(),
        |files| drop(run(files)),
        |left, operation, crash| {
            let store = open(left, 1).expect("opens");
            let found = store.latest().expect("the folder can be read");
            let broken = found.damage.iter().find(|damage| !damage.found.starts_with("none"));
            assert_eq!(broken, None, "operation {operation}, {crash:?}");
        },
    );
    let files = Memory::default();
    run(&files).expect("no fault");
    let all = files.paths();
    assert_eq!(all.len(), 4, "{all:?}");
    assert!(all.iter().all(|path| !path.starts_with(root().join("step-00000004"))), "{all:?}");
}
