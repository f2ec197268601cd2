//! The state of a run, shared by all workers of a process.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::error::{ClusterError, NAME};
use super::hosts::Hosts;
use crate::fault::{Fault, Origin};
use crate::step::Step;
use crate::watchdog::{self, ProgressCounter, Watchdog, WorkerProgress};

/// The maximum interval between the heartbeats that processes send to each other.
const HEARTBEAT_INTERVAL: Duration = Duration::from_secs(1);

/// The maximum time for sent data to arrive after the run has failed. It also limits the wait for the reason of a broken data connection,
/// and is the write timeout of the control connections.
pub(super) const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// The state of a run: running, failed or closed.
pub(crate) struct RunState {
    threads: usize,
    /// The position of this process among the processes of the cluster; `None` if it is the only one.
    position: Option<(Hosts, usize)>,
    failed: AtomicBool,
    /// The latest step of which a worker has seen rows.
    step: AtomicU64,
    /// The progress that the workers of this process have recorded, in the graph and outside of it.
    progress: AtomicU64,
    remote_progress: ProgressCounter,
    state: Mutex<LockedState>,
    changed: Condvar,
}

#[derive(Default)]
struct LockedState {
    fault: Option<Fault>,
    /// `true` if the fault is the loss of a process.
    lost: bool,
    /// `true` if the fault was reported to the other processes, or every process detects it itself.
    reported: bool,
    /// The worker threads, which park while they have nothing to do.
    workers: Vec<Thread>,
    /// The progress counters of the workers' watchdogs, which count progress outside of the graph and in it.
    progress_counters: Vec<ProgressCounter>,
    /// The interval between heartbeats: at most a quarter of the stall limit of the watchdogs, so that progress of other processes arrives
    /// in time.
    heartbeat_interval: Duration,
    /// `true` once all sent data has arrived.
    settled: bool,
    closed: bool,
}

