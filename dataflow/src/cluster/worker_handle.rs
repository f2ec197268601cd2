//! The handle of one worker of a cluster.

use std::ops::ControlFlow;
use std::sync::Arc;

use timely::communication::allocator::Allocator;
use timely::dataflow::Scope;

use super::run_state::RunState;
use crate::clock::WallClock;
use crate::fault::{Fault, Faults};
use crate::runtime;
use crate::step::Step;
use crate::watchdog::Watchdog;

/// The handle of one worker of a cluster. Its thread runs the worker's share of a graph.
pub struct WorkerHandle {
    allocator: Allocator,
    run_state: Arc<RunState>,
    clock: WallClock,
    note: Arc<str>,
}

impl WorkerHandle {
    pub(super) fn new(
        allocator: Allocator,
        run_state: Arc<RunState>,
        clock: WallClock,
        note: Arc<str>,
    ) -> Self {
        Self { allocator, run_state, clock, note }
    }

    /// Returns the index of the worker among all processes, from 0.
    #[must_use]
    pub fn index(&self) -> usize {
        self.allocator.index()
    }

    /// Returns the index of the worker within its process, from 0.
    #[must_use]
    pub fn local_index(&self) -> usize {
        self.run_state.local(self.index())
    }

    /// Returns the note of process 0; see [`Cluster::run`](super::Cluster::run).
    #[must_use]
    pub fn note(&self) -> &str {
        &self.note
    }

    /// Returns the number of workers of all processes.
    #[must_use]
    pub fn peers(&self) -> usize {
        self.allocator.peers()
    }

    /// Returns the clock that all workers share, which is the clock of process 0. In the other processes it is behind by at most the delay
    /// of one message.
    #[must_use]
    pub fn clock(&self) -> WallClock {
        self.clock
    }

    /// Builds this worker's share of a graph and runs it to its end. Returns the result of `build`.
    ///
    /// All workers must build the same operators in the same order. A `watchdog` also counts the progress of other processes.
    ///
    /// # Errors
    /// If a worker of any process fails, or a process is lost. The first fault in time is returned. The graph is torn down, and all values
    /// that its operators own are dropped.
    pub fn run<R>(
        self,
        watchdog: Option<Watchdog>,
        build: impl FnOnce(Scope<'_, Step>, &Faults) -> R,
    ) -> Result<R, Fault> {
        let Self { allocator, run_state, .. } = self;
        let (index, peers) = (allocator.index(), allocator.peers());
        let watchdog = run_state.register_worker(watchdog);
        let mut seen = 0;
        let failing = |fault: &Fault| {
            let mut fault = fault.clone();
            if peers > 1 {
                fault.operator = format!("{} on {}", fault.operator, run_state.worker(index));
            }
            run_state.fail(fault);
        };
        let result = runtime::run_with(allocator, watchdog, build, failing, |worker, watchdog| {
            worker.step_or_park(watchdog.map(Watchdog::park_timeout));
            run_state.record_progress(&mut seen);
            if run_state.has_failed() {
                ControlFlow::Break(None)
            } else {
                ControlFlow::Continue(())
            }
        });
        match run_state.fault() {
            Some(fault) => Err(fault),
            None => result,
        }
    }
}
