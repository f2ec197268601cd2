//! Clusters: the worker threads that run a graph together, in one process or in several.
//!
//! Every worker builds the same graph and holds a share of the data. Timely moves rows between workers and tracks the progress of steps.
//! This module adds two things that timely does not provide. Before the run, processes find each other and check that they run the same job
//! (`connect`). During the run, a failure anywhere ends the run everywhere. For that, each pair of processes keeps a control connection in
//! addition to timely's data connection. A process that fails reports its fault on it, and the other processes detect on it that a process
//! was killed. Every process ends with the same message.
//!
//! Processes cannot join or rejoin a run. After a loss the run is restarted and resumes from its last snapshot, with a different number of
//! workers if wanted.

mod connect;
mod control;
mod error;
mod hosts;
mod message;
mod run_state;
mod worker_handle;

use std::sync::Arc;
use std::time::Duration;

use timely::communication::allocator::zero_copy::initialize::{
    CommsGuard, initialize_networking_from_sockets,
};
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards, initialize_from};

pub use error::{ClusterError, NAME};
pub use hosts::Hosts;
pub use message::RunFacts;
pub use worker_handle::WorkerHandle;

use self::connect::{Peer, connect};
use self::control::ControlConnections;
use self::run_state::RunState;
use crate::clock::WallClock;
use crate::fault::{Fault, Origin};

/// The default time that processes wait for each other at the start.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(60);

/// The worker threads of this process, and the position of the process among the processes that run a graph.
#[derive(Clone, Debug)]
pub struct Cluster {
    threads: usize,
    topology: Topology,
}

#[derive(Clone, Debug)]
enum Topology {
    Alone { serialises: bool },
    Among { hosts: Hosts, process: usize, timeout: Duration },
}

impl Cluster {
    /// Creates a cluster of `threads` workers in this process; 0 counts as 1.
    #[must_use]
    pub fn with_threads(threads: usize) -> Self {
        Self { threads: threads.max(1), topology: Topology::Alone { serialises: false } }
    }

    /// Creates a cluster as [`with_threads`](Self::with_threads) does, whose workers encode every batch for another worker as they would
    /// for another process. For tests.
    #[must_use]
    pub fn with_serialized_batches(threads: usize) -> Self {
        Self { threads: threads.max(1), topology: Topology::Alone { serialises: true } }
    }

    /// Creates a cluster of `threads` workers in each process of `hosts`; 0 counts as 1. This process has the index `process`.
    ///
    /// # Errors
    /// If `process` is not an index of `hosts`.
    pub fn with_processes(
        threads: usize,
        hosts: Hosts,
        process: usize,
    ) -> Result<Self, ClusterError> {
        if process >= hosts.len() {
            return Err(ClusterError::Process { found: process, processes: hosts.len() });
        }
        let place = Topology::Among { hosts, process, timeout: CONNECT_TIMEOUT };
        Ok(Self { threads: threads.max(1), topology: place })
    }

    /// Sets the time to wait for the other processes at the start. Default: [`CONNECT_TIMEOUT`], 60 s. Has no effect on a cluster of a
    /// single process.
    #[must_use]
    pub fn with_connect_timeout(mut self, wait: Duration) -> Self {
        if let Topology::Among { timeout, .. } = &mut self.topology {
            *timeout = wait;
        }
        self
    }

