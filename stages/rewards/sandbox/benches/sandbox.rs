//! Executions per second: a sandbox with full isolation against a plain `python3 -I` per sample, both on all cores.
//!
//! Run it on an idle machine. Where control groups are permitted, a sandbox has its own share of the processors, so next to other work it
//! looks faster than it is. On two cores with Python 3.11, medians of 15 runs of 64 samples, measured twice: a solution without imports
//! reaches 114 and 126 per second against 36.5 (3.1 and 3.4 times as many), one with the usual imports 124 and 124 against 37.0 (3.4). The
//! cost of starting an interpreter depends on its installation. Here most of it is `site`: `python3 -I -S` without isolation starts a bare
//! sample faster than either.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use divan::Bencher;
use divan::counter::ItemsCount;
use futures::executor::block_on;
use futures::future::join_all;
use rollpacker_sandbox::{Check, Isolation, Job, Outcome, Sandbox, SandboxConfig};

/// Number of samples of one measurement.
const SAMPLES: usize = 64;
const BARE: &str = "def add(a, b):\n    return a + b\n";
const IMPORTS: &str = "import collections, functools, heapq, itertools, json, math, random, re, string\nfrom typing import List\ndef add(a, b):\n    return a + b\n";
const NAMES: [&str; 2] = ["bare", "imports"];

fn solution(name: &str) -> &'static str {
    if name == "bare" { BARE } else { IMPORTS }
}
const TEST: &str =
    "def check(candidate):\n    assert candidate(2, 3) == 5\n    assert candidate(5, 7) == 12\n";

fn main() {
    divan::main();
}

#[divan::bench(args = NAMES)]
fn isolated(bencher: Bencher<'_, '_>, name: &str) {
    sandboxed(bencher, solution(name), Isolation::Full);
}

#[divan::bench(args = NAMES)]
fn without_isolation(bencher: Bencher<'_, '_>, name: &str) {
    sandboxed(bencher, solution(name), Isolation::None);
}

fn sandboxed(bencher: Bencher<'_, '_>, solution: &str, isolation: Isolation) {
    let sandbox = Sandbox::start(SandboxConfig { isolation, ..SandboxConfig::default() })
        .expect("the sandbox starts");
    let check = Check::Entry {
        test: TEST.into(),
        entry_point: "add".into(),
        prompt: None,
        import_prefix: String::new(),
    };
    let job =
        Job { solution: solution.into(), language: "python".into(), check, seconds: vec![5.0] };
    bencher.counter(ItemsCount::new(SAMPLES)).bench_local(|| {
        for verdict in block_on(join_all((0..SAMPLES).map(|_| sandbox.run(&job)))) {
            assert_eq!(verdict.expect("there is a verdict").outcome(), Outcome::Passed);
        }
    });
}

/// Returns the path of the interpreter itself, not of a shim.
fn interpreter() -> String {
    let output = Command::new("python3")
        .args(["-I", "-c", "import sys; print(sys.executable)"])
        .output()
        .expect("python3");
    String::from_utf8(output.stdout).expect("a path").trim().to_owned()
}

#[divan::bench(args = NAMES)]
fn plain_subprocess(bencher: Bencher<'_, '_>, name: &str) {
    subprocess(bencher, solution(name), &interpreter(), &["-I"]);
}

/// Runs without the modules that the installation's site-packages load at each start.
#[divan::bench(args = NAMES)]
fn plain_subprocess_without_site(bencher: Bencher<'_, '_>, name: &str) {
    subprocess(bencher, solution(name), &interpreter(), &["-I", "-S"]);
}

fn subprocess(bencher: Bencher<'_, '_>, solution: &str, python: &str, flags: &[&str]) {
    let program = format!("{solution}{TEST}check(add)\n");
    let run = || {
        Command::new(python)
            .args(flags)
            .args(["-c", &program])
            .stdin(Stdio::null())
            .status()
            .expect("it runs")
    };
    let cores = thread::available_parallelism().map_or(1, usize::from);
    bencher.counter(ItemsCount::new(SAMPLES)).bench_local(|| {
        let next = AtomicUsize::new(0);
        thread::scope(|scope| {
            for _ in 0..cores {
                scope.spawn(|| {
                    while next.fetch_add(1, Ordering::Relaxed) < SAMPLES {
                        assert!(run().success());
                    }
                });
            }
        });
    });
}
