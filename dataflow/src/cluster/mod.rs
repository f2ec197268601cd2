//! Clusters: the worker threads that run a graph together, in one process or in several.
//!
//! Every worker builds the same graph and holds a share of the data. Timely moves rows between workers and tracks the progress of steps.
//! This module adds two things that timely leaves open. Before the run, processes find each other and check that they run the same job
//! (`connect`). During the run, a failure anywhere ends the run everywhere. For that, each pair of processes keeps a control connection
//! beside timely's data connection: a process that fails reports its fault there, the others detect there that a process was killed, and
//! every process ends with the same message.
//!
//! Processes cannot join or rejoin a run. After a loss the run is restarted and resumes from its last snapshot, with a different number of
//! workers if wanted.

mod connect;
mod error;
mod fate;
mod hosts;
mod link;
mod message;
mod seat;

use std::sync::Arc;
use std::time::Duration;

use timely::communication::allocator::zero_copy::initialize::{
    CommsGuard, initialize_networking_from_sockets,
};
use timely::communication::allocator::{AllocatorBuilder, ProcessBuilder};
use timely::communication::{Hooks, WorkerGuards, initialize_from};

pub use error::ClusterError;
pub use hosts::Hosts;
pub use seat::Seat;

use self::connect::{Peer, connect};
use self::fate::Fate;
use self::link::Links;
use crate::clock::WallClock;
use crate::fault::Fault;

/// The operator name of faults that the cluster itself raises.
pub const NAME: &str = "cluster";

/// The default time that processes wait for each other at the start.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Settings on which all processes of a run must agree, as pairs of name and value. Error messages read "has a different `name`".
pub type Facts = Vec<(String, String)>;

/// The workers that run a graph.
#[derive(Clone, Debug)]
pub struct Cluster {
    threads: usize,
    place: Place,
}

#[derive(Clone, Debug)]
enum Place {
    Alone { serialises: bool },
    Among { hosts: Hosts, process: usize, patience: Duration },
}

impl Cluster {
    /// Creates a cluster of `threads` workers in this process; at least one.
    #[must_use]
    pub fn of_threads(threads: usize) -> Self {
        Self { threads: threads.max(1), place: Place::Alone { serialises: false } }
    }

    /// Like [`of_threads`](Self::of_threads), but every batch between two workers is encoded and decoded as between processes. For tests.
    #[must_use]
    pub fn serialising(threads: usize) -> Self {
        Self { threads: threads.max(1), place: Place::Alone { serialises: true } }
    }

    /// Creates a cluster of `threads` workers in each process of `hosts`; this process has the index `process`.
    ///
    /// # Errors
    /// If `process` is not an index of `hosts`.
    pub fn of_processes(
        threads: usize,
        hosts: Hosts,
        process: usize,
    ) -> Result<Self, ClusterError> {
        if process >= hosts.len() {
            return Err(ClusterError::Process { found: process, processes: hosts.len() });
        }
        let place = Place::Among { hosts, process, patience: PATIENCE };
        Ok(Self { threads: threads.max(1), place })
    }

    /// Sets how long to wait for the other processes at the start. Default: [`PATIENCE`], 60 s.
    #[must_use]
    pub fn patient(mut self, wait: Duration) -> Self {
        if let Place::Among { patience, .. } = &mut self.place {
            *patience = wait;
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

    /// Returns the number of processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        match &self.place {
            Place::Alone { .. } => 1,
            Place::Among { hosts, .. } => hosts.len(),
        }
    }

    /// Returns the index of this process, from 0.
    #[must_use]
    pub fn process(&self) -> usize {
        match &self.place {
            Place::Alone { .. } => 0,
            Place::Among { process, .. } => *process,
        }
    }

    /// Runs `body` on each worker of this process, each on a thread of its own. Waits for all and returns their results in the order of
    /// workers.
    ///
    /// Processes start together, once all have connected and agree on `facts`. `note` is a text that process 0 sends to the others; the
    /// note of any other process is ignored. If a worker of any process fails, panics or is lost, all workers that [run](Seat::run) a graph
    /// abandon it.
    ///
    /// # Errors
    /// If a process does not connect in time or has different `facts`; the first fault of any worker of any process; or the loss of a
    /// process.
    pub fn run<R: Send + 'static>(
        &self,
        facts: &Facts,
        note: &str,
        body: impl Fn(Seat) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ClusterError> {
        match &self.place {
            Place::Alone { serialises } => {
                let fate = Arc::new(Fate::new(self.threads, None));
                let builders = alone(self.threads, *serialises);
                joined(start(builders, &fate, WallClock::start(), note, body)?, &fate)
            }
            Place::Among { hosts, process, patience } => {
                let peers = connect(hosts, *process, self.threads, facts, note, *patience)?;
                self.among(hosts, *process, peers, body)
            }
        }
    }

