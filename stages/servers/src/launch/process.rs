//! The process of a server, in a process group of its own.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use rustix::process::{Pid, Signal, kill_process_group};
use tokio::process::{Child, ChildStdin, Command};

/// The time in which a server may end after SIGTERM, before its process group is killed.
const GRACE: Duration = Duration::from_secs(10);

/// A shell script that runs its arguments as a program, which does not outlive this process.
///
/// Standard input is a pipe, which only this process holds open for writing. A guard in the process group of the server reads the pipe
/// until the end of file, which arrives even if this process is killed by SIGKILL, and then kills the group. `PR_SET_PDEATHSIG` would kill
/// only the server, not its children, and would do so already when the thread ends that started the server. The shell replaces itself with
/// the server, so that process id and exit status are the server's.
const GUARDED: &str = r#"exec 3<&0 </dev/null
(trap '' HUP INT TERM; read -r _ <&3; kill -KILL 0) >/dev/null 2>&1 &
exec "$@" 3<&-"#;

/// A running server. Its process group is killed on drop.
#[derive(Debug)]
pub(super) struct Process {
    child: Child,
    /// The process group; `None` once it was killed.
    group: Option<Pid>,
    /// The writing end of the pipe that the guard reads.
    _guarded: Option<ChildStdin>,
}

impl Process {
    /// Starts a server with additional environment variables. Its output goes to `log`.
    ///
    /// If the program cannot be executed, the process ends with status 126 or 127, and the log has the reason.
    pub(super) fn start(
        command: &[String],
        variables: &BTreeMap<String, String>,
        log: &File,
    ) -> io::Result<Self> {
        let mut child = Command::new("sh")
            .args(["-c", GUARDED, "sh"])
            .args(command)
            .envs(variables)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log.try_clone()?)
            .process_group(0)
            .spawn()?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let guarded = child.stdin.take();
        Ok(Self { child, group: id.and_then(Pid::from_raw), _guarded: guarded })
    }

    /// Waits until the server has ended, and then kills what is left of its process group. Cancel safe: the future may be dropped and the
    /// method called again.
    pub(super) async fn wait(&mut self) -> io::Result<ExitStatus> {
        let status = self.child.wait().await;
        self.kill();
        status
    }

    /// Ends the server with SIGTERM, and with SIGKILL if it still runs after `GRACE`.
    pub(super) async fn stop(&mut self) {
        self.signal(Signal::TERM);
        if tokio::time::timeout(GRACE, self.wait()).await.is_err() {
            self.kill();
            let _status = self.child.wait().await;
        }
    }

    /// Kills the process group. The guard is a member until then, so the id cannot belong to another group.
    fn kill(&mut self) {
        self.signal(Signal::KILL);
        self.group = None;
    }

    fn signal(&self, signal: Signal) {
        // The group is gone if something else killed all of it.
        let _gone = self.group.map(|group| kill_process_group(group, signal));
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}
