//! The zygote of a slot, as seen from the host. One thread starts it, communicates with it and kills it.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use serde::Deserialize;

use super::cgroup::Group;
use super::error::SandboxError;
use super::folder::{self, Folder};
use super::frame;
use super::job::Packed;
use super::process::{self, Process};
use super::setup::Setup;

/// The time that an interpreter may take to get ready, including all preloads.
const START: Duration = Duration::from_secs(60);
/// The time that a zygote may be silent before a case begins, and in addition to the time that it announced. It is generous because the
/// zygote shares the processors with its own jobs and with everything else on the machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// The maximum size in bytes of a report from a zygote. The zygote truncates reports to a much smaller size.
const MOST_REPORT: usize = 64 << 20;

#[derive(Deserialize)]
struct Ready {
    ready: Found,
}

/// The result of the trial side.
#[derive(Deserialize)]
#[serde(untagged)]
enum Found {
    Facts(Facts),
    Error { error: String },
}

/// The namespaces of a side, as links such as `net:[4026531840]`, and its user.
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Facts {
    /// The namespaces of the container.
    pub(super) outer: BTreeMap<String, String>,
    /// The namespaces of the side.
    pub(super) inner: BTreeMap<String, String>,
    pub(super) uid: u32,
    /// The description of the control groups, which the host adds.
    #[serde(skip)]
    pub(super) cgroups: String,
}

/// A message of the zygote about a job.
#[derive(Deserialize)]
#[serde(untagged)]
enum ChildMessage {
    /// A case began. It ends, or the zygote ends it, within this number of seconds.
    Within { within: f64 },
    /// The job ended. A report of `report` bytes follows.
    End { end: End, message: String, report: usize },
}

/// The way in which a job ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum End {
    /// The checker finished.
    Done,
    /// A case exceeded its time limit.
    Deadline,
    /// The checker died.
    Died,
    /// The job was cancelled.
    Cancelled,
    /// The zygote failed and ends itself.
    Fault,
}

/// The end of a job and its report.
pub(super) struct Answer {
    pub(super) end: End,
    pub(super) message: String,
    pub(super) report: Vec<u8>,
    /// The time limit of the last case in seconds.
    pub(super) seconds: f64,
}

/// The reason why there is no answer: the zygote is dead or does not respond.
pub(super) struct Lost {
    pub(super) error: io::Error,
    /// The time limit of the running case in seconds; `None` if no case had begun.
    pub(super) seconds: Option<f64>,
}

impl Lost {
    /// Returns the time limit of the case that was running when the zygote stopped responding; `None` if it died.
    pub(super) fn unanswered_case_seconds(&self) -> Option<f64> {
        let is_silent =
            matches!(self.error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        self.seconds.filter(|_| is_silent)
    }
}

/// The zygote of a slot. Dropping it kills it together with its descendants.
pub(super) struct Zygote {
    process: Process,
    control: UnixStream,
    cancel: Arc<UnixStream>,
    pub(super) facts: Facts,
    group: Group,
    _folder: Folder,
    /// The folder that runs write to, if they have no folders of their own.
    work: Option<PathBuf>,
}

impl Zygote {
    /// Starts a zygote and waits until it is ready.
    ///
    /// The kernel kills it when the calling thread ends.
    pub(super) fn start(setup: &Setup) -> Result<Self, SandboxError> {
        let failed = |error: io::Error| SandboxError::Start { reason: error.to_string() };
        let (control, theirs) = UnixStream::pair().map_err(failed)?;
        let (cancel, called_off) = UnixStream::pair().map_err(failed)?;
        cancel.set_nonblocking(true).map_err(failed)?;
        let folder = Folder::make().map_err(failed)?;
        let (process, work) = if setup.isolated() {
            // In the container, the folder is accessed by a user who does not own it.
            let root = folder.within("root", 0o755).map_err(failed)?;
            (process::contained(setup, &root, theirs.into(), called_off.into())?, None)
        } else {
            let work = folder.within("work", 0o700).map_err(failed)?;
            let process = process::plain(setup, &work, theirs.into(), called_off.into());
            (process.map_err(failed)?, Some(work))
        };
        // The zygote waits for its first frame until the group contains it, so that all processes it starts are in the group.
        let group = Group::around(process.id());
        let facts = Facts::default();
        let mut zygote = Self {
            process,
            control,
            cancel: Arc::new(cancel),
            facts,
            group,
            _folder: folder,
            work,
        };
        match zygote.greet(setup) {
            Ok(Found::Facts(facts)) => zygote.settle(setup, facts),
            Ok(Found::Error { error }) => return Err(SandboxError::NoIsolation { missing: error }),
            Err(error) => return Err(zygote.post_mortem(&error)),
        }
        Ok(zygote)
    }

    fn greet(&mut self, setup: &Setup) -> io::Result<Found> {
        self.control.set_read_timeout(Some(START))?;
        self.control.set_write_timeout(Some(PATIENCE))?;
        self.control.write_all(&frame::encode(&setup.boot()))?;
        Ok(frame::read::<Ready>(&mut self.control)?.ready)
    }

    fn settle(&mut self, setup: &Setup, facts: Facts) {
        self.group.limit(&setup.config);
        self.facts = Facts { cgroups: self.group.describe(), ..facts };
    }

    /// Returns the reason why the zygote did not start, from its error stream or that of the container.
    fn post_mortem(&mut self, error: &io::Error) -> SandboxError {
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
    pub(super) fn cancel(&self) -> Arc<UnixStream> {
        Arc::clone(&self.cancel)
    }

    /// Returns the number of processes that the kernel killed so far because the slot ran out of memory.
    pub(super) fn starved(&self) -> u64 {
        self.group.starved()
    }

    /// Runs a job.
    ///
    /// # Errors
    /// If the zygote is lost and must be replaced.
    pub(super) fn run(&mut self, number: u32, job: &Packed) -> Result<Answer, Lost> {
        let mut seconds = None;
        let answer =
            self.exchange(number, job, &mut seconds).map_err(|error| Lost { error, seconds });
        if let Some(work) = &self.work {
            folder::clear(work);
        }
        answer
    }

    fn exchange(
        &mut self,
        number: u32,
        job: &Packed,
        seconds: &mut Option<f64>,
    ) -> io::Result<Answer> {
        self.control.set_read_timeout(Some(PATIENCE))?;
        let head = serde_json::json!({ "job": number, "together": job.together });
        self.control.write_all(&frame::encode(&head))?;
        self.control.write_all(&job.frame)?;
        loop {
            match frame::read(&mut self.control)? {
                ChildMessage::Within { within } => {
                    *seconds = Some(within);
                    self.control
                        .set_read_timeout(Some(Duration::from_secs_f64(within) + PATIENCE))?;
                }
                ChildMessage::End { report, .. } if report > MOST_REPORT => {
                    return Err(io::Error::other(format!(
                        "a report of {report} bytes exceeds the limit of {MOST_REPORT}"
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
