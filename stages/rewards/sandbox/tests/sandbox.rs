//! The sandbox against hostile code: no attack passes, none leaves anything behind, and the next sample is scored correctly.

mod sandbox {
    pub(crate) mod hostile;
    pub(crate) mod machine;
}

use std::fs::Permissions;
use std::future::Future;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;

use futures::executor::block_on;
use futures::future::join_all;
use rollpacker_sandbox::{
    Check, Isolation, Job, Outcome, Sandbox, SandboxConfig, SandboxError, Verdict,
};

use crate::sandbox::hostile::{self, Attack};
use crate::sandbox::machine::{self, exclusive};

/// The tests that every attack tries to pass: an addition of numbers that a solution cannot guess.
const TESTS: &str = "from solution import add\n\ndef test_add():\n    assert add(2, 3) == 5\n    assert add(987654300, 21) == 987654321\n";
const RIGHT: &str = "def add(a, b):\n    return a + b\n";
const WRONG: &str = "def add(a, b):\n    return a - b\n";

fn job(solution: &str, seconds: f64) -> Job {
    let check = Check::Tests {
        tests: vec![TESTS.into()],
        prelude: false,
        import_prefix: String::new(),
        stop_at_failure: false,
    };
    Job { solution: solution.into(), language: "python".into(), check, seconds: vec![seconds] }
}

fn start(slots: usize) -> Sandbox {
    Sandbox::start(SandboxConfig { slots, memory_bytes: 256 << 20, ..SandboxConfig::default() })
        .expect("the sandbox starts")
}

fn start_without_isolation() -> Sandbox {
    let config = SandboxConfig { isolation: Isolation::None, slots: 1, ..SandboxConfig::default() };
    Sandbox::start(config).expect("isolation is turned off explicitly")
}

fn run(sandbox: &Sandbox, solution: &str) -> Verdict {
    block_on(sandbox.run(&job(solution, 1.0))).expect("there is a verdict")
}

#[test]
fn the_probe_finds_every_layer() {
    let _alone = exclusive();
    let probe = Sandbox::probe(&SandboxConfig::default());
    assert!(probe.is_isolated(), "{probe}");
    assert!(!probe.to_string().contains("MISSING"), "{probe}");
}

