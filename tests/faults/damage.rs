//! Tests of damaged snapshots: a run resumes from the one before, and reports the damage.

use std::fs;
use std::path::{Path, PathBuf};

use super::workspace::{ProcessEnd, RECIPE, TestWorkspace};

/// Trains three steps with a snapshot after each.
fn trained_workspace() -> TestWorkspace {
    let workspace = TestWorkspace::new(RECIPE);
    workspace.train_ok(&[&KEPT[..], &["trainer.total_training_steps=3"]].concat());
    workspace
}

const KEPT: [&str; 2] = ["trainer.save_freq=1", "trainer.max_ckpt_to_keep=3"];

fn resume(workspace: &TestWorkspace) -> ProcessEnd {
    workspace.train_to_end(
        &[&["--resume", "latest"], &KEPT[..], &["trainer.total_training_steps=4"]].concat(),
    )
}

fn manifest(workspace: &TestWorkspace, step: u64) -> PathBuf {
    workspace.path(&format!("run/snapshots/step-{step:08}.0001.json"))
}

/// Returns the largest part of the snapshot of `step`, which is the trainer's.
fn part(workspace: &TestWorkspace, step: u64) -> PathBuf {
    let folder = workspace.path(&format!("run/snapshots/step-{step:08}/0001"));
    let parts = fs::read_dir(&folder).expect("a snapshot").flatten().map(|entry| entry.path());
    parts.max_by_key(|path| fs::metadata(path).map(|file| file.len()).unwrap_or(0)).expect("parts")
}

pub(super) fn steps_of_metrics(workspace: &TestWorkspace) -> Vec<u64> {
    let lines = workspace.metrics_lines("run").into_iter();
    lines.map(|line| line["step"].as_u64().expect("a step")).collect()
}

/// Damages the newest of three snapshots with `harm`, which receives the paths of its largest part and of its manifest, and resumes the
/// run. Asserts that this snapshot is skipped, and that the output contains `named` and the step that the run resumes from.
fn check(harm: impl FnOnce(&Path, &Path), named: &[&str]) {
    let workspace = trained_workspace();
    harm(&part(&workspace, 2), &manifest(&workspace, 2));
    let end = resume(&workspace).success();
    let output = format!("{}{}", end.out, end.err);
    for part in named {
        assert!(output.contains(part), "`{part}` is expected in: {output}");
    }
    assert!(output.contains("resumed from step 2"), "{output}");
    assert_eq!(steps_of_metrics(&workspace), [1, 2, 3, 4]);
    assert_eq!(workspace.summary("run")["ended"], "finished");
}

#[test]
fn an_undamaged_snapshot_is_used() {
    let workspace = trained_workspace();
    let end = resume(&workspace).success();
    assert!(format!("{}{}", end.out, end.err).contains("resumed from step 3"), "{end:?}");
    assert_eq!(steps_of_metrics(&workspace), [1, 2, 3, 4]);
}

#[test]
fn a_truncated_part_is_detected() {
    let cut = |part: &Path, _: &Path| {
        let bytes = fs::read(part).expect("a part");
        fs::write(part, &bytes[..bytes.len() - 7]).expect("written");
    };
    check(cut, &["step-00000002/0001/", "bytes"]);
}

#[test]
fn a_flipped_byte_is_detected() {
    let flip = |part: &Path, _: &Path| {
        let mut bytes = fs::read(part).expect("a part");
        let at = bytes.len() / 2;
        bytes[at] ^= 1;
        fs::write(part, bytes).expect("written");
    };
    check(flip, &["step-00000002/0001/", "expected sha256 "]);
}

#[test]
fn parts_without_a_manifest_are_not_a_snapshot() {
    check(|_, manifest| fs::remove_file(manifest).expect("removed"), &["step-00000002"]);
}

#[test]
fn without_a_good_snapshot_all_are_named_and_nothing_is_trained() {
    let workspace = trained_workspace();
    for step in 0..3 {
        fs::write(part(&workspace, step), b"no longer").expect("written");
    }
    let end = resume(&workspace);
    assert!(matches!(end.code, Some(1 | 2)), "{end:?}");
    for step in 0..3 {
        assert!(end.err.contains(&format!("step-{step:08}/0001/")), "{end:?}");
    }
    assert_eq!(steps_of_metrics(&workspace), [1, 2, 3]);
}
