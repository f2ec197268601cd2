//! How a run ends, for all workers of a process at once.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::Duration;

use super::{Hosts, NAME};
use crate::fault::Fault;
use crate::step::Step;
use crate::watchdog::{self, Progress, Pulse, Watchdog};

/// How often processes tell each other that they are there, at the least.
const BEAT: Duration = Duration::from_secs(1);

/// What ended a run, or will.
pub(crate) struct Fate {
    threads: usize,
    /// Where this process is, if there are others.
    place: Option<(Hosts, usize)>,
    over: AtomicBool,
    /// The latest step that a worker has seen rows of.
    step: AtomicU64,
    /// Rows and frontiers that the workers of this process have moved.
    moved: AtomicU64,
    /// What other processes have.
    elsewhere: Pulse,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    fault: Option<Fault>,
    /// Whether the fault is that a process is gone.
    lost: bool,
    /// Whether the fault is told to the other processes.
    told: bool,
    /// Workers that are parked while there is nothing to do.
    workers: Vec<Thread>,
    /// Of their watchdogs: what has moved for them outside of the graph, and in it.
    pulses: Vec<Pulse>,
    /// How often the other processes are told of movement: well within the silence that their watchdogs bear.
    beat: Duration,
    /// All that was sent has arrived.
    settled: bool,
    closed: bool,
}

