//! Runs the program with limits on time and memory.

use std::process::Command;
use std::sync::Mutex;

use crate::names;
use crate::workspace::{ProcessEnd, TestWorkspace};

/// Address space of a run in KiB. It has room for a thousand threads, whose stacks are reserved but not used.
const ADDRESS_SPACE: u64 = 48 << 20;

/// Time limit of a run in seconds.
const TIME_LIMIT_S: u64 = 120;

/// Number of concurrent runs.
const CONCURRENT_RUNS: usize = 2;

/// Runs the program in the folder of `workspace` with an address space of this many KiB. Kills it if it hangs.
pub(crate) fn run_within(
    workspace: &TestWorkspace,
    address_space: u64,
    args: &[String],
) -> ProcessEnd {
    let script = format!(
        "ulimit -c 0; ulimit -v {address_space}; exec timeout -s KILL {TIME_LIMIT_S} \"$0\" \"$@\""
    );
    let mut command = Command::new("sh");
    command.args(["-c", &script, env!("CARGO_BIN_EXE_rollpacker")]).args(args);
    workspace.prepare(&mut command);
    ProcessEnd::of(command.spawn().expect("the program starts"))
}

/// Runs the program with as much memory as any ordinary run needs.
pub(crate) fn run(workspace: &TestWorkspace, args: &[String]) -> ProcessEnd {
    run_within(workspace, ADDRESS_SPACE, args)
}

/// A run, and the names that its error may contain.
pub(crate) struct Case {
    pub(crate) args: Vec<String>,
    pub(crate) keys: Vec<String>,
}

/// Runs all cases and reports those that neither succeed nor fail with an error that names a key.
pub(crate) fn check(workspace: &TestWorkspace, cases: &[Case]) {
    let (next, failed) = (Mutex::new(cases.iter()), Mutex::new(Vec::new()));
    let work = || {
        loop {
            let Some(case) = next.lock().expect("unpoisoned").next() else { break };
            if let Some(fault) = fault(workspace, case) {
                failed.lock().expect("unpoisoned").push(fault);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..CONCURRENT_RUNS {
            scope.spawn(work);
        }
    });
    let failed = failed.into_inner().expect("unpoisoned");
    assert!(failed.is_empty(), "{} of {} runs:\n{}", failed.len(), cases.len(), failed.join("\n"));
}

/// Returns the failure of a case, if any.
fn fault(workspace: &TestWorkspace, Case { args, keys }: &Case) -> Option<String> {
    let ProcessEnd { code, err, .. } = run(workspace, args);
    let keys: Vec<&str> = keys.iter().map(String::as_str).collect();
    match code {
        // A run without enough time ends early.
        Some(0 | 75) => None,
        // Some data errors are found only while the data is read.
        Some(1 | 2) if names(&err, &keys) => None,
        code => {
            let last: Vec<&str> = err.lines().rev().take(3).collect();
            Some(format!("{}: {code:?}, {}", args.join(" "), last.join(" | ")))
        }
    }
}

/// Converts arguments to owned strings.
pub(crate) fn owned(args: &[&str]) -> Vec<String> {
    args.iter().map(|&arg| arg.to_owned()).collect()
}
