//! A process that answers one line with one line.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::io;
use std::process::Stdio;
use std::time::Duration;

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};
use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStderr, ChildStdin, ChildStdout, Command};

use rollpacker_stages::reward::RewardError;
use rollpacker_stages::secret::{quote, redact};

/// A process of a pool. Dropping this value kills the process together with its group.
pub(super) struct Worker {
    child: Child,
    /// The process group. Its id equals the id of the process.
    group: Option<Pid>,
    stdin: ChildStdin,
    /// The requests, or the rest of one, that the process has not read yet.
    unsent: VecDeque<u8>,
    stdout: BufReader<ChildStdout>,
    stderr: ChildStderr,
    output: Tail,
}

/// The last [`MAX_TAIL`] bytes of a stream.
#[derive(Default)]
struct Tail(VecDeque<u8>);

/// The maximum length of an answer in bytes.
const MAX_LINE: u64 = 1 << 20;
/// The maximum number of characters of the process's output that an error quotes.
const MAX_QUOTE: usize = 2000;
/// The number of bytes of standard error that are kept. It is larger than a quote, so that no secret is cut within the quoted part and
/// thereby missed by the redaction.
const MAX_TAIL: usize = 4 * MAX_QUOTE + 4096;
/// The maximum time to wait for the rest of standard error after a process closed its output, before it is killed.
const GRACE: Duration = Duration::from_secs(1);

impl Worker {
    /// Starts a process in a process group of its own. Any failure is a fatal error.
    pub(super) fn start(command: &[String]) -> Result<Self, RewardError> {
        let (program, arguments) =
            command.split_first().expect("invariant: a pool has a program to start");
        let failed = |error: io::Error| {
            RewardError::fatal(format_args!("cannot start `{program}`: {error}"))
        };
        let mut child = Command::new(program)
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .kill_on_drop(true)
            .spawn()
            .map_err(failed)?;
        let id = child.id().and_then(|id| i32::try_from(id).ok());
        let group = id.and_then(Pid::from_raw);
        let (stdin, stdout, stderr) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let piped = "invariant: piped just above";
        Ok(Self {
            child,
            group,
            stdin: stdin.expect(piped),
            unsent: VecDeque::new(),
            stdout: BufReader::new(stdout.expect(piped)),
            stderr: stderr.expect(piped),
            output: Tail::default(),
        })
    }

    /// Returns `true` if the process has ended. The process is not reaped here, so that its id and group cannot be reused before [`Drop`]
    /// kills the group.
    pub(super) fn has_ended(&self) -> bool {
        let looked = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        self.group.is_none_or(|id| !matches!(waitid(WaitId::Pid(id), looked), Ok(None)))
    }

    /// Sends `line`, the request `id`, and returns the answer. After an error, or if the future is dropped early, the process must not be
    /// used again.
    pub(super) async fn request(&mut self, id: u64, line: &str) -> Result<Value, RewardError> {
        let answer = match self.exchange(line).await {
            Ok(answer) if answer.ends_with(b"\n") => answer,
            Ok(answer) if answer.len() as u64 == MAX_LINE => {
                return Err(self.answer_error(format_args!("a line of over {MAX_LINE} bytes")));
            }
            ended => return Err(self.end_error(ended.err()).await),
        };
        let found: Option<Value> = serde_json::from_slice(&answer).ok();
        let found = found.filter(|found| found["id"] == id);
        found.ok_or_else(|| {
            let text = String::from_utf8_lossy(&answer);
            let text = quote(&text, MAX_QUOTE);
            self.answer_error(format_args!(
                "`{text}`, which is not a line of JSON with the id {id}"
            ))
        })
    }

    /// Writes a line and reads one, while collecting standard error. A process may answer before it has read the whole line; the rest then
    /// precedes the next line.
    async fn exchange(&mut self, line: &str) -> io::Result<Vec<u8>> {
        let Self { stdin, unsent, stdout, stderr, output, .. } = self;
        unsent.extend(line.as_bytes());
        let write = async {
            // Write errors are ignored: a process that does not read either reports the reason or exits, which makes a better message.
            if stdin.write_all_buf(unsent).await.is_err() {
                unsent.clear();
            }
            drop(stdin.flush().await);
            std::future::pending::<Infallible>().await
        };
        let mut answer = Vec::new();
        let mut stdout = stdout.take(MAX_LINE);
        let listen = async {
            output.collect(stderr).await;
            std::future::pending::<Infallible>().await
        };
        tokio::select! {
            biased;
            never = write => match never {},
            read = stdout.read_until(b'\n', &mut answer) => read.map(|_| answer),
            never = listen => match never {},
        }
    }

    /// Kills a process that ended or closed its output before it answered. Returns the error, with the status and the last output.
    async fn end_error(&mut self, error: Option<io::Error>) -> RewardError {
        // Standard error ends with the process, unless a child of it holds it open.
        let _ = tokio::time::timeout(GRACE, self.output.collect(&mut self.stderr)).await;
        self.kill();
        let status =
            self.child.wait().await.as_ref().map_or_else(ToString::to_string, ToString::to_string);
        let error = error.map(|error| format!(" ({error})")).unwrap_or_default();
        self.error_with_output(format_args!(
            "the process ended before it answered{error}: {status}"
        ))
    }

    /// Kills the process with its group, and waits for its end.
    pub(super) async fn end(mut self) {
        self.kill();
        // An error means that the process is reaped already.
        let _ = self.child.wait().await;
    }

    fn answer_error(&self, found: std::fmt::Arguments<'_>) -> RewardError {
        self.error_with_output(format_args!("the process answered {found}"))
    }

    fn error_with_output(&self, reason: std::fmt::Arguments<'_>) -> RewardError {
        let output = self.output.text();
        let output = if output.is_empty() { output } else { format!("; its output: {output}") };
        RewardError::retryable(format_args!("{reason}{output}"))
    }

    fn kill(&self) {
        // Fails if the group is already empty, which is fine.
        let _ = self.group.map(|group| kill_process_group(group, Signal::KILL));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // After the process is reaped, its group id may belong to another process.
        if self.child.id().is_some() {
            self.kill();
        }
    }
}

impl Tail {
    /// Collects the output of a stream until it ends.
    async fn collect(&mut self, stream: &mut ChildStderr) {
        let mut buffer = [0; 4096];
        while let Ok(read @ 1..) = stream.read(&mut buffer).await {
            self.0.extend(&buffer[..read]);
            let surplus = self.0.len().saturating_sub(MAX_TAIL);
            self.0.drain(..surplus);
        }
    }

    fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        let text = String::from_utf8_lossy(&bytes);
        let text = redact(text.trim());
        let surplus = text.chars().count().saturating_sub(MAX_QUOTE);
        text.chars().skip(surplus).collect()
    }
}