impl Fate {
    pub(super) fn new(threads: usize, place: Option<(Hosts, usize)>) -> Self {
        Self {
            threads,
            place,
            over: AtomicBool::new(false),
            step: AtomicU64::new(0),
            moved: AtomicU64::new(0),
            elsewhere: Pulse::default(),
            state: Mutex::new(State { beat: BEAT, ..State::default() }),
            changed: Condvar::new(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A worker as messages name it.
    pub(super) fn worker(&self, index: usize) -> String {
        match &self.place {
            None => format!("worker {index}"),
            Some((hosts, process)) if self.threads == 1 => hosts.name(*process),
            Some((hosts, process)) => format!("worker {index} of {}", hosts.name(*process)),
        }
    }

    /// Which worker of this process a worker is.
    pub(super) fn local(&self, index: usize) -> usize {
        index % self.threads
    }

    /// This thread is to be woken when the run fails; its watchdog hears of what other processes move, and they of what it counts.
    pub(super) fn enter(&self, watchdog: Option<Watchdog>) -> Option<Watchdog> {
        let mut state = self.state();
        state.workers.push(std::thread::current());
        if let Some(watchdog) = &watchdog {
            state.pulses.push(watchdog.pulse().clone());
            state.beat = state.beat.min(watchdog.bears() / 4).max(Duration::from_millis(1));
        }
        watchdog.map(|watchdog| watchdog.hearing(&self.elsewhere))
    }

    /// Another process has moved something.
    pub(super) fn beat(&self) {
        self.elsewhere.beat();
    }

    /// Takes note of how far this thread's worker has come, which had moved so much when it last did.
    pub(super) fn progress(&self, seen: &mut u64) {
        let Progress { moved, step } = watchdog::progress();
        self.step.fetch_max(step.0, Ordering::Relaxed);
        let more = moved.wrapping_sub(std::mem::replace(seen, moved));
        self.moved.fetch_add(more, Ordering::Relaxed);
    }

    /// What the workers of this process have moved, and what has moved for them, in a count that wraps around.
    pub(super) fn moved(&self) -> u64 {
        let moved = self.moved.load(Ordering::Relaxed);
        self.state().pulses.iter().map(Pulse::beats).fold(moved, u64::wrapping_add)
    }

    /// Whether the run has failed.
    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Why it has, if it has.
    pub(super) fn fault(&self) -> Option<Fault> {
        self.state().fault.clone()
    }

    /// The run fails, here first.
    pub(super) fn fail(&self, fault: Fault) {
        self.end(self.state(), fault, false);
    }

    /// The run failed in another process, which has told everyone.
    pub(super) fn failed_elsewhere(&self, fault: Fault) {
        self.end(self.state(), fault, true);
    }

    /// The run fails because another process is gone, which everyone sees for himself.
    pub(super) fn lost(&self, process: usize, why: &str) {
        let Some((hosts, _)) = &self.place else { return };
        let step = Step(self.step.load(Ordering::Relaxed));
        let message = format!("{} was lost at step {}: {why}", hosts.name(process), step.ordinal());
        let mut state = self.state();
        state.lost |= state.fault.is_none();
        self.end(state, Fault::new(NAME, message), true);
    }

    /// Whether it has because a process is gone.
    pub(super) fn is_lost(&self) -> bool {
        self.state().lost
    }

    fn end(&self, mut state: MutexGuard<'_, State>, fault: Fault, told: bool) {
        if state.fault.is_none() {
            (state.fault, state.told) = (Some(fault), told);
            self.over.store(true, Ordering::Release);
            state.workers.iter().for_each(Thread::unpark);
            self.changed.notify_all();
        }
    }

    /// What the other processes are to be told: a fault, as soon as there is one, or now and then that there is none. None once this one is
    /// closed.
    pub(super) fn wait_beat(&self) -> Option<Option<Fault>> {
        let at_most = self.state().beat;
        self.wait(at_most)
    }

    /// The same after no longer than that.
    pub(super) fn wait(&self, at_most: Duration) -> Option<Option<Fault>> {
        let due = |state: &mut State| !state.closed && (state.told || state.fault.is_none());
        let state = self.state();
        let (mut state, _) = self
            .changed
            .wait_timeout_while(state, at_most, due)
            .unwrap_or_else(PoisonError::into_inner);
        if state.closed {
            return None;
        }
        let untold = state.fault.clone().filter(|_| !state.told);
        state.told |= untold.is_some();
        Some(untold)
    }

    pub(super) fn close(&self) {
        self.state().closed = true;
        self.changed.notify_all();
    }

    /// Waits for a fault, but not for long; whether there is one.
    pub(super) fn wait_over(&self, at_most: Duration) -> bool {
        let pending = |state: &mut State| state.fault.is_none() && !state.settled && !state.closed;
        let waited = self.changed.wait_timeout_while(self.state(), at_most, pending);
        let (state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        state.fault.is_some() || state.settled || state.closed
    }

    /// Waits until the run is over in this process.
    pub(super) fn wait_closed(&self) {
        let open = |state: &mut State| !state.closed;
        drop(self.changed.wait_while(self.state(), open));
    }

    /// All that was sent has arrived.
    pub(super) fn settle(&self) {
        self.state().settled = true;
        self.changed.notify_all();
    }

    /// Waits until all that was sent has arrived; `false` if a fault leaves it open for longer than a moment.
    pub(super) fn wait_settled(&self) -> bool {
        let running = |state: &mut State| !state.settled && state.fault.is_none();
        let waited = self.changed.wait_while(self.state(), running);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let flushing = |state: &mut State| !state.settled;
        let waited = self.changed.wait_timeout_while(state, super::link::PARTING, flushing);
        waited.unwrap_or_else(PoisonError::into_inner).0.settled
    }

    /// Ends the run if this worker unwinds before what is returned goes.
    pub(super) fn told_of_panic(self: &Arc<Self>, worker: usize) -> Unwound {
        Unwound { fate: self.clone(), worker }
    }
}

/// Tells of a panic.
pub(super) struct Unwound {
    fate: Arc<Fate>,
    worker: usize,
}

impl Drop for Unwound {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let message = format!("{} panicked", self.fate.worker(self.worker));
            self.fate.fail(Fault::new(NAME, message));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::{Nanos, VirtualClock};

    #[test]
    fn what_works_for_a_worker_outside_of_the_graph_moves_those_of_other_processes() {
        let (fate, clock, pulse) = (Fate::new(1, None), VirtualClock::default(), Pulse::default());
        let watchdog = Watchdog::new(Arc::new(clock.clone()), Nanos(10), |_| {}).with(&pulse);
        let mut watchdog = fate.enter(Some(watchdog.ending_the_run())).expect("one");
        let told = fate.moved();
        pulse.beat();
        assert_ne!(fate.moved(), told, "the others are told");
        assert_eq!(watchdog.check(), None);
        let told = fate.moved();
        clock.advance_to(Nanos(9));
        fate.beat();
        assert_eq!(watchdog.check(), None);
        clock.advance_to(Nanos(18));
        assert_eq!(watchdog.check(), None, "it heard of them at 9");
        assert_eq!(fate.moved(), told, "what others moved they are not told again");
        clock.advance_to(Nanos(19));
        assert!(watchdog.check().is_some());
    }
}
