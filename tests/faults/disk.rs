//! Tests of disks that cannot be written: full ones, and read-only ones.
//!
//! The folder of the snapshots is a small file system in its own mount namespace, on machines that permit this.

use std::fs;
use std::io::{BufRead, BufReader};
use std::process::Command;

use super::damage::steps_of_metrics;
use super::workspace::{ProcessEnd, RECIPE, TestWorkspace, wait_until};

/// Runs a script with `$train` and an empty file system of 8 MiB on `run/snapshots`. Returns `None` if none can be mounted.
fn with_small_disk(workspace: &TestWorkspace, script: &str) -> Option<ProcessEnd> {
    let mount = "mkdir -p run/snapshots && mount -t tmpfs -o size=8m none run/snapshots";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", script]);
        let train = format!(
            "{} train --config recipe.toml trainer.save_freq=1",
            env!("CARGO_BIN_EXE_rollpacker")
        );
        command.env("train", train);
        workspace.prepare(&mut command);
        command.spawn().map(ProcessEnd::of)
    };
    if unshare(mount).is_ok_and(|end| end.code == Some(0)) {
        return unshare(&format!("{mount}\n{script}")).ok();
    }
    println!("skipped: this machine mounts no file system in a namespace");
    None
}

/// A script that trains two steps and leaves no room for a third snapshot.
const FILLED: &str = "
    $train trainer.total_training_steps=2
    dd if=/dev/zero of=run/snapshots/filler bs=4k 2> /dev/null || true
";

#[test]
fn a_full_disk_ends_the_run_and_keeps_the_previous_snapshot() {
    let workspace = TestWorkspace::new(RECIPE);
    let script = format!(
        "{FILLED}
        code=0; $train --resume latest trainer.total_training_steps=4 2> full.err || code=$?
        echo ended with $code
        rm run/snapshots/filler
        $train --resume latest trainer.total_training_steps=4"
    );
    let Some(end) = with_small_disk(&workspace, &script) else { return };
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.out.contains("ended with 1\n"), "{end:?}");
    assert_eq!(end.out.matches("resumed from step 2").count(), 2, "{end:?}");
    let error = std::fs::read_to_string(workspace.path("full.err")).expect("standard error");
    for part in [
        "error: ",
        "run/snapshots/",
        "No space left on device",
        "note: the cause is outside of this program",
    ] {
        assert!(error.contains(part), "`{part}` is expected in: {error}");
    }
}

#[test]
fn a_run_that_only_warns_continues_without_snapshots() {
    let workspace = TestWorkspace::new(RECIPE);
    let script = format!(
        "{FILLED}
        $train --resume latest trainer.total_training_steps=4 trainer.snapshot_on_error=warn
        echo and again; rm run/snapshots/filler
        $train --resume latest trainer.total_training_steps=4"
    );
    let Some(end) = with_small_disk(&workspace, &script) else { return };
    assert_eq!(end.code, Some(0), "{end:?}");
    let (first, again) = end.out.split_once("and again").expect("two runs");
    let warned = first.lines().filter(|line| line.starts_with("warning: snapshots, step "));
    assert!(warned.filter(|line| line.contains("No space left on device")).count() >= 2, "{end:?}");
    assert!(first.contains("step:4 ") && again.contains("resumed from step 2"), "{end:?}");
}

#[test]
fn steps_that_could_not_be_recorded_are_in_no_snapshot() {
    let workspace = TestWorkspace::new(RECIPE);
    let kept = "trainer.save_freq=1";
    let endless = ["trainer.total_training_steps=100000", "trainer.total_epochs=100000", kept];
    let mut run = workspace.train_command(&endless).spawn().expect("the program starts");
    let mut lines = BufReader::new(run.stdout.take().expect("piped")).lines();
    let second = lines.find(|line| line.as_ref().is_ok_and(|line| line.starts_with("step:2 ")));
    assert!(second.is_some(), "it trains");
    let rollouts = workspace.path("run/rollouts");
    // A step is printed first, then its files are written, then its snapshot.
    let manifest = workspace.path("run/snapshots/step-00000002.0001.json");
    wait_until("step 2 is in a snapshot", || manifest.exists());
    fs::rename(&rollouts, workspace.path("away")).expect("moved");
    fs::write(&rollouts, "in the way").expect("written");
    lines.for_each(drop);
    let end = ProcessEnd::of(run);
    assert_eq!(end.code, Some(1), "{end:?}");
    assert!(end.err.starts_with("error: ") && end.err.contains("run/rollouts/step_"), "{end:?}");
    fs::remove_file(&rollouts).expect("removed");
    fs::rename(workspace.path("away"), &rollouts).expect("moved");
    // A file that was being written when the folder was moved remains there unfinished, under a temporary name.
    let names = fs::read_dir(&rollouts).expect("the folder").map(|entry| entry.expect("read"));
    let recorded = names
        .filter(|entry| entry.file_name().to_string_lossy().starts_with("step_"))
        .count() as u64;
    let total = format!("trainer.total_training_steps={}", recorded + 2);
    let resumed =
        workspace.train_ok(&["--resume", "latest", &total, "trainer.total_epochs=100000", kept]);
    let resumed_from = |step| resumed.out.contains(&format!("resumed from step {step}\n"));
    // The folder may have been moved after the last file was written and before the snapshot of its step was.
    assert!(resumed_from(recorded) || resumed_from(recorded - 1), "{resumed:?}");
    let steps = steps_of_metrics(&workspace);
    assert!(steps.iter().copied().eq(1..=recorded + 2), "{steps:?}");
}

#[test]
fn a_read_only_folder_is_named_before_the_run() {
    let workspace = TestWorkspace::new(RECIPE);
    let script = "
        $train trainer.total_training_steps=2 > /dev/null
        mount -o remount,ro run/snapshots
        $train --resume latest trainer.total_training_steps=4";
    let Some(end) = with_small_disk(&workspace, script) else { return };
    assert!(matches!(end.code, Some(1 | 2)), "{end:?}");
    let [error] = end.errors()[..] else { panic!("one error is expected: {end:?}") };
    assert!(error.contains("run/snapshots") && error.contains("Read-only file system"), "{error}");
    assert!(!end.out.contains("step:3 "), "{end:?}");
}
