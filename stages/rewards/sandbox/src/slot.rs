//! A slot: a thread that starts a zygote, passes it one job at a time, and restarts it after a failure.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

use super::error::SandboxError;
use super::job::EncodedJob;
use super::setup::Setup;
use super::verdict::{self, Case, Outcome, Verdict};
use super::zygote::{Answer, End, IsolationFacts, LostZygote, Zygote};

pub(super) struct QueuedJob {
    pub(super) job: EncodedJob,
    pub(super) state: Arc<JobState>,
    pub(super) reply: oneshot::Sender<Result<Verdict, SandboxError>>,
}

/// The stage of a job, shared between the caller and the slot.
///
/// The mutex decides the race between starting and cancelling a job. A job that is cancelled before [`begin`](Self::begin) never starts. A
/// running job is cancelled by writing its number to the zygote, which kills the processes of the job. The zygote ignores the number of a
/// job that has already ended.
#[derive(Default)]
pub(super) struct JobState(Mutex<Stage>);

#[derive(Default)]
enum Stage {
    #[default]
    Queued,
    Running(u32, Arc<UnixStream>),
    Finished,
}

impl JobState {
    fn stage(&self) -> MutexGuard<'_, Stage> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Marks the job as running. Returns `false` if it was cancelled.
    fn begin(&self, number: u32, zygote: &Zygote) -> bool {
        let mut stage = self.stage();
        let wanted = !matches!(*stage, Stage::Finished);
        if wanted {
            *stage = Stage::Running(number, zygote.cancel_socket());
        }
        wanted
    }

    fn finish(&self) {
        *self.stage() = Stage::Finished;
    }

    /// Returns `true` if the job was cancelled or is done.
    fn is_finished(&self) -> bool {
        matches!(*self.stage(), Stage::Finished)
    }

    /// Cancels the job. Its processes are killed immediately; if it has not started, it never starts.
    pub(super) fn cancel(&self) {
        let mut stage = self.stage();
        if let Stage::Running(number, zygote) = &*stage {
            // Write errors are ignored: a zygote that does not read is dead, or is about to be killed because it does not respond.
            let _ = (&**zygote).write_all(&number.to_le_bytes());
        }
        *stage = Stage::Finished;
    }
}

pub(super) struct Slot {
    setup: Arc<Setup>,
    zygote: Option<Zygote>,
    jobs: u32,
}

impl Slot {
    /// Starts a zygote, reports the result, and runs jobs until the sandbox is dropped. Runs no jobs if the zygote does not start.
    pub(super) fn serve(
        setup: Arc<Setup>,
        started: Sender<Result<IsolationFacts, SandboxError>>,
        tasks: &Mutex<Receiver<QueuedJob>>,
    ) {
        let mut slot = Self { setup, zygote: None, jobs: 0 };
        let facts = slot.ensure_zygote().map(|zygote| zygote.facts.clone());
        let failed = facts.is_err();
        if started.send(facts).is_err() || failed {
            return;
        }
        drop(started);
        while let Some(task) = next_job(tasks) {
            let QueuedJob { job, state, reply } = task;
            let answer = slot.run(&job, &state);
            state.finish();
            // The receiver of a cancelled job is gone.
            let _ = reply.send(answer);
        }
    }

    fn ensure_zygote(&mut self) -> Result<&mut Zygote, SandboxError> {
        let zygote = match self.zygote.take() {
            Some(zygote) => zygote,
            None => Zygote::start(&self.setup)?,
        };
        Ok(self.zygote.insert(zygote))
    }

    /// Runs a job. Repeats it once if the solution may not have caused the end of the first attempt: the sandbox failed, the zygote was
    /// lost or did not respond, or the checker died. If the second attempt also ends in this way, a checker that died and a case in which
    /// the zygote did not respond count as failures of the solution. Any other failure is an error. A cancelled job is not repeated.
    fn run(&mut self, job: &EncodedJob, state: &JobState) -> Result<Verdict, SandboxError> {
        let first = match self.attempt(job, state) {
            Attempt::Final(answer) => return answer,
            first if state.is_finished() => return first.into_result(),
            first => first,
        };
        tracing::warn!("sandbox: {}; running the job a second time", first.reason());
        let second = self.attempt(job, state);
        if !matches!(second, Attempt::Final(_)) {
            tracing::warn!("sandbox: {} again in the second attempt", second.reason());
        }
        second.into_result()
    }

