//! The process behind a slot: started, spoken to and killed from one thread.

use std::collections::BTreeMap;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tempfile::TempDir;

use super::config::{Isolation, SandboxConfig};
use super::error::SandboxError;
use super::interpreter::Interpreter;
use super::{container, filter, frame};

/// What the interpreter is started with: it reads the rest, the zygote's program first, from its standard input.
const LOADER: &str = "import json, os, struct\n\
    def take(size):\n    data = b''\n    while len(data) < size:\n        part = os.read(0, size - len(data))\n        \
    if not part: raise SystemExit(1)\n        data += part\n    return data\n\
    boot = json.loads(take(struct.unpack('<I', take(4))[0]))\n\
    scope = {'__name__': 'zygote'}\n\
    exec(compile(boot.pop('program'), '<zygote>', 'exec'), scope)\n\
    scope['main'](boot)\n";

const MODULES: &[(&str, &str)] = &[
    ("wire", include_str!("python/wire.py")),
    ("pytest_shim", include_str!("python/pytest_shim.py")),
    ("solution", include_str!("python/solution.py")),
    ("checker", include_str!("python/checker.py")),
];

/// How long an interpreter may take until it is ready, with all its preloads.
const START: Duration = Duration::from_secs(60);
/// How long a zygote may be silent before a case begins, and beyond the time that it announced.
const SETUP: Duration = Duration::from_secs(15);
const GRACE: Duration = Duration::from_secs(2);
const DYING: Duration = Duration::from_secs(2);

/// Nothing of the user's or the installation's runs at the start: neither from the environment nor from files in site-packages. What
/// those load, each fork would copy.
const FLAGS: [&str; 5] = ["-I", "-S", "-B", "-X", "utf8"];

/// All that a run's environment has. A library that starts threads as it is imported could not be preloaded.
const ENVIRONMENT: &[(&str, &str)] = &[
    ("HOME", "/tmp"),
    ("LANG", "C.UTF-8"),
    ("MKL_NUM_THREADS", "1"),
    ("OMP_NUM_THREADS", "1"),
    ("OPENBLAS_NUM_THREADS", "1"),
    ("PATH", "/usr/local/bin:/usr/bin:/bin"),
];

/// Who a run is where the container is root's: nobody.
const NOBODY: u32 = 65534;

/// All that slots have in common.
pub(super) struct Setup {
    pub(super) config: SandboxConfig,
    interpreter: Interpreter,
    filters: BTreeMap<&'static str, Vec<String>>,
    privileged: bool,
}

/// What the zygote is told of at its start.
#[derive(Serialize)]
struct Boot<'a> {
    program: &'static str,
    /// By name, each after those that it imports.
    modules: &'static [(&'static str, &'static str)],
    filters: &'a BTreeMap<&'static str, Vec<String>>,
    limits: Limits,
    packages: &'a [PathBuf],
    preload: &'a [String],
    isolated: bool,
    uid: Option<u32>,
    gid: Option<u32>,
}

#[derive(Serialize)]
struct Limits {
    memory_bytes: u64,
    processes: u32,
    file_bytes: u64,
    open_files: u32,
    tmpfs_bytes: u64,
}

#[derive(Deserialize)]
struct Ready {
    ready: Found,
}

/// What a trial side found.
#[derive(Deserialize)]
#[serde(untagged)]
enum Found {
    Facts(Facts),
    Error { error: String },
}

/// In which namespaces a side is, as links such as `net:[4026531840]`, and as whom.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Facts {
    /// Of the container.
    pub(super) outer: BTreeMap<String, String>,
    /// Of the side.
    pub(super) inner: BTreeMap<String, String>,
    pub(super) uid: u32,
}

/// What the zygote says of a job.
#[derive(Deserialize)]
#[serde(untagged)]
enum Word {
    /// A case began that is over, or ended by the zygote, within so many seconds.
    Within { within: f64 },
    /// The job is over, and so many bytes of a report follow.
    End { end: End, message: String, report: usize },
}

/// How a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// The checker finished.
    Done,
    /// A case was not over in its time.
    Deadline,
    /// The checker died.
    Died,
    /// It was called off.
    Cancelled,
    /// The zygote could not do it, and ends itself.
    Fault,
}

