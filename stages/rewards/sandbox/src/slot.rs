//! A slot: a thread that starts a zygote, passes it one job at a time, and restarts it after a failure.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

use super::error::SandboxError;
use super::job::Packed;
use super::setup::Setup;
use super::verdict::{self, Case, Outcome, Verdict};
use super::zygote::{Answer, End, Facts, Lost, Zygote};

/// A job in the queue.
pub(super) struct Task {
    pub(super) job: Packed,
    pub(super) call: Arc<Call>,
    pub(super) reply: oneshot::Sender<Result<Verdict, SandboxError>>,
}

/// The stage of a job, shared between the caller and the slot.
///
/// The mutex decides the race between starting and cancelling a job. A job that is cancelled before [`begin`](Self::begin) never starts. A
/// job that is cancelled after it is killed by its number. A number that arrives when the job is over does no harm: the zygote ignores the
/// numbers of other jobs.
#[derive(Default)]
pub(super) struct Call(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Queued,
    Running(u32, Arc<UnixStream>),
    Over,
}

impl Call {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the job as running. Returns `false` if it was cancelled.
    fn begin(&self, number: u32, zygote: &Zygote) -> bool {
        let mut stage = self.stage();
        let wanted = !matches!(*stage, Stage::Over);
        if wanted {
            *stage = Stage::Running(number, zygote.cancel());
        }
        wanted
    }

    fn end(&self) {
        *self.stage() = Stage::Over;
    }

    /// Returns `true` if the job was cancelled or is done.
    fn is_over(&self) -> bool {
        matches!(*self.stage(), Stage::Over)
    }

    /// Cancels the job. Its processes are killed immediately; if it has not started, it never starts.
    pub(super) fn cancel(&self) {
        let mut stage = self.stage();
        if let Stage::Running(number, zygote) = &*stage {
            // Write errors are ignored: a zygote that does not read is dead, or is about to be killed because it does not respond.
            let _ = (&**zygote).write_all(&number.to_le_bytes());
        }
        *stage = Stage::Over;
    }
}

/// The state of a slot's thread.
pub(super) struct Slot {
    setup: Arc<Setup>,
    zygote: Option<Zygote>,
    jobs: u32,
}

impl Slot {
    /// Starts a zygote, reports the result, and runs jobs until the sandbox is dropped.
    pub(super) fn serve(
        setup: Arc<Setup>,
        started: Sender<Result<Facts, SandboxError>>,
        tasks: &Mutex<Receiver<Task>>,
    ) {
        let mut slot = Self { setup, zygote: None, jobs: 0 };
        let facts = slot.zygote().map(|zygote| zygote.facts.clone());
        let failed = facts.is_err();
        if started.send(facts).is_err() || failed {
            return;
        }
        drop(started);
        while let Some(task) = next(tasks) {
            let Task { job, call, reply } = task;
            let answer = slot.run(&job, &call);
            call.end();
            // The receiver of a cancelled job is gone.
            let _ = reply.send(answer);
        }
    }

    /// Returns the zygote, after starting it if necessary.
    fn zygote(&mut self) -> Result<&mut Zygote, SandboxError> {
        let zygote = match self.zygote.take() {
            Some(zygote) => zygote,
            None => Zygote::start(&self.setup)?,
        };
        Ok(self.zygote.insert(zygote))
    }

    /// Runs a job. It is run a second time if the machine may have caused the end of the first attempt: the zygote was lost or did not
    /// respond, or the checker died. If the second attempt fails too, a checker that died or a slot that did not respond counts as a
    /// failure of the solution, and anything else is an error.
    fn run(&mut self, job: &Packed, call: &Call) -> Result<Verdict, SandboxError> {
        let first = match self.attempt(job, call) {
            Ending::Over(answer) => return answer,
            first if call.is_over() => return first.into_result(),
            first => first,
        };
        tracing::warn!("sandbox: {}; running the job a second time", first.reason());
        let second = self.attempt(job, call);
        if !matches!(second, Ending::Over(_)) {
            tracing::warn!("sandbox: {} again in the second attempt", second.reason());
        }
        second.into_result()
    }