    /// Returns the number of workers of this process.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Returns the number of workers of all processes.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.threads * self.processes()
    }

    /// Returns the number of processes, at least 1.
    #[must_use]
    pub fn processes(&self) -> usize {
        match &self.topology {
            Topology::Alone { .. } => 1,
            Topology::Among { hosts, .. } => hosts.len(),
        }
    }

    /// Returns the index of this process, from 0.
    #[must_use]
    pub fn process(&self) -> usize {
        match &self.topology {
            Topology::Alone { .. } => 0,
            Topology::Among { process, .. } => *process,
        }
    }

    /// Runs `body` on each worker of this process, each on a thread of its own. Waits for all and returns their results in the order of
    /// workers.
    ///
    /// Processes start together, once all have connected and agree on `facts`, and end together: each waits until `body` has returned on
    /// all workers of all processes. Process 0 sends its `note`, a text of any content, to the others; every worker reads it with
    /// [`WorkerHandle::note`]. The notes of other processes are ignored. If a worker of any process fails, panics or is lost, all workers
    /// that [run](WorkerHandle::run) a graph abandon it.
    ///
    /// # Errors
    /// If this process cannot listen at its address, or if the processes cannot connect in time, have different `facts`, or cannot start
    /// their threads. Also if a worker of any process fails or panics, or if a process is lost.
    pub fn run<R: Send + 'static>(
        &self,
        facts: &RunFacts,
        note: &str,
        body: impl Fn(WorkerHandle) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ClusterError> {
        match &self.topology {
            Topology::Alone { serialises } => {
                let run_state = Arc::new(RunState::new(self.threads, None));
                let builders = local_allocators(self.threads, *serialises);
                join_workers(
                    start(builders, &run_state, WallClock::start(), note, body)?,
                    &run_state,
                )
            }
            Topology::Among { hosts, process, timeout } => {
                let peers = connect(hosts, *process, self.threads, facts, note, *timeout)?;
                self.run_with_processes(hosts, *process, peers, body)
            }
        }
    }

    fn run_with_processes<R: Send + 'static>(
        &self,
        hosts: &Hosts,
        process: usize,
        connected: connect::Connected,
        body: impl Fn(WorkerHandle) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ClusterError> {
        let run_state = Arc::new(RunState::new(self.threads, Some((hosts.clone(), process))));
        let (data, controls): (Vec<_>, Vec<_>) = connected
            .peers
            .into_iter()
            .map(|peer| peer.map(|Peer { data, control }| (data, control)).unzip())
            .unzip();
        let mut connections = ControlConnections::open(controls, &run_state)?;
        let hooks = control::network_hooks(&run_state);
        let inner = ProcessBuilder::new_typed_vector(self.threads, hooks.refill.clone(), None);
        let (builders, guard) =
            initialize_networking_from_sockets(inner, data, process, self.threads, hooks)
                .map_err(|error| start_failed(&run_state, error.to_string()))?;
        let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
        let results = start(builders, &run_state, connected.clock, &connected.note, body)
            .and_then(|workers| join_workers(workers, &run_state));
        // `Done` goes out only on success, because it ends the monitoring of this process by the others. A worker may fail after its graph
        // has ended, so the processes end together. Whatever happens to a peer afterwards does not concern the results. The control
        // connections stay open while the data connections drain, so that the loss of a peer ends the drain.
        let results = results.and_then(|results| {
            connections.end_together();
            run_state.error().map_or(Ok(results), Err)
        });
        settle(guard, &run_state);
        drop(connections);
        results
    }
}

/// Waits until all data that this process has sent has arrived. Gives up after a short time if the run has failed, because a lost peer
/// receives nothing.
fn settle(guard: CommsGuard, run_state: &Arc<RunState>) {
    let settled = run_state.clone();
    // The guard's threads end when every peer has ended. If a peer is lost, they stay until the run is closed in this process and then
    // unwind.
    let waiting = std::thread::spawn(move || {
        control::mark_joining_thread();
        drop(guard);
        settled.settle();
    });
    if run_state.wait_settled() {
        drop(waiting.join());
    }
}

fn local_allocators(threads: usize, serialises: bool) -> Vec<AllocatorBuilder> {
    let refill = Hooks::default().refill;
    let builders = if serialises {
        ProcessBuilder::new_bytes_vector(threads, refill, None)
    } else {
        ProcessBuilder::new_typed_vector(threads, refill, None)
    };
    builders.into_iter().map(AllocatorBuilder::Process).collect()
}

type Guards<R> = WorkerGuards<Result<R, Fault>>;

fn start<R: Send + 'static>(
    builders: Vec<AllocatorBuilder>,
    run_state: &Arc<RunState>,
    clock: WallClock,
    note: &str,
    body: impl Fn(WorkerHandle) -> Result<R, Fault> + Send + Sync + 'static,
) -> Result<Guards<R>, ClusterError> {
    let (shared, note) = (run_state.clone(), Arc::<str>::from(note));
    let started = initialize_from(builders, Box::new(()), move |allocator| {
        let index = allocator.index();
        let _guard = shared.panic_guard(index);
        let result = body(WorkerHandle::new(allocator, shared.clone(), clock, note.clone()));
        if let Err(fault) = &result {
            shared.fail(fault.clone());
        }
        result
    });
    started.map_err(|reason| start_failed(run_state, reason))
}

/// Fails the run because the system could not start its threads, and returns the error. The other processes receive the fault when the
/// control connections are dropped.
fn start_failed(run_state: &RunState, reason: String) -> ClusterError {
    let error = ClusterError::System { reason };
    run_state.fail(Fault::of(NAME, &error));
    error
}

/// Returns the results of the workers, or the reason why the run failed: the first fault in time, not in the order of workers.
fn join_workers<R: Send + 'static>(
    guards: Guards<R>,
    run_state: &RunState,
) -> Result<Vec<R>, ClusterError> {
    let results = guards.join();
    if let Some(error) = run_state.error() {
        return Err(error);
    }
    let panicked = |reason| {
        let message = format!("a worker panicked: {reason}");
        ClusterError::Fault(Fault::new(NAME, Origin::Program, message))
    };
    results
        .into_iter()
        .map(|result| result.map_err(panicked)?.map_err(ClusterError::Fault))
        .collect()
}
