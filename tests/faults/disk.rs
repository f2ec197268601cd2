//! Disks that take no more: full ones, and ones that may only be read.
//!
//! The folder of the snapshots is a small file system of its own, in a namespace of its own, where the machine permits that.

use std::process::Command;

use super::workplace::{End, RECIPE, Workplace};

/// Runs a script with `$train` and an empty file system of 8 MiB on `run/snapshots`; `None` where none can be mounted.
fn with_small_disk(place: &Workplace, script: &str) -> Option<End> {
    let mount = "mkdir -p run/snapshots && mount -t tmpfs -o size=8m none run/snapshots";
    let unshare = |script: &str| {
        let mut command = Command::new("unshare");
        command.args(["--map-root-user", "--mount", "sh", "-ec", script]);
        let train = format!(
            "{} train --config recipe.toml trainer.save_freq=1",
            env!("CARGO_BIN_EXE_rollpacker")
        );
        command.env("train", train);
        place.here(&mut command);
        command.spawn().map(End::of)
    };
    if unshare(mount).is_ok_and(|end| end.code == Some(0)) {
        return unshare(&format!("{mount}\n{script}")).ok();
    }
    println!("skipped: this machine mounts no file system in a namespace");
    None
}

/// Two steps, and no room for a third snapshot.
const FILLED: &str = "
    $train trainer.total_training_steps=2
    dd if=/dev/zero of=run/snapshots/filler bs=4k 2> /dev/null || true
";

#[test]
fn a_full_disk_ends_the_run_and_the_snapshot_before_is_good() {
    let place = Workplace::new(RECIPE);
    let script = format!(
        "{FILLED}
        code=0; $train --resume latest trainer.total_training_steps=4 2> full.err || code=$?
        echo ended with $code
        rm run/snapshots/filler
        $train --resume latest trainer.total_training_steps=4"
    );
    let Some(end) = with_small_disk(&place, &script) else { return };
    assert_eq!(end.code, Some(0), "{end:?}");
    assert!(end.out.contains("ended with 1\n"), "{end:?}");
    assert_eq!(end.out.matches("resumed from step 2").count(), 2, "{end:?}");
    let error = std::fs::read_to_string(place.path("full.err")).expect("standard error");
    for part in ["error: ", "run/snapshots/", "No space left on device"] {
        assert!(error.contains(part), "`{part}` is expected in: {error}");
    }
}

#[test]
fn a_run_that_is_only_to_warn_goes_on_without_snapshots() {
    let place = Workplace::new(RECIPE);
    let script = format!(
        "{FILLED}
        $train --resume latest trainer.total_training_steps=4 trainer.snapshot_on_error=warn
        echo and again; rm run/snapshots/filler
        $train --resume latest trainer.total_training_steps=4"
    );
    let Some(end) = with_small_disk(&place, &script) else { return };
    assert_eq!(end.code, Some(0), "{end:?}");
    let (first, again) = end.out.split_once("and again").expect("two runs");
    let warned = first.lines().filter(|line| line.starts_with("warning: snapshots, step "));
    assert!(warned.filter(|line| line.contains("No space left on device")).count() >= 2, "{end:?}");
    assert!(first.contains("step:4 ") && again.contains("resumed from step 2"), "{end:?}");
}

#[test]
fn a_folder_that_may_only_be_read_is_named_before_anything_runs() {
    let place = Workplace::new(RECIPE);
    let script = "
        $train trainer.total_training_steps=2 > /dev/null
        mount -o remount,ro run/snapshots
        $train --resume latest trainer.total_training_steps=4";
    let Some(end) = with_small_disk(&place, script) else { return };
    assert!(matches!(end.code, Some(1 | 2)), "{end:?}");
    let [error] = end.errors()[..] else { panic!("one error is expected: {end:?}") };
    assert!(error.contains("run/snapshots") && error.contains("Read-only file system"), "{error}");
    assert!(!end.out.contains("step:3 "), "{end:?}");
}
