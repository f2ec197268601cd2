//! The store with damaged files, full and read-only disks, and rival processes.

use std::path::Path;
use std::sync::{Arc, mpsc};

use super::memory::Memory;
use super::{PARTS, content, open, options, restored, root, take, write};
use crate::snapshot::{
    Damage, Draft, Generation, Identity, Manifest, Part, SnapshotError, SnapshotStore, StoreOptions,
};
use crate::step::Step;

fn two_snapshots() -> Memory {
    let files = Memory::default();
    let store = open(&files, 3).expect("opens");
    take(&store, Step(4)).expect("written");
    take(&store, Step(9)).expect("written");
    files
}

#[test]
fn rewinding_removes_newer_snapshots() {
    let files = two_snapshots();
    let store = open(&files, 3).expect("opens");
    let back = store.at(Step(4)).expect("readable").restored.expect("one");
    store.rewind_to(&back).expect("removed");
    assert_eq!(restored(&store), Some(Step(4)));
    take(&store, Step(5)).expect("written");
    assert!(files.paths().iter().all(|path| !of_step_9(path)), "{:?}", files.paths());
}

fn of_step_9(path: &Path) -> bool {
    path.to_str().is_some_and(|path| path.contains("00000009"))
}

/// Opens a store whose newest snapshot is damaged, and returns the reason why it was skipped for the one before.
fn passed_over(files: &Memory, what: &str) -> Damage {
    let store = open(files, 3).expect("opens");
    assert_eq!(restored(&store), Some(Step(4)), "{what}");
    let damage = store.latest().expect("the folder can be read").damage;
    assert_eq!(damage.len(), 1, "{what}: {damage:?}");
    damage.into_iter().next().expect("one")
}

#[test]
fn any_flipped_bit_is_detected() {
    let files = two_snapshots();
    let store = open(&files, 3).expect("opens");
    for path in files.paths().into_iter().filter(|path| of_step_9(path)) {
        for bit in 0..files.content(&path).len() * 8 {
            files.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
            let found = store.latest().expect("the folder can be read");
            let step = found.restored.map(|restored| restored.step());
            assert_eq!(step, Some(Step(4)), "bit {bit} of {}", path.display());
            assert_eq!(found.damage[0].path, path);
            files.damage(&path, |bytes| bytes[bit / 8] ^= 1 << (bit % 8));
        }
    }
    assert_eq!(restored(&store), Some(Step(9)), "the undamaged snapshot is restored");
}

#[test]
fn any_truncation_is_detected() {
    let original = two_snapshots();
    for path in original.paths().into_iter().filter(|path| of_step_9(path)) {
        for length in 0..original.content(&path).len() {
            let files = original.copy();
            files.damage(&path, |bytes| bytes.truncate(length));
            let damage = passed_over(&files, &format!("{length} bytes of {}", path.display()));
            assert_eq!(damage.path, path);
        }
    }
}

#[test]
fn a_missing_file_is_named() {
    let remove = |path: &str| {
        let files = two_snapshots();
        crate::snapshot::files::Files::remove(&files, &root().join(path)).expect("removed");
        passed_over(&files, path).to_string()
    };
    let length = content(Step(9), "update", 1).len();
    assert_eq!(
        remove("step-00000009/0001/update-1.bin"),
        format!(
            "`/run/step-00000009/0001/update-1.bin`: expected {length} bytes, found no such file"
        )
    );
    assert_eq!(
        remove("step-00000009.0001.json"),
        "`/run/step-00000009.0001.json`: expected a manifest of the parts in `/run/step-00000009/0001`, found none: they are removed"
    );
}

#[test]
fn a_renamed_manifest_is_not_used() {
    let files = two_snapshots();
    let (path, other) = ("/run/step-00000004.0001.json", "/run/step-00000009.0001.json");
    let bytes = files.content(Path::new(path));
    files.damage(Path::new(other), |content| *content = bytes);
    assert_eq!(
        passed_over(&files, "renamed").to_string(),
        "`/run/step-00000009.0001.json`: expected step 9, generation 0001, found step 4, generation 0001"
    );
}

/// A manifest with a valid checksum, as from a folder that somebody else wrote.
#[test]
fn a_part_outside_of_the_snapshot_folder_is_not_read() {
    for path in ["../secret", "step-00000009/../../secret", "/secret", ".", ""] {
        let files = two_snapshots();
        let manifest = Path::new("/run/step-00000009.0001.json");
        let mut moved = Manifest::decode(&files.content(manifest)).expect("a manifest");
        path.clone_into(&mut moved.parts[0].path);
        files.damage(manifest, |content| *content = moved.encode());
        assert_eq!(
            passed_over(&files, path).to_string(),
            format!(
                "`/run/step-00000009.0001.json`: expected paths of parts inside the snapshot folder, found `{path}` of `schedule`"
            )
        );
    }
}

