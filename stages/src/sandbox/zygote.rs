//! The process behind a slot: started, spoken to and killed from one thread.

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

/// How long an interpreter may take until it is ready, with all its preloads.
const START: Duration = Duration::from_secs(60);
/// How long a zygote may be silent before a case begins, and beyond the time that it announced: it shares the processors with what it
/// watches over, and with all else on the machine.
const PATIENCE: Duration = Duration::from_secs(15);
/// The longest report that is taken from a zygote, which itself cuts them off well below.
const MOST_REPORT: usize = 64 << 20;

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
#[derive(Clone, Debug, Default, Deserialize)]
pub(super) struct Facts {
    /// Of the container.
    pub(super) outer: BTreeMap<String, String>,
    /// Of the side.
    pub(super) inner: BTreeMap<String, String>,
    pub(super) uid: u32,
    /// What its control groups limit; known out here alone.
    #[serde(skip)]
    pub(super) cgroups: String,
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

/// Why there is no answer: the zygote is dead, or silent.
pub(super) struct Lost {
    pub(super) error: io::Error,
    /// How long the case under way was given; `None` if none had begun.
    pub(super) seconds: Option<f64>,
}

impl Lost {
    /// How long the case had been given that was under way when the zygote fell silent; `None` if it died.
    pub(super) fn silent_in_case(&self) -> Option<f64> {
        let is_silent =
            matches!(self.error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut);
        self.seconds.filter(|_| is_silent)
    }
}

/// The zygote of a slot. Dropping it kills it with all that it started.
pub(super) struct Zygote {
    process: Process,
    control: UnixStream,
    cancel: Arc<UnixStream>,
    pub(super) facts: Facts,
    group: Group,
    _folder: Folder,
    /// What runs write to where they have no folders of their own.
    work: Option<PathBuf>,
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
        let folder = Folder::make().map_err(failed)?;
        let (process, work) = if setup.isolated() {
            // Inside, it is seen by a user who does not own it.
            let root = folder.within("root", 0o755).map_err(failed)?;
            (process::contained(setup, &root, theirs.into(), called_off.into())?, None)
        } else {
            let work = folder.within("work", 0o700).map_err(failed)?;
            let process = process::plain(setup, &work, theirs.into(), called_off.into());
            (process.map_err(failed)?, Some(work))
        };
        // It waits for its first frame meanwhile, so that nothing it starts is left out.
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

    /// How many processes of the slot the kernel has ended so far for the memory that all take together.
    pub(super) fn starved(&self) -> u64 {
        self.group.starved()
    }

    /// Runs a job.
    ///
    /// # Errors
    /// The zygote is of no use any more.
    pub(super) fn run(&mut self, number: u32, job: &Packed) -> Result<Answer, Lost> {
        let mut seconds = None;
        let answer =
            self.converse(number, job, &mut seconds).map_err(|error| Lost { error, seconds });
        if let Some(work) = &self.work {
            folder::clear(work);
        }
        answer
    }

    fn converse(
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
                Word::Within { within } => {
                    *seconds = Some(within);
                    self.control
                        .set_read_timeout(Some(Duration::from_secs_f64(within) + PATIENCE))?;
                }
                Word::End { report, .. } if report > MOST_REPORT => {
                    return Err(io::Error::other(format!("a report of {report} bytes")));
                }
                Word::End { end, message, report } => {
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
