//! Snapshots on disk: a process that is killed, two that resume one run, a disk that is full or read-only.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};

use rollpacker_dataflow::snapshot::{Identity, Part, SnapshotError, SnapshotStore, StoreOptions};
use rollpacker_dataflow::step::Step;

/// The environment variable with the folder in which [`another_process`] takes snapshots.
const FOLDER: &str = "ROLLPACKER_TEST_SNAPSHOTS";

fn open(folder: &Path) -> SnapshotStore {
    let identity = Identity { run: "a run".to_owned(), ..Identity::default() };
    SnapshotStore::open(folder, StoreOptions { identity, keep: 2 }).expect("the folder opens")
}

/// Returns 100 kB that differ between the steps of an operator.
fn content(step: Step, operator: &str) -> Vec<u8> {
    let seed = operator.len() as u64 + step.0;
    (0..100_000_u64).map(|at| (at.wrapping_mul(seed) >> 3) as u8).collect()
}

fn take(store: &SnapshotStore, step: Step) -> Result<(), SnapshotError> {
    let mut parts = Vec::new();
    for operator in ["schedule", "update"] {
        let part = Part::bytes("bin", content(step, operator));
        parts.extend(store.write(step, operator, 0, part)?);
    }
    store.commit(step, parts, 1).map(drop)
}

fn restored(store: &SnapshotStore) -> Option<Step> {
    let restored = store.latest().expect("the folder can be read").restored?;
    for operator in ["schedule", "update"] {
        let parts = restored.parts(operator).expect("verified");
        assert!(parts == [(0, content(restored.step(), operator))], "of one step");
    }
    Some(restored.step())
}

fn start(folder: &Path) -> (Child, BufReader<ChildStdout>) {
    let mut child = Command::new(std::env::current_exe().expect("this test"))
        .args(["--exact", "another_process", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .expect("the process starts");
    let output = BufReader::new(child.stdout.take().expect("piped"));
    (child, output)
}

/// Returns the next step that a process reports as committed.
fn committed(output: &mut BufReader<ChildStdout>) -> Step {
    let mut line = String::new();
    loop {
        line.clear();
        assert!(output.read_line(&mut line).expect("readable") > 0, "the process was not killed");
        // The test harness may print on the same line first.
        let step = line.trim().rsplit_once("committed ").map(|(_, step)| step.parse());
        if let Some(step) = step {
            return Step(step.expect("a number"));
        }
    }
}

/// The child process of the other tests: takes snapshots until it is killed or fenced. Does nothing if `FOLDER` is not set.
#[test]
fn another_process() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let store = open(Path::new(&folder));
    let mut step = restored(&store).map_or(Step(0), Step::next);
    while take(&store, step).is_ok() {
        use std::io::Write;
        writeln!(std::io::stdout(), "committed {step}").expect("someone reads");
        step = step.next();
    }
}

#[test]
fn a_killed_process_keeps_its_committed_snapshots() {
    let folder = tempfile::tempdir().expect("a folder");
    let mut last = None;
    for snapshots in [1, 3, 2, 5, 1, 4] {
        let (mut process, mut output) = start(folder.path());
        for _ in 0..snapshots {
            let step = committed(&mut output);
            assert_eq!(last.map_or(Step(0), Step::next), step, "it continued after the last");
            last = Some(step);
        }
        process.kill().expect("it is killed");
        process.wait().expect("it ends");
        let store = open(folder.path());
        let found = restored(&store);
        assert!(found >= last, "{found:?}, and {last:?} was committed");
        last = found;
    }
}

#[test]
fn the_newer_of_two_processes_that_resume_a_run_continues() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = open(folder.path());
    take(&ours, Step(0)).expect("no newer generation");
    let (mut process, mut output) = start(folder.path());
    committed(&mut output);
    let refused = take(&ours, Step(9)).expect_err("a newer one was opened");
    assert!(matches!(refused, SnapshotError::Fenced { .. }), "{refused}");
    // The other process is fenced by the next one, too.
    let newer = open(folder.path());
    while output.read_line(&mut String::new()).expect("readable") > 0 {}
    assert!(process.wait().expect("it ends").success());
    let last = restored(&newer).expect("it has committed");
    take(&newer, last.next()).expect("the newest");
}

/// A file system of limited size in a temporary folder, which is unmounted on drop.
struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new(kilobytes: usize) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a folder");
        let size = format!("size={kilobytes}k");
        mount(&["-t", "tmpfs", "-o", &size, "none"], folder.path()).then_some(Self(folder))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(Command::new("umount").arg(self.0.path()).status());
    }
}

fn mount(options: &[&str], folder: &Path) -> bool {
    let mut command = Command::new("mount");
    command.args(options).arg(folder).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

#[test]
fn a_cleared_folder_keeps_its_generation_claims() {
    let folder = tempfile::tempdir().expect("a folder");
    let ours = open(folder.path());
    take(&ours, Step(0)).expect("written");
    std::fs::create_dir(folder.path().join("of someone")).expect("made");
    SnapshotStore::clear(folder.path()).expect("cleared");
    assert!(SnapshotStore::steps_in(folder.path()).expect("readable").is_empty());
    let names = std::fs::read_dir(folder.path()).expect("readable").flatten();
    let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
    assert_eq!(names, ["generation-0001"]);
    let theirs = open(folder.path());
    assert!(theirs.generation() > ours.generation());
    take(&ours, Step(1)).expect_err("a newer one has opened it");
}

#[test]
#[allow(clippy::print_stderr, reason = "a skipped test prints a message")]
fn a_full_or_read_only_disk_is_an_error_that_names_it() {
    let Some(disk) = Mounted::new(700) else {
        eprintln!("skipped: this process may not mount a file system");
        return;
    };
    let folder = disk.0.path().join("run");
    let store = open(&folder);
    take(&store, Step(0)).expect("there is space");
    take(&store, Step(1)).expect("there is space");
    std::fs::write(disk.0.path().join("other"), vec![0; 150_000]).expect("there is space");
    let message = take(&store, Step(2)).expect_err("the disk is full").to_string();
    assert!(message.starts_with("cannot write `"), "{message}");
    assert!(message.contains("step-00000002/0001/tmp-"), "{message}");
    assert!(message.ends_with("No space left on device (os error 28)"), "{message}");
    assert_eq!(restored(&store), Some(Step(1)));
    store.discard(Step(2)).expect("there is something to remove");
    std::fs::remove_file(disk.0.path().join("other")).expect("removed");
    take(&store, Step(2)).expect("there is space again");

    assert!(mount(&["-o", "remount,ro"], disk.0.path()), "the mounted disk can be made read-only");
    let message = take(&store, Step(3)).expect_err("it is read-only").to_string();
    assert!(message.ends_with("Read-only file system (os error 30)"), "{message}");
    assert_eq!(restored(&store), Some(Step(2)));
}