#[test]
fn all_damage_is_listed_if_no_snapshot_is_usable() {
    let files = two_snapshots();
    for path in files.paths().iter().filter(|path| path.extension().is_some_and(|e| e == "bin")) {
        files.damage(path, |bytes| bytes.push(b'!'));
    }
    let found = open(&files, 3).expect("opens").latest().expect("the folder can be read");
    assert!(found.restored.is_none());
    let paths: Vec<_> =
        found.damage.iter().map(|damage| damage.path.display().to_string()).collect();
    assert_eq!(
        paths,
        ["/run/step-00000009/0001/schedule-0.bin", "/run/step-00000004/0001/schedule-0.bin"]
    );
}

#[test]
fn a_snapshot_of_another_run_is_not_restored() {
    let files = two_snapshots();
    let identity = Identity { run: "another".to_owned(), ..Identity::default() };
    let options = StoreOptions { identity, keep: 3 };
    let store = SnapshotStore::open_on(Arc::new(files), root(), options).expect("opens");
    let found = store.latest().expect("the folder can be read");
    assert!(found.restored.is_none());
    assert_eq!(
        found.damage[0].to_string(),
        "`/run/step-00000009.0001.json`: expected a snapshot of run `another`, found one of run `a run`"
    );
}

#[test]
fn a_step_can_be_selected() {
    let store = open(&two_snapshots(), 3).expect("opens");
    let step = |step| {
        let found = store.at(Step(step)).expect("the folder can be read");
        found.restored.map(|restored| restored.step()).ok_or(found.damage)
    };
    assert_eq!(step(4), Ok(Step(4)));
    assert_eq!(
        step(5).expect_err("none")[0].to_string(),
        "`/run`: expected a snapshot after step 6, found those after [10, 5]"
    );
}

#[test]
fn a_process_that_is_not_the_newest_commits_nothing() {
    let files = Memory::default();
    let zombie = open(&files, 2).expect("opens");
    take(&zombie, Step(4)).expect("the newest");
    let parts = write(&zombie, Step(9)).expect("the newest");
    let newer = open(&files, 2).expect("opens");
    let fenced =
        |result: Result<(), SnapshotError>| result.expect_err("it is not the newest").to_string();
    let message = "`/run`: this run is generation 0001 of the folder, and generation 0002 has been opened since: another process \
                   resumes the same run";
    assert_eq!(fenced(zombie.commit(Step(9), parts, 2).map(drop)), message);
    assert_eq!(fenced(take(&zombie, Step(14))), message);
    assert_eq!(restored(&newer), Some(Step(4)));
    take(&newer, Step(9)).expect("the newest");
    assert_eq!(restored(&newer), Some(Step(9)));
}

#[test]
fn a_folder_that_a_fenced_process_writes_into_is_removed_later() {
    let files = Memory::default();
    let zombie = open(&files, 2).expect("opens");
    take(&zombie, Step(4)).expect("the newest");
    write(&zombie, Step(9)).expect("the newest");
    let of_zombie = || files.paths().iter().any(|path| of_step_9(path));
    files.set_written_into(true);
    let newer = open(&files, 2).expect("opens while the fenced process writes");
    assert!(of_zombie());
    files.set_written_into(false);
    take(&newer, Step(5)).expect("written");
    take(&newer, Step(14)).expect("written");
    assert!(!of_zombie(), "{:?}", files.paths());
}

/// A process that was replaced may still write snapshots of later steps. The snapshots of the process that replaced it are preferred.
#[test]
fn a_newer_generation_is_preferred_to_a_later_step() {
    let files = two_snapshots();
    let newer = open(&files, 3).expect("opens");
    let back = newer.at(Step(4)).expect("the folder can be read").restored.expect("it is there");
    assert_eq!(back.manifest().generation, Generation(1));
    take(&newer, Step(5)).expect("written");
    assert_eq!(restored(&open(&files, 3).expect("opens")), Some(Step(5)));
}

#[test]
fn each_process_has_its_own_generation() {
    let files = Memory::default();
    let generations: Vec<_> =
        (0..3).map(|_| open(&files, 1).expect("opens").generation()).collect();
    assert_eq!(generations, [Generation(1), Generation(2), Generation(3)]);
    let (sender, claimed) = mpsc::channel();
    std::thread::scope(|threads| {
        for _ in 0..8 {
            let (files, sender) = (files.clone(), sender.clone());
            threads.spawn(move || {
                let generation = open(&files, 1).expect("opens").generation();
                sender.send(generation).expect("read");
            });
        }
    });
    let mut claimed: Vec<_> = claimed.try_iter().collect();
    claimed.sort_unstable();
    assert_eq!(claimed, (4..12).map(Generation).collect::<Vec<_>>());
}

#[test]
fn a_process_that_two_others_overtake_claims_a_free_generation() {
    let files = Memory::default();
    files.interrupt(|files| {
        let claimed_meanwhile: Vec<_> =
            (0..2).map(|_| open(files, 1).expect("opens").generation()).collect();
        assert_eq!(claimed_meanwhile, [Generation(1), Generation(2)]);
    });
    assert_eq!(open(&files, 1).expect("opens").generation(), Generation(3));
}

