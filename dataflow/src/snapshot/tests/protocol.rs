//! A graph that is killed and resumed, on any number of workers, ends in the same state as one that was not.

use std::collections::BTreeSet;
use std::path::Path;

use super::memory::{CRASHES, Memory};
use super::open;
use super::test_graph::{FoldStates, TestGraph};
use crate::snapshot::OnError;
use crate::snapshot::files::Files;
use crate::step::Step;

const STEPS: u64 = 6;

/// Returns the final states of an undisturbed run.
fn expected() -> FoldStates {
    let outcome = TestGraph::new(1, STEPS, 0).run(&Memory::default());
    assert_eq!(outcome.fault, None);
    assert_eq!(outcome.states.len(), 10, "two folds of five keys");
    outcome.states
}

fn steps(files: &Memory) -> Vec<u64> {
    let store = open(&files.copy(), 2).expect("opens");
    store.manifests().expect("readable").into_iter().map(|id| id.step.0).collect()
}

fn finishes(
    test_graph: &TestGraph,
    files: &Memory,
    expected: &FoldStates,
    what: &str,
) -> Option<Step> {
    let outcome = test_graph.run(files);
    assert_eq!(outcome.fault, None, "{what}");
    // States that the resumed run does not touch are included: all states are reported at the end.
    assert_eq!(&outcome.states, expected, "{what}: resumed from {:?}", outcome.resumed);
    outcome.resumed
}

#[test]
fn the_number_of_workers_does_not_change_the_result() {
    let expected = expected();
    for workers in 1..=3 {
        let files = Memory::default();
        finishes(&TestGraph::new(workers, STEPS, 4), &files, &expected, "uninterrupted");
        assert_eq!(steps(&files), [5, 3], "the end, and the last of every four");
    }
}

#[test]
fn a_run_in_virtual_time_takes_the_same_snapshots() {
    let (live, files) = (Memory::default(), Memory::default());
    TestGraph::new(1, 4, 2).run(&live);
    let outcome = TestGraph::new(1, 4, 2).run_virtual(&files);
    assert_eq!(outcome.fault, None);
    assert_eq!(files.paths(), live.paths());
    for path in files.paths() {
        assert!(files.content(&path) == live.content(&path), "{}", path.display());
    }
    finishes(&TestGraph::new(2, STEPS, 2), &files, &expected(), "prolonged");
}

/// A worker without work detects the last step only through the end of its inputs.
#[test]
fn the_end_snapshot_covers_a_last_step_that_idle_workers_did_not_see() {
    let files = Memory::default();
    for workers in [6, 7] {
        let outcome = TestGraph::new(workers, 4, 2).run(&files);
        assert_eq!(outcome.fault, None);
        assert_eq!(steps(&files)[0], 3);
        finishes(&TestGraph::new(8, STEPS, 2), &files.copy(), &expected(), "prolonged");
    }
}

/// Each of several steps that complete together has the snapshot of its own end.
#[test]
fn steps_that_complete_together_have_separate_snapshots() {
    let expected = expected();
    for workers in 1..=2 {
        let files = Memory::default();
        let mut test_graph = TestGraph::new(workers, 4, 2);
        test_graph.bursts = true;
        test_graph.run(&files);
        assert_eq!(steps(&files), [3, 1]);
        files.remove(Path::new("/run/step-00000003.0001.json")).expect("removed");
        assert_eq!(
            finishes(&TestGraph::new(workers, STEPS, 2), &files, &expected, "from step 1"),
            Some(Step(1))
        );
    }
}

#[test]
fn a_completed_run_can_be_extended() {
    let expected = expected();
    // The same holds if the last step is one of the cadence: then nothing more is written at the end.
    for (first, last) in [(3, 2), (4, 3)] {
        let files = Memory::default();
        TestGraph::new(2, first, 3).run(&files);
        assert_eq!(steps(&files)[0], last);
        assert!(files.paths().iter().any(|path| path.starts_with("/run/end")) == (first == 4));
        let resumed = finishes(&TestGraph::new(3, STEPS, 3), &files, &expected, "prolonged");
        assert_eq!(resumed, Some(Step(last)));
        let again = TestGraph::new(1, STEPS, 3).run(&files);
        assert_eq!((again.fault, again.resumed, steps(&files)[0]), (None, Some(Step(5)), 5));
        let found = open(&files, 2).expect("opens").latest().expect("readable");
        assert!(found.damage.is_empty(), "damage of the removed snapshot: {:?}", found.damage);
    }
}

#[test]
fn a_run_dropped_at_any_step_resumes_with_another_number_of_workers() {
    let expected = expected();
    for (before, after) in [(1, 1), (1, 2), (2, 1), (2, 3), (3, 1)] {
        for step in 0..STEPS {
            let files = Memory::default();
            let mut test_graph = TestGraph::new(before, STEPS, 2);
            test_graph.dropped_at = Some(Step(step));
            test_graph.bursts = step % 2 == 1;
            test_graph.run(&files);
            let what = format!("{before} workers, dropped at step {step}, then {after}");
            finishes(&TestGraph::new(after, STEPS, 2), &files, &expected, &what);
        }
    }
}

