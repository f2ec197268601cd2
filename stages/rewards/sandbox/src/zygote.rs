//! The zygote of a slot, as seen from this process. One thread starts it, communicates with it and kills it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::cgroup::Group;
use super::error::SandboxError;
use super::folder::{self, SlotFolder};
use super::frame;
use super::job::EncodedJob;
use super::process::{self, Process};
use super::setup::Setup;

/// The maximum time for an interpreter to get ready, including all preloads.
const START_TIMEOUT: Duration = Duration::from_secs(60);
/// The maximum time for which a zygote may be silent: before the first case begins, and beyond the time that it announced for a case. It is
/// generous because the zygote shares the processors with its own jobs and with everything else on the machine.
const MAX_SILENCE: Duration = Duration::from_secs(15);
/// The maximum size in bytes of a report from a zygote. The zygote truncates reports to a much smaller size.
const MAX_REPORT: usize = 64 << 20;

#[derive(Deserialize)]
struct Ready {
    ready: TrialResult,
}

/// The result of the trial process: a process that the zygote forks once, before it is ready, with the isolation of a run. The trial
/// process installs the limits and the system call filter, reports its namespaces and its user, and exits.
#[derive(Deserialize)]
#[serde(untagged)]
enum TrialResult {
    Facts(IsolationFacts),
    Error { error: String },
}

/// The isolation of the trial process: its namespaces, as links such as `net:[4026531840]`, and its user.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct IsolationFacts {
    /// The namespaces of the zygote, by the kernel's name.
    pub(super) outer: BTreeMap<String, String>,
    /// The namespaces of the trial process, by the kernel's name.
    pub(super) inner: BTreeMap<String, String>,
    pub(super) uid: u32,
    /// The description of the control groups. It is not reported by the zygote but added by this process.
    #[serde(skip)]
    pub(super) cgroups: String,
}

/// A message of the zygote about a job.
#[derive(Deserialize)]
#[serde(untagged)]
enum ChildMessage {
    /// A case began, or continues because it waited for a processor. It ends, or the zygote ends it, within this number of seconds: the
    /// rest of its time limit plus a grace period.
    Within { within: f64 },
    /// The job ended. A report of `report` bytes follows.
    End { end: End, message: String, report: usize },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// The checker finished its report.
    Done,
    /// A case exceeded its time limit.
    Deadline,
    /// The checker died before it finished.
    Died,
    Cancelled,
    /// The zygote failed and ends itself.
    Fault,
}

/// The end of a job and its report.
pub(super) struct Answer {
    pub(super) end: End,
    /// The reason of an [`End::Fault`]; empty for any other end.
    pub(super) message: String,
    /// The report of the checker, which the zygote may have truncated; empty if the job was cancelled.
    pub(super) report: Vec<u8>,
    /// The rest of the time limit of the case plus a grace period in seconds, as the zygote last announced it; 0 if no case began.
    pub(super) seconds: f64,
}

/// The reason why there is no answer: the zygote is dead, does not respond, or sent an invalid or oversized message.
pub(super) struct LostZygote {
    pub(super) error: io::Error,
    /// The rest of the time limit of the case plus a grace period in seconds, as the zygote last announced it; `None` if no case had begun.
    pub(super) seconds: Option<f64>,
}

impl LostZygote {
    /// Returns `seconds` if the zygote stopped responding. Returns `None` if no case had begun, and if there is no answer for another
    /// reason: the zygote died, or sent an invalid or oversized message.
    pub(super) fn unanswered_case_seconds(&self) -> Option<f64> {
        let is_silent =
            matches!(self.error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        self.seconds.filter(|_| is_silent)
    }
}

/// The zygote of a slot. Dropping this value kills it as [`Process::kill`] describes.
pub(super) struct Zygote {
    process: Process,
    control: UnixStream,
    cancel: Arc<UnixStream>,
    pub(super) facts: IsolationFacts,
    group: Group,
    _folder: SlotFolder,
    /// The folder that runs write to without isolation. `None` in a container, where each run has a private /tmp.
    work: Option<PathBuf>,
}

impl Zygote {
    /// Starts a zygote and waits until it is ready.
    ///
    /// In a container, the kernel kills the zygote when the calling thread ends.
    pub(super) fn start(setup: &Setup) -> Result<Self, SandboxError> {
        let failed = |error: io::Error| SandboxError::Start { reason: error.to_string() };
        let (control, theirs) = UnixStream::pair().map_err(failed)?;
        let (cancel, cancel_reader) = UnixStream::pair().map_err(failed)?;
        cancel.set_nonblocking(true).map_err(failed)?;
        let folder = SlotFolder::create().map_err(failed)?;
        let (process, work) = if setup.isolated() {
            // In the container, the folder is accessed by a user who does not own it.
            let root = folder.create_subfolder("root", 0o755).map_err(failed)?;
            (process::spawn_contained(setup, &root, theirs.into(), cancel_reader.into())?, None)
        } else {
            let work = folder.create_subfolder("work", 0o700).map_err(failed)?;
            let process = process::spawn_plain(setup, &work, theirs.into(), cancel_reader.into());
            (process.map_err(failed)?, Some(work))
        };
        // The zygote waits for its first frame until the group contains it, so that all processes it starts are in the group.
        let group = Group::containing(process.id());
        let facts = IsolationFacts::default();
        let mut zygote = Self {
            process,
            control,
            cancel: Arc::new(cancel),
            facts,
            group,
            _folder: folder,
            work,
        };
        match zygote.boot(setup) {
            Ok(TrialResult::Facts(facts)) => zygote.apply_limits(setup, facts),
            Ok(TrialResult::Error { error }) => {
                return Err(SandboxError::NoIsolation { missing: error });
            }
            Err(error) => return Err(zygote.start_error(&error)),
        }
        Ok(zygote)
    }