    fn attempt(&mut self, job: &Packed, call: &Call) -> Ending {
        self.jobs = self.jobs.wrapping_add(1);
        let number = self.jobs;
        let zygote = match self.zygote() {
            Ok(zygote) => zygote,
            Err(error) => return Ending::Fault(format!("the slot cannot be restarted: {error}")),
        };
        if !call.begin(number, zygote) {
            return Ending::Over(Err(called_off()));
        }
        let before = zygote.starved();
        let answer = zygote.run(number, job);
        let starved = zygote.starved() > before;
        if !matches!(&answer, Ok(answer) if answer.end != End::Fault) {
            self.zygote = None;
        }
        let ending = match answer {
            Ok(answer) => read(answer),
            Err(lost) => lost_ending(&lost),
        };
        if starved { ending.starved() } else { ending }
    }
}

/// The end of an attempt.
enum Ending {
    /// A final result, which another attempt would reproduce.
    Over(Result<Verdict, SandboxError>),
    /// The checker died, or the slot did not respond. If it happens twice, the solution caused it.
    Broken(Verdict),
    /// A failure that the solution did not cause.
    Fault(String),
}

impl Ending {
    /// Returns the result of an attempt in which the kernel killed a process because the slot ran out of memory. The solution caused that.
    fn starved(self) -> Self {
        let nothing = |reason| Verdict {
            cases: vec![Case { outcome: Outcome::Failed, seconds: 0.0, message: reason }],
            ..Verdict::default()
        };
        match self {
            Self::Over(Ok(verdict)) | Self::Broken(verdict) => {
                Self::Over(Ok(verdict::starved(verdict)))
            }
            Self::Over(Err(SandboxError::Fault { reason })) | Self::Fault(reason) => {
                Self::Over(Ok(verdict::starved(nothing(reason))))
            }
            other @ Self::Over(Err(_)) => other,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Over(_) => "",
            Self::Broken(verdict) => verdict.cases.last().map_or("", |case| &case.message),
            Self::Fault(reason) => reason,
        }
    }

    /// Returns the result of a job that is not attempted again.
    fn into_result(self) -> Result<Verdict, SandboxError> {
        match self {
            Self::Over(answer) => answer,
            Self::Broken(verdict) => Ok(verdict),
            Self::Fault(reason) => Err(SandboxError::Fault { reason }),
        }
    }
}

/// Returns the next job, or `None` when the sandbox is dropped.
fn next(tasks: &Mutex<Receiver<Task>>) -> Option<Task> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// Converts an answer of the zygote to the end of an attempt.
fn read(answer: Answer) -> Ending {
    let Answer { end, message, report, seconds } = answer;
    let last = |outcome, message: &str| Case { outcome, seconds, message: message.into() };
    match end {
        End::Done => match verdict::complete(&report) {
            Err(SandboxError::Fault { reason }) => Ending::Fault(reason),
            other => Ending::Over(other),
        },
        End::Deadline => {
            let late = last(Outcome::Timeout, "exceeded its time limit");
            Ending::Over(Ok(verdict::partial(&report, late)))
        }
        End::Died => {
            let what =
                if message.is_empty() { "the process that runs the tests died" } else { &message };
            let dead = last(Outcome::RuntimeError, what);
            Ending::Broken(verdict::partial(&report, dead))
        }
        End::Cancelled => Ending::Over(Err(called_off())),
        End::Fault => Ending::Fault(message),
    }
}

/// Converts the loss of a zygote to the end of an attempt.
fn lost_ending(lost: &Lost) -> Ending {
    match lost.unanswered_case_seconds() {
        Some(seconds) => {
            let message = "the slot did not respond after the time limit of the case".into();
            let silent = Case { outcome: Outcome::Timeout, seconds, message };
            Ending::Broken(verdict::partial(&[], silent))
        }
        None => Ending::Fault(format!("the slot was lost: {}", lost.error)),
    }
}

fn called_off() -> SandboxError {
    SandboxError::Fault { reason: "the job was cancelled".into() }
}
