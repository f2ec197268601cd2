//! The pool of slots, which accepts jobs and returns verdicts.

use std::fmt;
use std::sync::mpsc::{self, Receiver, Sender};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};

use futures::channel::oneshot;

use super::config::SandboxConfig;
use super::error::SandboxError;
use super::folder;
use super::job::Job;
use super::probe::Probe;
use super::setup::Setup;
use super::slot::{JobState, QueuedJob, Slot};
use super::verdict::Verdict;
use super::zygote::{IsolationFacts, Zygote};

/// A pool of slots that run jobs. Clones share the pool; dropping the last clone ends all processes of the pool.
#[derive(Clone)]
pub struct Sandbox {
    pool: Arc<Pool>,
}

struct Pool {
    setup: Arc<Setup>,
    active: Probe,
    /// `None` only during drop.
    tasks: Option<Sender<QueuedJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl Sandbox {
    /// Removes the folders and control groups that sandboxes of dead processes left, starts the slots concurrently, and returns when all of
    /// them are ready.
    ///
    /// # Errors
    /// If a setting is invalid, the machine does not allow the requested isolation, the interpreter does not start, or a process, a thread
    /// or a folder cannot be created.
    pub fn start(config: SandboxConfig) -> Result<Self, SandboxError> {
        folder::sweep();
        let setup = Arc::new(Setup::new(config)?);
        let (tasks, queue) = mpsc::channel();
        let (started, facts) = mpsc::channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads =
            (0..setup.config.slots).map(|slot| spawn_slot(slot, &setup, started.clone(), &queue));
        let threads = threads.collect::<Result<_, _>>()?;
        drop(started);
        let mut pool =
            Pool { active: Probe::failed(&setup.config, ""), setup, tasks: Some(tasks), threads };
        pool.active = wait_for_slots(&pool.setup.config, &facts)?;
        Ok(Self { pool: Arc::new(pool) })
    }

    /// Returns the isolation that this machine allows. Starts one slot, whose trial process reports its namespaces and its user. If the
    /// sandbox does not start, the probe contains the reason and counts as not isolated.
    #[must_use]
    pub fn probe(config: &SandboxConfig) -> Probe {
        let tried =
            Setup::new(config.clone()).and_then(|setup| Ok(Zygote::start(&setup)?.facts.clone()));
        match tried {
            Ok(facts) => Probe::of(config, &facts),
            Err(error) => Probe::failed(config, &error.to_string()),
        }
    }

    /// Returns the isolation in force, as reported by the slot that started last.
    #[must_use]
    pub fn active(&self) -> &Probe {
        &self.pool.active
    }

    /// Runs a job as soon as a slot is free. The wait for a slot does not count toward the time limits of the job.
    ///
    /// Dropping the future kills the processes of the job immediately.
    ///
    /// # Errors
    /// If the job is invalid, its tests cannot be run, or the sandbox failed. A failure of the solution is a verdict, not an error.
    pub async fn run(&self, job: &Job) -> Result<Verdict, SandboxError> {
        let lost = || SandboxError::Fault { reason: "no slot is left".into() };
        let job = job.encode(&self.pool.setup.config)?;
        let (reply, answer) = oneshot::channel();
        let guard = CancelOnDrop(Arc::new(JobState::default()));
        let task = QueuedJob { job, state: Arc::clone(&guard.0), reply };
        self.pool.tasks.as_ref().ok_or_else(lost)?.send(task).map_err(|_| lost())?;
        answer.await.map_err(|_| lost())?
    }
}

impl fmt::Debug for Sandbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sandbox").field("active", &self.pool.active).finish_non_exhaustive()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        drop(self.tasks.take());
        for thread in self.threads.drain(..) {
            // A slot that panicked has reported it already, and its zygote ended together with its thread.
            let _ = thread.join();
        }
    }
}

/// A guard that cancels a job when the guard is dropped. Has no effect if the job is over.
struct CancelOnDrop(Arc<JobState>);

impl Drop for CancelOnDrop {
    fn drop(&mut self) {
        self.0.cancel();
    }
}

fn spawn_slot(
    slot: usize,
    setup: &Arc<Setup>,
    started: Sender<Result<IsolationFacts, SandboxError>>,
    queue: &Arc<Mutex<Receiver<QueuedJob>>>,
) -> Result<JoinHandle<()>, SandboxError> {
    let (setup, queue) = (Arc::clone(setup), Arc::clone(queue));
    let serve = move || Slot::serve(setup, started, &queue);
    let thread = thread::Builder::new().name(format!("sandbox-{slot}")).spawn(serve);
    thread.map_err(|error| SandboxError::Start { reason: error.to_string() })
}

/// Waits until every slot has started, and returns the probe of the slot that started last. Returns an error if a slot does not start or is
/// not isolated as requested.
fn wait_for_slots(
    config: &SandboxConfig,
    started: &Receiver<Result<IsolationFacts, SandboxError>>,
) -> Result<Probe, SandboxError> {
    let mut active = Probe::failed(config, "no slot started");
    for facts in started {
        active = Probe::of(config, &facts?);
        active.check()?;
    }
    Ok(active)
}