#[test]
fn no_attack_passes_or_leaves_processes() {
    let _alone = exclusive();
    let secret = hostile::secret();
    let sandbox = start(1);
    let idle = machine::descendants();
    let mut wrong = Vec::new();
    for Attack { name, code, expected } in hostile::attacks(&secret) {
        let verdict = run(&sandbox, &code);
        if verdict.passed() > 0 || !expected.contains(&verdict.outcome()) {
            wrong.push(format!("{name}: expected {expected:?}, found {verdict:?}"));
        }
        assert!(
            verdict.stdout.len() + verdict.stderr.len() <= 3 << 20,
            "{name}: the output is capped"
        );
        assert_eq!(machine::descendants(), idle, "{name} left processes behind, or cost the slot");
        assert_eq!(
            run(&sandbox, RIGHT).outcome(),
            Outcome::Passed,
            "after {name} the next sample is right"
        );
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn a_thousand_samples_leak_nothing() {
    let _alone = exclusive();
    let sandbox = start(2);
    let warm = |count: usize| {
        let jobs: Vec<_> = (0..count).map(|i| job(hostile::mixed(i).0, 1.0)).collect();
        let verdicts = block_on(join_all(jobs.iter().map(|job| sandbox.run(job))));
        for (i, verdict) in verdicts.into_iter().enumerate() {
            let verdict = verdict.expect("there is a verdict");
            assert_eq!(verdict.outcome(), hostile::mixed(i).1, "sample {i}: {verdict:?}");
        }
    };
    warm(50);
    let before = machine::usage();
    for _ in 0..20 {
        warm(50);
    }
    // A zygote closes a job's last descriptors after it has answered.
    machine::wait_until(|| machine::usage().descriptors <= before.descriptors);
    let after = machine::usage();
    assert_eq!(after.processes, before.processes);
    assert!(after.resident_kib < before.resident_kib + 2048, "{before:?} grew to {after:?}");
}

#[test]
fn a_dropped_sandbox_is_removed_completely() {
    let _alone = exclusive();
    let before = machine::descendants();
    let sandbox = start(2);
    assert!(machine::descendants() > before);
    drop(sandbox.clone());
    assert_eq!(run(&sandbox, RIGHT).outcome(), Outcome::Passed);
    drop(sandbox);
    assert_eq!(machine::descendants(), before);
}

#[test]
fn a_dropped_job_is_killed_and_its_slot_remains_usable() {
    let _alone = exclusive();
    let sandbox = start(1);
    let idle = machine::descendants();
    let endless = job("import time\ntime.sleep(1000)\n", 500.0);
    let queued = job(RIGHT, 1.0);
    block_on(async {
        let mut running = Box::pin(sandbox.run(&endless));
        let mut waiting = Box::pin(sandbox.run(&queued));
        // Both jobs are in flight once polled; the first holds the slot until it is dropped.
        futures::future::poll_fn(|context| {
            assert!(
                running.as_mut().poll(context).is_pending()
                    && waiting.as_mut().poll(context).is_pending()
            );
            Poll::Ready(())
        })
        .await;
        machine::wait_until(|| machine::descendants() > idle + 1);
        drop(running);
        assert_eq!(waiting.await.expect("there is a verdict").outcome(), Outcome::Passed);
    });
    assert_eq!(machine::descendants(), idle);
}

/// With control groups, the processes of a slot share one limit on memory: several processes that each stay within the limit exceed it
/// together.
#[test]
fn many_processes_share_one_limit_on_memory() {
    let _alone = exclusive();
    let sandbox = start(1);
    let output = sandbox.active().to_string();
    if !output.lines().any(|line| line.starts_with("cgroups") && line.contains(": memory")) {
        return skipped(&output);
    }
    for wait in ["os.wait()", "time.sleep(1000)"] {
        let hoard = format!(
            "import os, time\ndef add(a, b):\n    for _ in range(8):\n        if os.fork() == 0:\n            held = b'x' * (200 << 20)\n            time.sleep(1000)\n    {wait}\n    return -1\n"
        );
        let verdict = block_on(sandbox.run(&job(&hoard, 5.0))).expect("there is a verdict");
        assert_eq!(verdict.outcome(), Outcome::Memory, "{verdict:?}");
        assert_eq!(run(&sandbox, RIGHT).outcome(), Outcome::Passed);
    }
}

#[test]
fn control_groups_are_removed() {
    let _alone = exclusive();
    assert_eq!(machine::groups(), Vec::<std::path::PathBuf>::new());
    let sandbox = start(2);
    let groups = machine::groups();
    if groups.is_empty() {
        return skipped(&sandbox.active().to_string());
    }
    let stale: Vec<_> =
        groups.iter().map(|group| group.with_file_name("rollpacker-sandbox-4194305-0")).collect();
    for group in &stale {
        std::fs::create_dir_all(group).expect("a group is made");
    }
    drop(sandbox);
    assert_eq!(machine::groups(), Vec::<std::path::PathBuf>::new());
    drop(start(1));
    assert!(stale.iter().all(|group| !group.exists()), "groups of dead processes are removed");
}

#[expect(clippy::print_stderr, reason = "a skipped test prints a message")]
fn skipped(why: &str) {
    eprintln!("skipped: no control groups:\n{why}");
}

#[test]
fn jobs_share_nothing() {
    let _alone = exclusive();
    let sandbox = start(1);
    let chance = "import random\nprint(random.random())\n";
    let print = || run(&sandbox, &format!("{chance}{RIGHT}")).stdout;
    assert_ne!(print(), print(), "two runs have different random numbers");
    let leave = "import builtins, os\nbuiltins.left = 1\nopen('/tmp/left', 'w').write('x')\nos.environ['LEFT'] = '1'\n";
    let look = "import builtins, os\nassert not hasattr(builtins, 'left') and not os.path.exists('/tmp/left') and 'LEFT' not in os.environ\n";
    for code in [leave, look] {
        assert_eq!(run(&sandbox, &format!("{code}{RIGHT}")).outcome(), Outcome::Passed);
    }
}

/// Every job is forked from the zygote and inherits its memory. Neither the solution nor the tests of an earlier job may be in it.
#[test]
fn a_job_has_no_memory_of_an_earlier_job() {
    let _alone = exclusive();
    let sandbox = start(1);
    let mark = ["QUEEN", "BEE"].concat();
    let tests = Check::Tests {
        tests: vec![format!("# {mark}\n{TESTS}")],
        prelude: false,
        import_prefix: String::new(),
        stop_at_failure: false,
    };
    let marked = Job { check: tests, ..job(&format!("{RIGHT}# {mark}"), 1.0) };
    let verdict = block_on(sandbox.run(&marked)).expect("there is a verdict");
    assert_eq!(verdict.outcome(), Outcome::Passed);
    let search = |own: &str| run(&sandbox, &format!("{}{RIGHT}# {own}", hostile::SEARCH)).stdout;
    assert_eq!(search(""), "0\n", "the memory has no data of earlier jobs");
    assert_ne!(search(&mark), "0\n", "the search finds the source of the run itself");
}

/// Runs a job on a sandbox with one slot, and kills the slot `times` times while the job runs.
fn run_with_killed_slots(
    sandbox: &Sandbox,
    job: &Job,
    times: usize,
) -> Result<Verdict, SandboxError> {
    let idle = machine::descendants();
    block_on(async {
        let mut running = Box::pin(sandbox.run(job));
        futures::future::poll_fn(|context| {
            assert!(running.as_mut().poll(context).is_pending());
            Poll::Ready(())
        })
        .await;
        let mut killed = Vec::new();
        for _ in 0..times {
            machine::wait_until(|| machine::slots() != killed && machine::descendants() > idle + 1);
            killed = machine::slots();
            machine::kill_slots();
        }
        running.await
    })
}

#[test]
fn a_job_whose_slot_is_killed_is_retried_once() {
    let _alone = exclusive();
    let sandbox = start(1);
    let idle = machine::descendants();
    let slow = job(&format!("import time\ntime.sleep(0.5)\n{RIGHT}"), 500.0);
    let verdict = run_with_killed_slots(&sandbox, &slow, 1).expect("there is a verdict");
    assert_eq!(verdict.outcome(), Outcome::Passed);
    assert_eq!(machine::descendants(), idle);
}

#[test]
fn a_slot_that_is_killed_again_is_a_fault_and_is_replaced() {
    let _alone = exclusive();
    let sandbox = start(1);
    let idle = machine::descendants();
    let endless = job("import time\ntime.sleep(1000)\n", 500.0);
    let error = run_with_killed_slots(&sandbox, &endless, 2).expect_err("there is no verdict");
    assert!(matches!(error, SandboxError::Fault { .. }), "{error}");
    assert_eq!(run(&sandbox, RIGHT).outcome(), Outcome::Passed);
    assert_eq!(machine::descendants(), idle);
}

/// Sixteen threads stay within the limit, because the allocator does not reserve address space for each thread.
#[test]
fn sixteen_threads_fit_within_the_memory_limit() {
    let _alone = exclusive();
    let sandbox =
        Sandbox::start(SandboxConfig { slots: 1, ..SandboxConfig::default() }).expect("it starts");
    let threads = "import threading\ndef add(a, b):\n    go, sums = threading.Barrier(16), []\n    def work(i):\n        held = [bytes(1000 + i) for _ in range(1000)]\n        \
        go.wait()\n        sums.append(len(held))\n    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]\n    \
        for thread in threads: thread.start()\n    for thread in threads: thread.join()\n    return a + b if sum(sums) == 16000 else -1\n";
    let verdict = block_on(sandbox.run(&job(threads, 10.0))).expect("there is a verdict");
    assert_eq!(verdict.outcome(), Outcome::Passed, "{verdict:?}");
}

/// With control groups, thirty processes in their own sessions use no more processor time together than the limit of one slot.
#[test]
fn many_processes_share_one_limit_on_the_processors() {
    let _alone = exclusive();
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let sandbox = start(cores);
    let output = sandbox.active().to_string();
    if cores < 2 || !output.lines().any(|line| line.starts_with("cgroups") && line.contains("cpu"))
    {
        return skipped(&output);
    }
    let busy = "import os, time\ndef add(a, b):\n    reader, writer = os.pipe()\n    begin = time.monotonic()\n    for _ in range(30):\n        if os.fork() == 0:\n            \
        os.setsid()\n            while time.monotonic() < begin + 2: pass\n            os.write(writer, b'%f\\n' % time.process_time())\n            os._exit(0)\n    \
        os.close(writer)\n    with open(reader) as file: took = sum(map(float, file))\n    print(took / (time.monotonic() - begin))\n    return -1\n";
    let verdict = block_on(sandbox.run(&job(busy, 20.0))).expect("there is a verdict");
    let processors: f64 = verdict.stdout.trim().parse().unwrap_or_else(|_| panic!("{verdict:?}"));
    assert!(processors < 1.4, "{processors} processors for one of {cores} slots");
}

/// Time in which a solution waits for a processor is not charged: two calls of 0.3 s each stay within 1.5 s, however many other processes
/// compute.
#[test]
fn waiting_for_a_processor_does_not_count_towards_the_time_limit() {
    let _alone = exclusive();
    let sandbox = start(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let computes = "import time\ndef add(a, b):\n    end = time.process_time() + 0.3\n    while time.process_time() < end: pass\n    return a + b\n";
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..4 * cores {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        let verdict = block_on(sandbox.run(&job(computes, 1.5)));
        over.store(true, Ordering::Relaxed);
        let verdict = verdict.expect("there is a verdict");
        assert_eq!(verdict.outcome(), Outcome::Passed, "{verdict:?}");
        let charged = verdict.cases[0].seconds;
        assert!((0.55..1.5).contains(&charged), "charged {charged} s for 0.6 s of computing");
    });
}

/// A killed process leaves folders behind; the next process that starts a sandbox removes them.
#[test]
fn folders_of_dead_processes_are_removed() {
    const ROLE: &str = "SANDBOX_TEST_ROLE";
    match std::env::var(ROLE).as_deref() {
        Ok("killed") => {
            let _sandboxes = [start(2), start_without_isolation()];
            machine::kill_self();
        }
        Ok(_) => drop(start(1)),
        Err(_) => {
            let _alone = exclusive();
            let temporary = tempfile::tempdir().expect("a folder");
            let act = |role: &str| {
                let mut command = Command::new(std::env::current_exe().expect("this test"));
                command.args(["folders_of_dead_processes_are_removed", "--exact"]);
                let status = command.env(ROLE, role).env("TMPDIR", temporary.path()).status();
                let left = std::fs::read_dir(temporary.path()).expect("it is there").count();
                (status.expect("the test runs").success(), left)
            };
            assert_eq!(act("killed"), (false, 3));
            assert_eq!(act("starts"), (true, 0));
        }
    }
}

#[test]
fn it_starts_and_runs_within_a_multi_threaded_runtime() {
    let _alone = exclusive();
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(4)
        .enable_all()
        .build()
        .expect("a runtime");
    // Threads that occasionally hold the allocator's locks while the slots are forked.
    let noise: Vec<_> = (0..3)
        .map(|i| {
            runtime.spawn(async move { (0..200_000).map(|n| vec![n; i + 1].len()).sum::<usize>() })
        })
        .collect();
    let sandbox = runtime.block_on(async { start(2) });
    let jobs: Vec<_> = [RIGHT, WRONG].repeat(5).into_iter().map(|code| job(code, 1.0)).collect();
    let verdicts = runtime.block_on(join_all(jobs.iter().map(|job| sandbox.run(job))));
    let passed = verdicts
        .into_iter()
        .map(|verdict| verdict.expect("there is a verdict").passed())
        .sum::<usize>();
    assert_eq!(passed, 5);
    for task in noise {
        runtime.block_on(task).expect("the noise ends");
    }
}

#[test]
fn running_without_isolation_must_be_configured_and_is_reported() {
    let _alone = exclusive();
    let sandbox = start_without_isolation();
    let output = sandbox.active().to_string();
    assert!(
        output.contains("MISSING: shared with this process") && output.contains("warning"),
        "{output}"
    );
    let idle = machine::descendants();
    for (code, expected) in [
        (RIGHT, Outcome::Passed),
        (WRONG, Outcome::Failed),
        (hostile::ORPHANS, Outcome::Failed),
        (hostile::BUSY, Outcome::Timeout),
    ] {
        assert_eq!(run(&sandbox, code).outcome(), expected, "{code}");
        assert_eq!(machine::descendants(), idle, "{code}");
    }
}

#[test]
fn a_failed_start_names_the_cause() {
    let _alone = exclusive();
    let failed = |config: SandboxConfig| {
        Sandbox::start(config).map(|_| ()).expect_err("it does not start").to_string()
    };
    let missing = failed(SandboxConfig {
        python: "no-such-python".into(),
        slots: 1,
        ..SandboxConfig::default()
    });
    assert!(missing.contains("no-such-python"), "{missing}");
    let preload = failed(SandboxConfig {
        preload: vec!["no_such_module".into()],
        slots: 1,
        ..SandboxConfig::default()
    });
    assert!(preload.contains("no_such_module"), "{preload}");
    let sandbox = start(1);
    let unknown = Job { language: "cobol".into(), ..job(RIGHT, 1.0) };
    let error = block_on(sandbox.run(&unknown)).expect_err("there is no such language").to_string();
    assert!(error.contains("cobol") && error.contains("python"), "{error}");
    let error =
        block_on(sandbox.run(&job(RIGHT, -1.0))).expect_err("there is no such time").to_string();
    assert!(error.contains("seconds") && error.contains("-1"), "{error}");
    let slots = failed(SandboxConfig { slots: usize::MAX, ..SandboxConfig::default() });
    assert!(slots.contains("`slots`: expected from 1 to 1024"), "{slots}");
}

/// A number that the kernel or the interpreter cannot represent means no limit.
#[test]
fn numbers_may_be_huge_or_tiny() {
    let _alone = exclusive();
    let config = SandboxConfig {
        slots: 1,
        memory_bytes: u64::MAX,
        processes: u32::MAX,
        file_bytes: u64::MAX,
        open_files: u32::MAX,
        tmpfs_bytes: u64::MAX,
        output_bytes: u64::MAX,
        ..SandboxConfig::default()
    };
    for isolation in [Isolation::Full, Isolation::None] {
        let sandbox = Sandbox::start(SandboxConfig { isolation, ..config.clone() });
        let sandbox = sandbox.expect("it starts");
        let outcome = |seconds| {
            let verdict = block_on(sandbox.run(&Job { seconds, ..job(RIGHT, 1.0) }));
            verdict.expect("a verdict").outcome()
        };
        let idle = machine::descendants();
        for seconds in [2_147_484.0, 1e300, f64::MAX] {
            assert_eq!(outcome(vec![seconds]), Outcome::Passed, "{seconds}");
        }
        assert_eq!(outcome(vec![f64::MAX; 1000]), Outcome::Passed);
        for seconds in [f64::MIN_POSITIVE, 5e-324, 1e-9] {
            assert_eq!(outcome(vec![seconds]), Outcome::Timeout, "{seconds}");
        }
        assert_eq!(machine::descendants(), idle, "the slot was lost");
        for seconds in [vec![], vec![0.0], vec![-0.0], vec![f64::NAN], vec![f64::INFINITY]] {
            let error = block_on(sandbox.run(&Job { seconds, ..job(RIGHT, 1.0) }));
            assert!(matches!(error, Err(SandboxError::Seconds { .. })), "{error:?}");
        }
    }
}

/// The module writes more to standard error than a pipe holds before it fails.
#[test]
fn the_error_output_of_a_preload_is_read_completely() {
    let _alone = exclusive();
    let folder = tempfile::tempdir().expect("a folder");
    let made = Command::new("python3")
        .args(["-m", "venv", "--without-pip"])
        .arg(folder.path())
        .status()
        .expect("python3");
    assert!(made.success(), "a virtual environment is made");
    let library = std::fs::read_dir(folder.path().join("lib")).expect("a folder").flatten().next();
    let packages = library.expect("one of a version").path().join("site-packages");
    let module =
        "import sys\nsys.stderr.write('x' * (1 << 18) + '\\n')\nraise ValueError('loud')\n";
    std::fs::write(packages.join("loud.py"), module).expect("a module is written");
    let config = SandboxConfig {
        python: folder.path().join("bin/python"),
        preload: vec!["loud".into()],
        slots: 1,
        ..SandboxConfig::default()
    };
    let error = Sandbox::start(config).map(|_| ()).expect_err("it does not start").to_string();
    assert!(error.contains("ValueError: loud"), "{}", &error[error.len().saturating_sub(500)..]);
}

/// Runs the isolation tests again as an unprivileged user.
#[test]
fn the_isolation_tests_pass_as_an_unprivileged_user() {
    const USER: u32 = 61_234;
    if !machine::is_root() || std::env::var_os("SANDBOX_TEST_AS_USER").is_some() {
        return;
    }
    let _alone = exclusive();
    // The folder of the build may be closed to other users.
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::set_permissions(folder.path(), Permissions::from_mode(0o755)).expect("opened");
    let tests = folder.path().join("tests");
    std::fs::copy(std::env::current_exe().expect("this test"), &tests).expect("copied");
    for test in [
        "the_probe_finds_every_layer",
        "no_attack_passes_or_leaves_processes",
        "a_dropped_job_is_killed_and_its_slot_remains_usable",
    ] {
        let mut command = Command::new(&tests);
        command
            .args([test, "--exact", "--nocapture"])
            .env("SANDBOX_TEST_AS_USER", "1")
            .env("HOME", "/")
            .uid(USER)
            .gid(USER)
            .current_dir("/");
        let output = command.output().expect("the test runs");
        let stdout = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && stdout.contains("1 passed"),
            "{stdout}{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
}