/// How a job ended, and what it left.
pub(super) struct Answer {
    pub(super) end: End,
    pub(super) message: String,
    pub(super) report: Vec<u8>,
    /// How long the last case was given.
    pub(super) seconds: f64,
}

/// The zygote of a slot. Dropping it kills it with all that it started.
pub(super) struct Zygote {
    process: Process,
    control: UnixStream,
    cancel: Arc<UnixStream>,
    pub(super) facts: Facts,
    _root: Option<TempDir>,
}

enum Process {
    Contained(hakoniwa::Child),
    Plain(std::process::Child),
}

impl Setup {
    /// Finds the interpreter and compiles the filters.
    pub(super) fn new(config: SandboxConfig) -> Result<Self, SandboxError> {
        let interpreter = Interpreter::find(&config.python)?;
        let hex = |program: Vec<u8>| program.iter().map(|byte| format!("{byte:02x}")).collect();
        let programs = |execute| {
            Ok::<_, SandboxError>(filter::programs(execute)?.into_iter().map(hex).collect())
        };
        let filters = BTreeMap::from([("run", programs(false)?), ("execute", programs(true)?)]);
        let privileged = rustix::process::geteuid().is_root();
        Ok(Self { config, interpreter, filters, privileged })
    }

    fn isolated(&self) -> bool {
        self.config.isolation == Isolation::Full
    }

    fn boot(&self) -> Boot<'_> {
        let SandboxConfig { memory_bytes, processes, file_bytes, open_files, tmpfs_bytes, .. } =
            self.config;
        let nobody = (self.privileged && self.isolated()).then_some(NOBODY);
        Boot {
            program: include_str!("python/zygote.py"),
            modules: MODULES,
            filters: &self.filters,
            limits: Limits { memory_bytes, processes, file_bytes, open_files, tmpfs_bytes },
            packages: self.interpreter.packages(),
            preload: &self.config.preload,
            isolated: self.isolated(),
            uid: nobody,
            gid: nobody,
        }
    }
}

impl Zygote {
    /// Starts a zygote and waits until it is ready.
    ///
    /// The kernel ends it with the thread that calls this.
    pub(super) fn start(setup: &Setup) -> Result<Self, SandboxError> {
        let failed = |error: io::Error| SandboxError::Start { reason: error.to_string() };
        let (control, theirs) = UnixStream::pair().map_err(failed)?;
        let (cancel, called_off) = UnixStream::pair().map_err(failed)?;
        cancel.set_nonblocking(true).map_err(failed)?;
        let (process, root) = if setup.isolated() {
            let root = container::root().map_err(failed)?;
            (contained(setup, &root, theirs.into(), called_off.into())?, Some(root))
        } else {
            (plain(setup, theirs.into(), called_off.into()).map_err(failed)?, None)
        };
        let facts = Facts { outer: BTreeMap::new(), inner: BTreeMap::new(), uid: 0 };
        let mut zygote = Self { process, control, cancel: Arc::new(cancel), facts, _root: root };
        match zygote.greet(setup) {
            Ok(Found::Facts(facts)) => zygote.facts = facts,
            Ok(Found::Error { error }) => return Err(SandboxError::NoIsolation { missing: error }),
            Err(error) => return Err(zygote.post_mortem(&error)),
        }
        Ok(zygote)
    }

    fn greet(&mut self, setup: &Setup) -> io::Result<Found> {
        self.control.set_read_timeout(Some(START))?;
        self.control.set_write_timeout(Some(SETUP))?;
        self.control.write_all(&frame::encode(&setup.boot()))?;
        Ok(frame::read::<Ready>(&mut self.control)?.ready)
    }

    /// Why it did not start: what it, or the container, left on the error stream.
    fn post_mortem(&mut self, error: &io::Error) -> SandboxError {
        let (contained, said) = self.process.last_words();
        let reason =
            if said.trim().is_empty() { error.to_string() } else { said.trim().to_owned() };
        if contained {
            SandboxError::NoIsolation { missing: reason }
        } else {
            SandboxError::Start { reason }
        }
    }