#[test]
fn the_newest_good_snapshots_are_kept() {
    let files = Memory::default();
    let store = open(&files, 2).expect("opens");
    for step in [4, 9, 14, 19] {
        take(&store, Step(step)).expect("written");
    }
    let steps = |store: &SnapshotStore| -> Vec<u64> {
        store.manifests().expect("readable").into_iter().map(|id| id.step.0).collect()
    };
    assert_eq!(steps(&store), [19, 14]);
    // A damaged snapshot does not count, so older ones stay.
    files.damage(Path::new("/run/step-00000019/0001/update-0.bin"), |bytes| bytes.truncate(1));
    take(&store, Step(24)).expect("written");
    assert_eq!(steps(&store), [24, 19, 14]);
    take(&store, Step(29)).expect("written");
    assert_eq!(steps(&store), [29, 24]);
    assert_eq!(files.paths().len(), 1 + 2 * (1 + PARTS.len()));
}

#[test]
fn a_full_disk_is_named_and_keeps_the_previous_snapshot() {
    let files = two_snapshots();
    let store = open(&files, 3).expect("opens");
    for free in 0.. {
        files.limit(Some(files.size() + free));
        let Err(error) = take(&store, Step(14)) else { break };
        let message = error.to_string();
        assert!(message.starts_with("cannot write `/run/step-00000014"), "{message}");
        assert!(message.ends_with(": no storage space"), "{message}");
        assert_eq!(restored(&store), Some(Step(9)), "{free} bytes were free");
        store.discard(Step(14)).expect("removed");
        assert!(files.paths().iter().all(|path| !path.to_string_lossy().contains("14")));
    }
    assert_eq!(restored(&store), Some(Step(14)));
}

#[test]
fn a_read_only_disk_is_named() {
    let files = two_snapshots();
    let store = open(&files, 3).expect("opens");
    files.set_read_only(true);
    assert_eq!(
        take(&store, Step(14)).expect_err("it is read-only").to_string(),
        "cannot make the folder `/run/step-00000014/0002`: read-only filesystem or storage medium"
    );
    let error = open(&files, 3).err().expect("it is read-only");
    assert_eq!(
        error.to_string(),
        "cannot make the folder `/run`: read-only filesystem or storage medium"
    );
    assert_eq!(restored(&store), Some(Step(9)));
}

#[test]
fn rows_round_trip() {
    use arrow_array::{ArrayRef, RecordBatch, StringArray, UInt64Array};
    let store = open(&Memory::default(), 1).expect("opens");
    let keys: ArrayRef = Arc::new(UInt64Array::from(vec![Some(3), None]));
    let names: ArrayRef = Arc::new(StringArray::from(vec!["a", "b"]));
    let rows = RecordBatch::try_from_iter([("key", keys), ("name", names)]).expect("of one length");
    let part = Part::rows(rows.clone()).fact("cursor", 7);
    let record = store.write(Step(0), "ledger", 1, part).expect("written").expect("a file");
    assert_eq!((record.version, &record.facts["cursor"]), (1, &7.into()));
    store.commit(Step(0), vec![record], 2).expect("committed");
    let restored = store.latest().expect("readable").restored.expect("there is one");
    assert_eq!(restored.rows("ledger").expect("an IPC file"), [(1, rows)]);
    assert_eq!(restored.manifest().workers, 2);
    assert_eq!(
        restored.parts("schedule").expect_err("there is none").to_string(),
        "snapshot after step 1: expected parts of `schedule`, found those of ledger"
    );
    assert_eq!(options(1).keep, 1);
}

#[test]
fn an_external_file_becomes_a_part_once_it_is_complete() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = Arc::new(SnapshotStore::open(folder.path(), options(1)).expect("opens"));
    let draft = |operator| Draft { store: &store, step: Step(3), operator, worker: 0, held: None };
    let (begun, begin) = mpsc::channel();
    let part = draft("weights").external("safetensors", |path| {
        assert_eq!(path.extension().and_then(|e| e.to_str()), Some("safetensors"));
        let path = path.to_owned();
        let trainer = std::thread::spawn(move || {
            begin.recv().expect("sent");
            std::fs::write(path, b"weights").map_err(|error| error.to_string())
        });
        || trainer.join().expect("the trainer is not dropped")
    });
    begun.send(()).expect("received");
    let record = store.write(Step(3), "weights", 0, part).expect("written").expect("a file");
    assert_eq!(record.path, "step-00000003/0001/weights-0.safetensors");
    store.commit(Step(3), vec![record.clone()], 1).expect("committed");
    let restored = store.latest().expect("readable").restored.expect("there is one");
    assert_eq!(std::fs::read(restored.path(&record)).expect("there"), b"weights");

    let part = draft("optimizer").external("safetensors", |_| || Err("out of memory".to_owned()));
    assert_eq!(
        store.write(Step(3), "optimizer", 0, part).expect_err("it could not").to_string(),
        "part `optimizer` of worker 0: out of memory"
    );
}
