//! Seats: the handle of one worker of a cluster.

use std::sync::Arc;

use timely::communication::allocator::Allocator;
use timely::dataflow::Scope;

use super::fate::Fate;
use crate::clock::WallClock;
use crate::fault::{Fault, Faults};
use crate::runtime;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// The handle of one worker of a cluster. Its thread runs the worker's share of a graph.
pub struct Seat {
    allocator: Allocator,
    fate: Arc<Fate>,
    clock: WallClock,
    note: Arc<str>,
}

impl Seat {
    pub(super) fn new(
        allocator: Allocator,
        fate: Arc<Fate>,
        clock: WallClock,
        note: Arc<str>,
    ) -> Self {
        Self { allocator, fate, clock, note }
    }

    /// Returns the index of the worker among all processes, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.allocator.index()
    }

    /// Returns the index of the worker within its process, from 0.
    #[must_use]
    pub fn local(&self) -> usize {
        self.fate.local(self.index())
    }

    /// Returns the note that process 0 sent to the others at the start.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Returns the number of workers of all processes.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.allocator.peers()
    }

    /// Returns the clock that all workers share: that of process 0. In the other processes it is off by at most the delay of one message.
    #[must_use]
    pub fn clock(&self) -> WallClock {
        self.clock
    }

    /// Builds this worker's share of a graph and runs it to its end. Returns the result of `build`.
    ///
    /// All workers must build the same operators in the same order. A `watchdog` also counts the progress of other processes.
    ///
    /// # Errors
    /// The first fault that any worker of any process raised, or the loss of a process. The graph is torn down, and everything its
    /// operators own is dropped.
    pub fn run<R>(
        self,
        watchdog: Option<Watchdog>,
        build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
    ) -> Result<R, Fault> {
        let Self { allocator, fate, .. } = self;
        let (index, peers) = (allocator.index(), allocator.peers());
        let watchdog = fate.enter(watchdog);
        let mut seen = 0;
        let failing = |fault: &Fault| {
            let mut fault = fault.clone();
            if peers > 1 {
                fault.operator = format!("{} on {}", fault.operator, fate.worker(index));
            }
            fate.fail(fault);
        };
        let result = runtime::run_with(allocator, watchdog, build, failing, |worker, watchdog| {
            worker.step_or_park(watchdog.map(Watchdog::patience));
            fate.progress(&mut seen);
            !fate.is_over()
        });
        match fate.fault() {
            Some(fault) => Err(fault),
            None => result,
        }
    }
}