impl RunState {
    pub(super) fn new(threads: usize, position: Option<(Hosts, usize)>) -> Self {
        Self {
            threads,
            position,
            failed: AtomicBool::new(false),
            step: AtomicU64::new(0),
            progress: AtomicU64::new(0),
            remote_progress: ProgressCounter::default(),
            state: Mutex::new(LockedState {
                heartbeat_interval: HEARTBEAT_INTERVAL,
                ..LockedState::default()
            }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, LockedState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn worker(&self, index: usize) -> String {
        match &self.position {
            None => format!("worker {index}"),
            Some((hosts, process)) if self.threads == 1 => hosts.name(*process),
            Some((hosts, process)) => format!("worker {index} of {}", hosts.name(*process)),
        }
    }

    /// Returns the index of a worker within its process.
    pub(super) fn local(&self, index: usize) -> usize {
        index % self.threads
    }

    /// Registers this thread to be woken when the run fails. Connects `watchdog` with the other processes and returns it: their progress
    /// counts for this watchdog, and the progress that this watchdog counts is reported to them.
    pub(super) fn register_worker(&self, watchdog: Option<Watchdog>) -> Option<Watchdog> {
        let mut state = self.state();
        state.workers.push(std::thread::current());
        if let Some(watchdog) = &watchdog {
            state.progress_counters.push(watchdog.progress().clone());
            state.heartbeat_interval = state
                .heartbeat_interval
                .min(watchdog.stall_limit() / 4)
                .max(Duration::from_millis(1));
        }
        watchdog.map(|watchdog| watchdog.with_other_processes(&self.remote_progress))
    }

    pub(super) fn record_remote_progress(&self) {
        self.remote_progress.record();
    }

    /// Records the progress of this thread's worker; `seen` holds the count at the previous call.
    pub(super) fn record_progress(&self, seen: &mut u64) {
        let WorkerProgress { count, step } = watchdog::progress();
        self.step.fetch_max(step.0, Ordering::Relaxed);
        let more = count.wrapping_sub(std::mem::replace(seen, count));
        self.progress.fetch_add(more, Ordering::Relaxed);
    }

    /// Returns a wrapping count of the progress of this process's workers, in the graph and outside of it.
    pub(super) fn progress_count(&self) -> u64 {
        let progress = self.progress.load(Ordering::Relaxed);
        self.state()
            .progress_counters
            .iter()
            .map(ProgressCounter::count)
            .fold(progress, u64::wrapping_add)
    }

    pub(super) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// Fails the run with a fault of this process. Does nothing if the run has already failed.
    pub(super) fn fail(&self, fault: Fault) {
        self.end(self.state(), fault, false);
    }

    /// Fails the run with a fault that another process has already reported to all. Does nothing if the run has already failed.
    pub(super) fn fail_reported(&self, fault: Fault) {
        self.end(self.state(), fault, true);
    }

    /// Fails the run because another process was lost. The fault is not reported, because every process detects the loss itself. Does
    /// nothing if the run has already failed.
    pub(super) fn fail_lost(&self, process: usize, why: &str) {
        let Some((hosts, _)) = &self.position else { return };
        let step = Step(self.step.load(Ordering::Relaxed));
        let message = format!("{} was lost at step {}: {why}", hosts.name(process), step.ordinal());
        let mut state = self.state();
        state.lost |= state.fault.is_none();
        self.end(state, Fault::new(NAME, Origin::Environment, message), true);
    }

    /// Returns the error with which the run failed; `None` if it has not failed.
    pub(super) fn error(&self) -> Option<ClusterError> {
        let state = self.state();
        let error = if state.lost { ClusterError::Lost } else { ClusterError::Fault };
        state.fault.clone().map(error)
    }

    fn end(&self, mut state: MutexGuard<'_, LockedState>, fault: Fault, reported: bool) {
        // Only the first fault counts: later ones are usually its consequences.
        if state.fault.is_none() {
            (state.fault, state.reported) = (Some(fault), reported);
            self.failed.store(true, Ordering::Release);
            state.workers.iter().for_each(Thread::unpark);
            self.changed.notify_all();
        }
    }

    /// Waits for the next message to the other processes. Returns `Some(Some(fault))` once the run has failed and the fault is not yet
    /// reported, and `Some(None)` when a heartbeat is due. Returns `None` once the run is closed in this process. A fault that is returned
    /// counts as reported and is not returned again.
    pub(super) fn wait_for_heartbeat(&self) -> Option<Option<Fault>> {
        let at_most = self.state().heartbeat_interval;
        self.wait(at_most)
    }

    /// Waits as [`wait_for_heartbeat`](Self::wait_for_heartbeat) does, but at most `at_most`.
    pub(super) fn wait(&self, at_most: Duration) -> Option<Option<Fault>> {
        let due =
            |state: &mut LockedState| !state.closed && (state.reported || state.fault.is_none());
        let state = self.state();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, at_most, due)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let unreported = state.fault.clone().filter(|_| !state.reported);
        state.reported |= unreported.is_some();
        Some(unreported)
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Waits up to `at_most` for the run to fail, settle or close. Returns `false` if none of these has happened.
    pub(super) fn wait_for_end(&self, at_most: Duration) -> bool {
        let pending =
            |state: &mut LockedState| state.fault.is_none() && !state.settled && !state.closed;
        let waited = self.changed.wait_timeout_while(self.state(), at_most, pending);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.fault.is_some() || state.settled || state.closed
    }

    /// Waits until the run is closed in this process.
    pub(super) fn wait_closed(&self) {
        let open = |state: &mut LockedState| !state.closed;
        drop(self.changed.wait_while(self.state(), open));
    }

    /// Records that all sent data has arrived.
    pub(super) fn settle(&self) {
        self.state().settled = true;
        self.changed.notify_all();
    }

    /// Waits until all sent data has arrived. Returns `false` if the run failed and the data did not arrive within
    /// [`DRAIN_TIMEOUT`].
    pub(super) fn wait_settled(&self) -> bool {
        let running = |state: &mut LockedState| !state.settled && state.fault.is_none();
        let waited = self.changed.wait_while(self.state(), running);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let flushing = |state: &mut LockedState| !state.settled;
        let waited = self.changed.wait_timeout_while(state, DRAIN_TIMEOUT, flushing);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled
    }

    /// Returns a guard that fails the run if the worker's thread unwinds while the guard lives.
    pub(super) fn panic_guard(self: &Arc<Self>, worker: usize) -> PanicGuard {
        PanicGuard { run_state: self.clone(), worker }
    }
}

/// A guard that fails the run when it is dropped by a panic.
pub(super) struct PanicGuard {
    run_state: Arc<RunState>,
    worker: usize,
}

impl Drop for PanicGuard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("{} panicked", self.run_state.worker(self.worker));
            self.run_state.fail(Fault::new(NAME, Origin::Program, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Nanos, VirtualClock};

    #[test]
    fn external_progress_is_shared_with_other_processes() {
        let (run_state, clock, progress) =
            (RunState::new(1, None), VirtualClock::default(), ProgressCounter::default());
        let watchdog = Watchdog::new(Arc::new(clock.clone()), Nanos(10), |_| {})
            .with_shared_progress(&progress);
        let mut watchdog = run_state.register_worker(Some(watchdog.fail_on_stall())).expect("one");
        let before = run_state.progress_count();
        progress.record();
        assert_ne!(run_state.progress_count(), before, "the other processes see progress");
        assert_eq!(watchdog.check(), None);
        let before = run_state.progress_count();
        clock.advance_to(Nanos(9));
        run_state.record_remote_progress();
        assert_eq!(watchdog.check(), None);
        clock.advance_to(Nanos(18));
        assert_eq!(watchdog.check(), None, "the other processes reported progress at 9");
        assert_eq!(
            run_state.progress_count(),
            before,
            "progress of others is not reported back to them"
        );
        clock.advance_to(Nanos(19));
        assert!(watchdog.check().is_some());
    }
}