    /// What to write the number of a job to in order to call it off.
    pub(super) fn cancel(&self) -> Arc<UnixStream> {
        Arc::clone(&self.cancel)
    }

    /// Runs a job.
    pub(super) fn run(&mut self, number: u32, frames: &[u8]) -> io::Result<Answer> {
        self.control.set_read_timeout(Some(SETUP))?;
        self.control.write_all(&frame::encode(&serde_json::json!({ "job": number })))?;
        self.control.write_all(frames)?;
        let mut seconds = 0.0;
        loop {
            match frame::read(&mut self.control)? {
                Word::Within { within } => {
                    seconds = within;
                    self.control.set_read_timeout(Some(Duration::from_secs_f64(within) + GRACE))?;
                }
                Word::End { end, message, report } => {
                    let report = frame::read_bytes(&mut self.control, report)?;
                    return Ok(Answer { end, message, report, seconds });
                }
            }
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        self.process.kill(&mut self.control);
    }
}

impl Process {
    /// Kills it with all that it started, and waits until they are gone.
    fn kill(&mut self, control: &mut UnixStream) {
        match self {
            Self::Contained(child) => {
                // What can fail here is to kill or wait for what is dead already.
                let _ = child.kill();
                let _ = child.wait();
                drain(control);
            }
            Self::Plain(child) => {
                let _ = control.shutdown(Shutdown::Both);
                wait_a_while(child);
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Kills it, and reads its error stream; and whether it was the container that failed.
    fn last_words(&mut self) -> (bool, String) {
        let mut said = String::new();
        match self {
            Self::Contained(child) => {
                let status = child.try_wait();
                let _ = child.kill();
                read(child.stderr.take(), &mut said);
                let status = status.and_then(|status| status.map_or_else(|| child.wait(), Ok));
                let ours = status
                    .ok()
                    .filter(|status| status.exit_code.is_none())
                    .map(|status| status.reason);
                let contained = said.contains("hakoniwa:") || said.is_empty() && ours.is_some();
                if said.is_empty() {
                    said = ours.unwrap_or_default();
                }
                (contained, said)
            }
            Self::Plain(child) => {
                let _ = child.kill();
                read(child.stderr.take(), &mut said);
                (false, said)
            }
        }
    }
}

/// Starts an interpreter in a container.
fn contained(
    setup: &Setup,
    root: &TempDir,
    control: OwnedFd,
    cancel: OwnedFd,
) -> Result<Process, SandboxError> {
    // One fork at a time: until it has closed them, a new process holds the descriptors of all slots.
    static FORK: Mutex<()> = Mutex::new(());
    let container =
        container::container(&setup.config, &setup.interpreter, root.path(), setup.privileged);
    let mut command = container.command(&setup.interpreter.executable.to_string_lossy());
    command.args(FLAGS).args(["-c", LOADER]).current_dir("/").envs(ENVIRONMENT.iter().copied());
    command.stdin(control).stdout(cancel).stderr(hakoniwa::Stdio::piped());
    let _one = FORK.lock().unwrap_or_else(PoisonError::into_inner);
    command
        .spawn()
        .map(Process::Contained)
        .map_err(|error| SandboxError::NoIsolation { missing: error.to_string() })
}

/// Starts an interpreter as it is.
fn plain(setup: &Setup, control: OwnedFd, cancel: OwnedFd) -> io::Result<Process> {
    let mut command = Command::new(&setup.interpreter.executable);
    command.args(FLAGS).args(["-c", LOADER]).env_clear().envs(ENVIRONMENT.iter().copied());
    command
        .stdin(control)
        .stdout(cancel)
        .stderr(Stdio::piped())
        .process_group(0)
        .current_dir("/tmp");
    command.spawn().map(Process::Plain)
}

fn read(from: Option<impl Read>, to: &mut String) {
    if let Some(mut from) = from {
        // What was read until it failed is what there is to say.
        let _ = from.read_to_string(to);
    }
}

/// Reads until nobody holds the other end any more.
fn drain(control: &mut UnixStream) {
    let _ = control.set_read_timeout(Some(DYING));
    let _ = io::copy(control, &mut io::sink());
}

/// Waits until a process has ended, not for ever.
fn wait_a_while(child: &std::process::Child) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
    let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
}