    fn attempt(&mut self, job: &EncodedJob, state: &JobState) -> Attempt {
        self.jobs = self.jobs.wrapping_add(1);
        let number = self.jobs;
        let zygote = match self.ensure_zygote() {
            Ok(zygote) => zygote,
            Err(error) => return Attempt::Fault(format!("the slot cannot be restarted: {error}")),
        };
        if !state.begin(number, zygote) {
            return Attempt::Final(Err(cancelled_error()));
        }
        let before = zygote.oom_kills();
        let answer = zygote.run(number, job);
        let was_oom_killed = zygote.oom_kills() > before;
        if !matches!(&answer, Ok(answer) if answer.end != End::Fault) {
            self.zygote = None;
        }
        let attempt = match answer {
            Ok(answer) => attempt_of_answer(answer),
            Err(lost) => attempt_of_loss(&lost),
        };
        if was_oom_killed { attempt.out_of_memory() } else { attempt }
    }
}

enum Attempt {
    /// A result after which the job is not attempted again.
    Final(Result<Verdict, SandboxError>),
    /// The checker died, or the zygote did not respond during a case. If both attempts end in this way, the solution is held responsible.
    Broken(Verdict),
    /// A failure that the solution did not cause.
    Fault(String),
}

impl Attempt {
    /// Returns the final result of an attempt in which the kernel killed a process because the slot ran out of memory. A failed case, or a
    /// [`SandboxError::Fault`] instead of a verdict, then counts as exceeding the memory limit. Anything else is kept.
    fn out_of_memory(self) -> Self {
        let nothing = |reason| Verdict {
            cases: vec![Case { outcome: Outcome::Failed, seconds: 0.0, message: reason }],
            ..Verdict::default()
        };
        match self {
            Self::Final(Ok(verdict)) | Self::Broken(verdict) => {
                Self::Final(Ok(verdict::mark_out_of_memory(verdict)))
            }
            Self::Final(Err(SandboxError::Fault { reason })) | Self::Fault(reason) => {
                Self::Final(Ok(verdict::mark_out_of_memory(nothing(reason))))
            }
            other @ Self::Final(Err(_)) => other,
        }
    }

    fn reason(&self) -> &str {
        match self {
            Self::Final(_) => "",
            Self::Broken(verdict) => verdict.cases.last().map_or("", |case| &case.message),
            Self::Fault(reason) => reason,
        }
    }

    /// Returns the result of a job that is not attempted again.
    fn into_result(self) -> Result<Verdict, SandboxError> {
        match self {
            Self::Final(answer) => answer,
            Self::Broken(verdict) => Ok(verdict),
            Self::Fault(reason) => Err(SandboxError::Fault { reason }),
        }
    }
}

/// Returns the next job, or `None` when the sandbox is dropped.
fn next_job(tasks: &Mutex<Receiver<QueuedJob>>) -> Option<QueuedJob> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

fn attempt_of_answer(answer: Answer) -> Attempt {
    let Answer { end, message, report, seconds } = answer;
    let last = |outcome, message: &str| Case { outcome, seconds, message: message.into() };
    match end {
        End::Done => match verdict::parse_complete(&report) {
            Err(SandboxError::Fault { reason }) => Attempt::Fault(reason),
            other => Attempt::Final(other),
        },
        End::Deadline => {
            let late = last(Outcome::Timeout, "exceeded its time limit");
            Attempt::Final(Ok(verdict::parse_partial(&report, late)))
        }
        End::Died => {
            let what =
                if message.is_empty() { "the process that runs the tests died" } else { &message };
            let dead = last(Outcome::RuntimeError, what);
            Attempt::Broken(verdict::parse_partial(&report, dead))
        }
        End::Cancelled => Attempt::Final(Err(cancelled_error())),
        End::Fault => Attempt::Fault(message),
    }
}

fn attempt_of_loss(lost: &LostZygote) -> Attempt {
    match lost.unanswered_case_seconds() {
        Some(seconds) => {
            let message = "the slot did not respond after the time limit of the case".into();
            let silent = Case { outcome: Outcome::Timeout, seconds, message };
            Attempt::Broken(verdict::parse_partial(&[], silent))
        }
        None => Attempt::Fault(format!("the slot was lost: {}", lost.error)),
    }
}

fn cancelled_error() -> SandboxError {
    SandboxError::Fault { reason: "the job was cancelled".into() }
}