    fn among<R: Send + 'static>(
        &self,
        hosts: &Hosts,
        process: usize,
        connected: connect::Connected,
        body: impl Fn(Seat) -> Result<R, Fault> + Send + Sync + 'static,
    ) -> Result<Vec<R>, ClusterError> {
        let fate = Arc::new(Fate::new(self.threads, Some((hosts.clone(), process))));
        let (data, controls): (Vec<_>, Vec<_>) = connected
            .peers
            .into_iter()
            .map(|peer| peer.map(|Peer { data, control }| (data, control)).unzip())
            .unzip();
        let links = Links::open(controls, &fate)?;
        let hooks = link::watched(&fate);
        let inner = ProcessBuilder::new_typed_vector(self.threads, hooks.refill.clone(), None);
        let (builders, guard) =
            initialize_networking_from_sockets(inner, data, process, self.threads, hooks)
                .map_err(|error| ClusterError::System { reason: error.to_string() })?;
        let builders = builders.into_iter().map(AllocatorBuilder::Tcp).collect();
        let results =
            joined(start(builders, &fate, connected.clock, &connected.note, body)?, &fate);
        // `Done` goes out only on success, because it ends the monitoring of this process by the others. The control connections stay open
        // while the data connections drain: a peer that is lost meanwhile must still be detected.
        if results.is_ok() {
            links.done();
        }
        settle(guard, &fate);
        links.close();
        results
    }
}

/// Waits until all data that this process has sent has arrived. Gives up after a short time if the run has failed, because a lost peer
/// receives nothing.
fn settle(guard: CommsGuard, fate: &Arc<Fate>) {
    let settled = fate.clone();
    // The guard's threads end when every peer has ended. If a peer is lost, they stay until the run is closed in this process and then
    // unwind.
    let waiting = std::thread::spawn(move || {
        link::settling();
        drop(guard);
        settled.settle();
    });
    if fate.wait_settled() {
        drop(waiting.join());
    }
}

fn alone(threads: usize, serialises: bool) -> Vec<AllocatorBuilder> {
    let refill = Hooks::default().refill;
    let builders = match serialises {
        true => ProcessBuilder::new_bytes_vector(threads, refill, None),
        false => ProcessBuilder::new_typed_vector(threads, refill, None),
    };
    builders.into_iter().map(AllocatorBuilder::Process).collect()
}

type Guards<R> = WorkerGuards<Result<R, Fault>>;

fn start<R: Send + 'static>(
    builders: Vec<AllocatorBuilder>,
    fate: &Arc<Fate>,
    clock: WallClock,
    note: &str,
    body: impl Fn(Seat) -> Result<R, Fault> + Send + Sync + 'static,
) -> Result<Guards<R>, ClusterError> {
    let (fate, note) = (fate.clone(), Arc::<str>::from(note));
    initialize_from(builders, Box::new(()), move |allocator| {
        let index = allocator.index();
        let _unwound = fate.told_of_panic(index);
        let result = body(Seat::new(allocator, fate.clone(), clock, note.clone()));
        if let Err(fault) = &result {
            fate.fail(fault.clone());
        }
        result
    })
    .map_err(|reason| ClusterError::System { reason })
}

/// Returns the results of the workers, or the reason why the run failed: the first fault in time, not in the order of workers.
fn joined<R: Send + 'static>(guards: Guards<R>, fate: &Fate) -> Result<Vec<R>, ClusterError> {
    let results = guards.join();
    if let Some(fault) = fate.fault() {
        let lost = fate.is_lost();
        return Err(if lost { ClusterError::Lost(fault) } else { ClusterError::Fault(fault) });
    }
    let unwound =
        |reason| ClusterError::Fault(Fault::new(NAME, format!("a worker panicked: {reason}")));
    results
        .into_iter()
        .map(|result| result.map_err(unwound)?.map_err(ClusterError::Fault))
        .collect()
}