    fn boot(&mut self, setup: &Setup) -> io::Result<TrialResult> {
        self.control.set_read_timeout(Some(START_TIMEOUT))?;
        self.control.set_write_timeout(Some(MAX_SILENCE))?;
        self.control.write_all(&frame::encode(&setup.boot()))?;
        Ok(frame::read::<Ready>(&mut self.control)?.ready)
    }

    fn apply_limits(&mut self, setup: &Setup, facts: IsolationFacts) {
        self.group.limit(&setup.config);
        self.facts = IsolationFacts { cgroups: self.group.describe(), ..facts };
    }

    /// Returns the reason why the zygote did not start: the end of its error stream, or else the reason that the container reports, or else
    /// `error`.
    fn start_error(&mut self, error: &io::Error) -> SandboxError {
        let (contained, output) = self.process.error_output();
        let reason =
            if output.trim().is_empty() { error.to_string() } else { output.trim().to_owned() };
        if contained {
            SandboxError::NoIsolation { missing: reason }
        } else {
            SandboxError::Start { reason }
        }
    }

    /// Returns the socket to which the number of a job is written in order to cancel it.
    pub(super) fn cancel_socket(&self) -> Arc<UnixStream> {
        Arc::clone(&self.cancel)
    }

    /// Returns the number of processes that the kernel killed so far because the slot ran out of memory; 0 if no control group limits the
    /// memory of the slot.
    pub(super) fn oom_kills(&self) -> u64 {
        self.group.oom_kills()
    }

    /// Runs a job. `number` identifies it on the [socket](Self::cancel_socket) that cancels jobs.
    ///
    /// # Errors
    /// If the zygote dies, does not respond in time, or sends an invalid message. The zygote must then be replaced.
    pub(super) fn run(&mut self, number: u32, job: &EncodedJob) -> Result<Answer, LostZygote> {
        let mut seconds = None;
        let answer =
            self.exchange(number, job, &mut seconds).map_err(|error| LostZygote { error, seconds });
        if let Some(work) = &self.work {
            folder::clear(work);
        }
        answer
    }

    fn exchange(
        &mut self,
        number: u32,
        job: &EncodedJob,
        seconds: &mut Option<f64>,
    ) -> io::Result<Answer> {
        self.control.set_read_timeout(Some(MAX_SILENCE))?;
        let head = serde_json::json!({ "job": number, "together": job.together });
        self.control.write_all(&frame::encode(&head))?;
        self.control.write_all(&job.frame)?;
        loop {
            match frame::read(&mut self.control)? {
                ChildMessage::Within { within } => {
                    *seconds = Some(within);
                    let within = Duration::try_from_secs_f64(within).map_err(io::Error::other)?;
                    self.control.set_read_timeout(Some(within.saturating_add(MAX_SILENCE)))?;
                }
                ChildMessage::End { report, .. } if report > MAX_REPORT => {
                    return Err(io::Error::other(format!(
                        "a report of {report} bytes exceeds the limit of {MAX_REPORT}"
                    )));
                }
                ChildMessage::End { end, message, report } => {
                    let report = frame::read_bytes(&mut self.control, report)?;
                    return Ok(Answer { end, message, report, seconds: seconds.unwrap_or(0.0) });
                }
            }
        }
    }
}

impl Drop for Zygote {
    fn drop(&mut self) {
        self.process.kill(&mut self.control);
        self.group.kill();
    }
}
