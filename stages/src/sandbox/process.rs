//! A zygote as the host's kernel has it: how it is started and how it is killed.

use std::io::{self, Read};
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tempfile::TempDir;

use super::error::SandboxError;
use super::setup::{ARGUMENTS, ENVIRONMENT, Setup};

/// How long the processes of a container may take to be gone once they are killed.
const DYING: Duration = Duration::from_secs(2);

/// The outermost process of a slot.
pub(super) enum Process {
    /// In a container.
    Contained(Box<hakoniwa::Child>),
    /// As any other.
    Plain(std::process::Child),
}

impl Process {
    /// Its number.
    pub(super) fn id(&self) -> u32 {
        match self {
            Self::Contained(child) => child.id(),
            Self::Plain(child) => child.id(),
        }
    }

    /// Kills it with all that it started, and waits until they are gone.
    pub(super) fn kill(&mut self, control: &mut UnixStream) {
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
    pub(super) fn last_words(&mut self) -> (bool, String) {
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
pub(super) fn contained(
    setup: &Setup,
    root: &TempDir,
    control: OwnedFd,
    cancel: OwnedFd,
) -> Result<Process, SandboxError> {
    // One fork at a time: until it has closed them, a new process holds the descriptors of all slots.
    static FORK: Mutex<()> = Mutex::new(());
    let mut command = setup.container(root.path()).command(&setup.executable().to_string_lossy());
    command.args(ARGUMENTS).current_dir("/").envs(ENVIRONMENT.iter().copied());
    command.stdin(control).stdout(cancel).stderr(hakoniwa::Stdio::piped());
    let _one = FORK.lock().unwrap_or_else(PoisonError::into_inner);
    command
        .spawn()
        .map(|child| Process::Contained(Box::new(child)))
        .map_err(|error| SandboxError::NoIsolation { missing: error.to_string() })
}

/// Starts an interpreter as it is.
pub(super) fn plain(setup: &Setup, control: OwnedFd, cancel: OwnedFd) -> io::Result<Process> {
    let mut command = Command::new(setup.executable());
    command.args(ARGUMENTS).env_clear().envs(ENVIRONMENT.iter().copied());
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