#[test]
fn a_run_killed_at_any_file_operation_resumes() {
    let expected = expected();
    for (before, after) in [(1, 2), (2, 1), (3, 2)] {
        let mut resumed = BTreeSet::new();
        // With more workers, the same work takes more operations.
        for operation in (0..).step_by(2 * before - 1) {
            let files = Memory::default();
            files.crash_at(operation);
            let mut test_graph = TestGraph::new(before, STEPS, 2);
            test_graph.bursts = operation % 4 == 3;
            let outcome = test_graph.run(&files);
            if files.operations() <= operation {
                assert_eq!(outcome.fault, None, "the process lived");
                break;
            }
            let crash = CRASHES[operation % CRASHES.len()];
            files.restart(crash);
            let what =
                format!("{before} workers, dead at operation {operation}, {crash:?}, then {after}");
            resumed.insert(finishes(&TestGraph::new(after, STEPS, 2), &files, &expected, &what));
        }
        let all = [None, Some(Step(1)), Some(Step(3)), Some(Step(5))];
        assert!(all.iter().all(|step| resumed.contains(step)), "{resumed:?}");
    }
}

/// Checks that the tests above would detect a graph that does not wait for the frontier.
#[test]
fn a_graph_that_applies_rows_on_arrival_is_detected() {
    let expected = expected();
    let caught = (0..40).any(|_| {
        let files = Memory::default();
        let mut test_graph = TestGraph::new(2, STEPS, 2);
        (test_graph.on_arrival, test_graph.dropped_at) = (true, Some(Step(3)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            test_graph.run(&files);
            test_graph.dropped_at = None;
            test_graph.run(&files).states
        }));
        outcome.ok() != Some(expected.clone())
    });
    assert!(caught);
}

#[test]
fn a_snapshot_can_be_requested() {
    let expected = expected();
    let files = Memory::default();
    let mut test_graph = TestGraph::new(2, STEPS, 0);
    test_graph.requested_at = Some(Step(1));
    let outcome = test_graph.run(&files);
    let requested = outcome.requested.expect("both workers are here");
    assert_eq!((outcome.fault, outcome.states), (None, expected));
    assert!((2..6).contains(&requested.0), "{requested}");
    let taken = steps(&files);
    assert_eq!(taken.first(), Some(&5));
    assert!(requested == Step(5) || taken.contains(&requested.0), "{requested} of {taken:?}");
}

#[test]
fn a_source_that_waits_for_writes_stays_few_steps_ahead() {
    let ahead = |waits_for_writes| {
        let files = Memory::default();
        files.slow_down(1_000);
        let mut test_graph = TestGraph::new(2, 32, 1);
        (test_graph.bursts, test_graph.waits_for_writes) = (true, waits_for_writes);
        let outcome = test_graph.run(&files);
        assert_eq!(outcome.fault, None);
        outcome.ahead
    };
    assert_eq!(ahead(false), 31, "all steps are in flight at once");
    // A worker waits for its own writes only, so that the distance also depends on how fast the other worker writes.
    let waiting = ahead(true);
    assert!(waiting < 16, "{waiting}");
}

#[test]
fn a_full_disk_ends_the_run_or_is_a_warning() {
    let files = Memory::default();
    TestGraph::new(2, 4, 2).run(&files);
    files.limit(Some(files.size() + 100));
    let outcome = TestGraph::new(2, STEPS, 2).run(&files);
    let fault = outcome.fault.expect("the disk is full");
    assert!(
        fault.starts_with("snapshots, step 6: cannot write `/run/step-00000005/0002/"),
        "{fault}"
    );
    assert_eq!(steps(&files)[0], 3, "the previous snapshot is kept");

    let mut test_graph = TestGraph::new(2, STEPS, 2);
    test_graph.on_error = OnError::Warn;
    let outcome = test_graph.run(&files);
    assert_eq!((outcome.fault, outcome.states), (None, expected()));
    assert!(outcome.warnings.len() >= 2, "the failed snapshot is retried: {:?}", outcome.warnings);
    assert_eq!(steps(&files)[0], 3);

    files.limit(None);
    finishes(&test_graph, &files, &expected(), "with space again");
    assert_eq!(steps(&files)[0], 5);
}

#[test]
fn a_newer_process_ends_the_run_even_where_errors_are_warnings() {
    let files = Memory::default();
    let mut test_graph = TestGraph::new(2, STEPS, 2);
    test_graph.on_error = OnError::Warn;
    test_graph.newer_process_at = Some(Step(4));
    let fault = test_graph.run(&files).fault.expect("it is fenced");
    assert!(fault.contains("this run is generation 0001 of the folder"), "{fault}");
    finishes(&TestGraph::new(1, STEPS, 2), &files, &expected(), "the newer process");
}
