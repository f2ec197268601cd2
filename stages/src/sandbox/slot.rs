//! A slot: the thread that starts a zygote, hands it one job at a time, and starts another where it fails.

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, Sender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures::channel::oneshot;

use super::error::SandboxError;
use super::job::Packed;
use super::setup::Setup;
use super::verdict::{self, Outcome, Verdict};
use super::zygote::{Answer, End, Facts, Zygote};

/// A job in the queue.
pub(super) struct Task {
    pub(super) job: Packed,
    pub(super) call: Arc<Call>,
    pub(super) reply: oneshot::Sender<Result<Verdict, SandboxError>>,
}

/// Where a job is, shared between who asked for it and the slot.
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

    /// Has a slot take the job; `false` if it was called off.
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

    /// Calls the job off: its processes are killed at once, and if it has not begun, it never does.
    pub(super) fn cancel(&self) {
        let mut stage = self.stage();
        if let Stage::Running(number, zygote) = &*stage {
            // A zygote that does not listen is dead or about to be killed for its silence.
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
    /// Starts a zygote, says how that went, and takes jobs until there is nobody left to send any.
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
            // Nobody waits for what was called off.
            let _ = reply.send(answer);
        }
    }

    /// The zygote, started if there is none.
    fn zygote(&mut self) -> Result<&mut Zygote, SandboxError> {
        let zygote = match self.zygote.take() {
            Some(zygote) => zygote,
            None => Zygote::start(&self.setup)?,
        };
        Ok(self.zygote.insert(zygote))
    }

    fn run(&mut self, job: &Packed, call: &Call) -> Result<Verdict, SandboxError> {
        self.jobs = self.jobs.wrapping_add(1);
        let number = self.jobs;
        let zygote = self.zygote()?;
        if !call.begin(number, zygote) {
            return Err(called_off());
        }
        let before = zygote.starved();
        let answer = zygote.run(number, job);
        let starved = zygote.starved() > before;
        if !matches!(&answer, Ok(answer) if answer.end != End::Fault) {
            self.zygote = None;
        }
        let answer = answer.map_err(|error| SandboxError::Fault {
            reason: format!("the slot was lost: {error}"),
        })?;
        if starved { verdict::starved(read(answer)) } else { read(answer) }
    }
}

/// The next job, or none when the sandbox is gone.
fn next(tasks: &Mutex<Receiver<Task>>) -> Option<Task> {
    tasks.lock().unwrap_or_else(PoisonError::into_inner).recv().ok()
}

/// What an answer says of the solution.
fn read(answer: Answer) -> Result<Verdict, SandboxError> {
    let Answer { end, message, report, seconds } = answer;
    match end {
        End::Done => verdict::complete(&report),
        End::Deadline => {
            verdict::partial(&report, Outcome::Timeout, seconds, "not over in its time")
        }
        End::Died => Err(SandboxError::Fault { reason: "the checker died".into() }),
        End::Cancelled => Err(called_off()),
        End::Fault => Err(SandboxError::Fault { reason: message }),
    }
}

fn called_off() -> SandboxError {
    SandboxError::Fault { reason: "the job was called off".into() }
}
