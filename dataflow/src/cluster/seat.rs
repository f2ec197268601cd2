//! The place of one worker.

use std::sync::Arc;

use timely::communication::allocator::Allocator;
use timely::dataflow::Scope;

use super::fate::Fate;
use crate::clock::WallClock;
use crate::fault::{Fault, Faults};
use crate::runtime;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// The place of one worker in a cluster; its thread runs the worker's share of a graph.
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

    /// Which worker, from 0, over all processes.
    #[must_use]
    pub fn index(&self) -> usize {
        self.allocator.index()
    }

    /// Which worker of its process, from 0.
    #[must_use]
    pub fn local(&self) -> usize {
        self.fate.local(self.index())
    }

    /// What the first process has told the others at the start.
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// How many workers there are, over all processes.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.allocator.peers()
    }

    /// The clock that all workers go by: that of the first process, in the others within what a message takes to travel.
    #[must_use]
    pub fn clock(&self) -> WallClock {
        self.clock
    }

    /// Builds this worker's share of a graph and runs it to its end; returns what `build` returned.
    ///
    /// All workers build the same operators in the same order. A `watchdog` counts what other processes move, too.
    ///
    /// # Errors
    /// The first fault that was raised by any worker of any process, or that a process was lost; the graph is torn down, and what its
    /// operators own is dropped with it.
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
