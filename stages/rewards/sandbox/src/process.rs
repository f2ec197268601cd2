//! The process of a zygote: starting and killing it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use super::error::SandboxError;
use super::setup::{ARGUMENTS, ENVIRONMENT, Setup};

/// The maximum time to wait until the processes of a container have ended after they were killed.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// The maximum number of bytes that are read from the end of an error stream.
const MAX_OUTPUT: u64 = 64 << 10;

/// The environment variable that limits the allocator to one arena for all threads. By default, each thread reserves 64 MiB of address
/// space, which counts toward the memory limit, so that eight threads could exhaust it.
const ALLOCATOR: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// The outermost process of a slot.
pub(super) struct Process {
    child: Child,
    /// The error stream of the process. This is a file, because a pipe that nobody reads would block the process when it is full.
    errors: File,
}

enum Child {
    Contained(Box<hakoniwa::Child>),
    Plain(std::process::Child),
}

impl Process {
    /// Returns the id of the process, in the pid namespace of the caller.
    pub(super) fn id(&self) -> u32 {
        match &self.child {
            Child::Contained(child) => child.id(),
            Child::Plain(child) => child.id(),
        }
    }

    /// Kills the process and waits until it has ended. In a container, its descendants are killed too, and the wait for them takes at most
    /// two seconds. Without a container, `control` is shut down, and the process gets up to two seconds to exit by itself before it is
    /// killed.
    pub(super) fn kill(&mut self, control: &mut UnixStream) {
        match &mut self.child {
            Child::Contained(child) => {
                // Errors mean that the process has ended already.
                let _ = child.kill();
                let _ = child.wait();
                drain(control);
            }
            Child::Plain(child) => {
                let _ = control.shutdown(Shutdown::Both);
                wait_for_exit(child);
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Kills the process and returns the reason of its failure: the end of its error stream or, if that is empty, the reason that the
    /// container reports. The flag is `true` if the container failed, rather than the process in it.
    pub(super) fn error_output(&mut self) -> (bool, String) {
        match &mut self.child {
            Child::Contained(child) => {
                let status = child.try_wait();
                let _ = child.kill();
                let status = status.and_then(|status| status.map_or_else(|| child.wait(), Ok));
                let own_error = status
                    .ok()
                    .filter(|status| status.exit_code.is_none())
                    .map(|status| status.reason);
                let output = read_error_output(&mut self.errors);
                let contained =
                    output.contains("hakoniwa:") || output.is_empty() && own_error.is_some();
                let output = if output.is_empty() { own_error.unwrap_or_default() } else { output };
                (contained, output)
            }
            Child::Plain(child) => {
                let _ = child.kill();
                let _ = child.wait();
                (false, read_error_output(&mut self.errors))
            }
        }
    }
}

/// Starts an interpreter in a container. `control` becomes its standard input, and `cancel` its standard output.
pub(super) fn spawn_contained(
    setup: &Setup,
    root: &Path,
    control: OwnedFd,
    cancel: OwnedFd,
) -> Result<Process, SandboxError> {
    // Processes are started one at a time, because a new process holds the descriptors of all slots until it closes them.
    static FORK: Mutex<()> = Mutex::new(());
    let mut command = setup.container(root).command(&setup.executable().to_string_lossy());
    command.args(ARGUMENTS).current_dir("/").envs(environment());
    let failed = |error: io::Error| SandboxError::Start { reason: error.to_string() };
    let errors = tempfile::tempfile().map_err(failed)?;
    command.stdin(control).stdout(cancel).stderr(errors.try_clone().map_err(failed)?);
    let _one = FORK.lock().unwrap_or_else(PoisonError::into_inner);
    command
        .spawn()
        .map(|child| Process { child: Child::Contained(Box::new(child)), errors })
        .map_err(|error| SandboxError::NoIsolation { missing: error.to_string() })
}

/// Starts an interpreter without a container. `work` is its working folder, home and folder for temporary files.
pub(super) fn spawn_plain(
    setup: &Setup,
    work: &Path,
    control: OwnedFd,
    cancel: OwnedFd,
) -> io::Result<Process> {
    let mut command = Command::new(setup.executable());
    command.args(ARGUMENTS).env_clear().envs(environment());
    command.env("HOME", work).env("TMPDIR", work);
    let errors = tempfile::tempfile()?;
    command
        .stdin(control)
        .stdout(cancel)
        .stderr(errors.try_clone()?)
        .process_group(0)
        .current_dir(work);
    command.spawn().map(|child| Process { child: Child::Plain(child), errors })
}

fn environment() -> impl Iterator<Item = (&'static str, &'static str)> {
    ENVIRONMENT.iter().copied().chain([ALLOCATOR])
}

/// Returns the end of an error stream, which usually contains the reason of a failure; empty if it cannot be read.
fn read_error_output(errors: &mut File) -> String {
    let mut output = Vec::new();
    let size = errors.metadata().map_or(0, |file| file.len());
    let _ = errors
        .seek(SeekFrom::Start(size.saturating_sub(MAX_OUTPUT)))
        .and_then(|_| errors.take(MAX_OUTPUT).read_to_end(&mut output));
    String::from_utf8_lossy(&output).into_owned()
}

/// Reads until all processes have closed the other end of the socket, or until it has been silent for two seconds. The processes of a
/// container hold the socket open, so this waits for their end.
fn drain(control: &mut UnixStream) {
    let _ = control.set_read_timeout(Some(KILL_TIMEOUT));
    let _ = io::copy(control, &mut io::sink());
}

/// Waits up to two seconds until a process has ended. Does not wait if the kernel does not support pidfds.
fn wait_for_exit(child: &std::process::Child) {
    use rustix::event::{PollFd, PollFlags, Timespec, poll};
    use rustix::process::{Pid, PidfdFlags, pidfd_open};
    let Ok(process) = pidfd_open(Pid::from_child(child), PidfdFlags::empty()) else { return };
    let patience = Timespec { tv_sec: 2, tv_nsec: 0 };
    let _ = poll(&mut [PollFd::new(&process, PollFlags::IN)], Some(&patience));
}
