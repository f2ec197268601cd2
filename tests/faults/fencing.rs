//! Tests of two processes on one run: the process that was presumed dead must no longer write.

use super::damage::steps_of_metrics;
use super::ends::{ENDLESS, read_until, signal};
use super::workspace::{ProcessEnd, RECIPE, TestWorkspace};

#[test]
fn the_older_of_two_processes_on_one_run_ends() {
    let workspace = TestWorkspace::new(RECIPE);
    let args = [&ENDLESS[..], &["trainer.save_freq=1"]].concat();
    let mut older = workspace.train_command(&args).spawn().expect("the program starts");
    read_until(&mut older, "step:2 ");
    let mut newer = workspace
        .train_command(&[&args[..], &["--resume", "latest"]].concat())
        .spawn()
        .expect("the program starts");
    // The older process detects the newer one by a snapshot or by the file of metrics, whichever the newer one writes first.
    let end = ProcessEnd::of(older);
    end.assert_failed(&[]);
    let reasons =
        ["another process resumes the same run", "another process has begun a run in this folder"];
    assert!(reasons.iter().any(|reason| end.err.contains(reason)), "{end:?}");
    read_until(&mut newer, "step:");
    signal(&newer, "TERM");
    let end = ProcessEnd::of(newer);
    assert_eq!(end.code, Some(75), "{end:?}");
    // Steps that the older process trained before it detected this are not among the records of the newer one.
    let steps = steps_of_metrics(&workspace);
    assert!(steps.iter().copied().eq(1..=steps.len() as u64), "{steps:?}");
}
