//! A zygote as the host's kernel has it: how it is started and how it is killed.

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

/// How long the processes of a container may take to be gone once they are killed.
const DYING: Duration = Duration::from_secs(2);

/// What is kept of an error stream, in bytes.
const WORDS: u64 = 64 << 10;

/// One arena of the allocator for all threads. By default each thread reserves 64 MiB of addresses, which count against the limit on
/// memory, so that eight threads would find none left.
const ALLOCATOR: (&str, &str) = ("MALLOC_ARENA_MAX", "1");

/// The outermost process of a slot.
pub(super) struct Process {
    child: Child,
    /// Its error stream. A file: into a pipe that nobody reads it could say no more than that holds.
    errors: File,
}

enum Child {
    /// In a container.
    Contained(Box<hakoniwa::Child>),
    /// As any other.
    Plain(std::process::Child),
}

impl Process {
    /// Its number.
    pub(super) fn id(&self) -> u32 {
        match &self.child {
            Child::Contained(child) => child.id(),
            Child::Plain(child) => child.id(),
        }
    }

    /// Kills it with all that it started, and waits until they are gone.
    pub(super) fn kill(&mut self, control: &mut UnixStream) {
        match &mut self.child {
            Child::Contained(child) => {
                // What can fail here is to kill or wait for what is dead already.
                let _ = child.kill();
                let _ = child.wait();
                drain(control);
            }
            Child::Plain(child) => {
                let _ = control.shutdown(Shutdown::Both);
                wait_a_while(child);
                let _ = child.kill();
                let _ = child.wait();
            }
        }
    }

    /// Kills it, and reads its error stream; and whether it was the container that failed.
    pub(super) fn last_words(&mut self) -> (bool, String) {
        match &mut self.child {
            Child::Contained(child) => {
                let status = child.try_wait();
                let _ = child.kill();
                let status = status.and_then(|status| status.map_or_else(|| child.wait(), Ok));
                let ours = status
                    .ok()
                    .filter(|status| status.exit_code.is_none())
                    .map(|status| status.reason);
                let said = words(&mut self.errors);
                let contained = said.contains("hakoniwa:") || said.is_empty() && ours.is_some();
                let said = if said.is_empty() { ours.unwrap_or_default() } else { said };
                (contained, said)
            }
            Child::Plain(child) => {
                let _ = child.kill();
                let _ = child.wait();
                (false, words(&mut self.errors))
            }
        }
    }
}

/// Starts an interpreter in a container.
pub(super) fn contained(
    setup: &Setup,
    root: &Path,
    control: OwnedFd,
    cancel: OwnedFd,
) -> Result<Process, SandboxError> {
    // One fork at a time: until it has closed them, a new process holds the descriptors of all slots.
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

/// Starts an interpreter as it is, with `work` as the folder that it writes to.
pub(super) fn plain(
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

/// The end of an error stream, where what went wrong stands; what cannot be read says nothing.
fn words(errors: &mut File) -> String {
    let mut said = Vec::new();
    let size = errors.metadata().map_or(0, |file| file.len());
    let _ = errors
        .seek(SeekFrom::Start(size.saturating_sub(WORDS)))
        .and_then(|_| errors.take(WORDS).read_to_end(&mut said));
    String::from_utf8_lossy(&said).into_owned()
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
