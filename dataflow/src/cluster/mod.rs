//! Workers: the threads that run a graph together, in one process or in several.
//!
//! Every worker builds the same graph and holds a share of what flows. Timely moves the rows between them and tells all of them how far
//! the steps have come. What timely leaves open is done here: how processes find each other and that they agree on what they run
//! (`connect`), and how a run ends everywhere when it fails anywhere. For that, each pair of processes keeps a second connection beside
//! timely's: a process that fails says so on it, one that is killed is missed there, and every process ends with one message.
//!
//! No process joins later and none comes back: a run that lost one is started again and resumes, with another number of workers if wanted.

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

/// The operator of faults that are the cluster's own.
pub const NAME: &str = "cluster";

/// How long processes wait for each other at the start, unless told otherwise.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// What all processes of a run must agree on, by name; in messages a fact is "another `name`".
pub type Facts = Vec<(String, String)>;

/// Which workers run a graph.
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
    /// So many threads of this process; at least one.
    #[must_use]
    pub fn of_threads(threads: usize) -> Self {
        Self { threads: threads.max(1), place: Place::Alone { serialises: false } }
    }

    /// The same, with every batch between two of them encoded and decoded as between processes: for tests.
    #[must_use]
    pub fn serialising(threads: usize) -> Self {
        Self { threads: threads.max(1), place: Place::Alone { serialises: true } }
    }

    /// So many threads of each process of `hosts`; this one is `process`.
    ///
    /// # Errors
    /// If `hosts` have no such process.
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

    /// Waits so long for the other processes at the start.
    #[must_use]
    pub fn patient(mut self, wait: Duration) -> Self {
        if let Place::Among { patience, .. } = &mut self.place {
            *patience = wait;
        }
        self
    }

    /// Workers of this process.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Workers of all processes.
    #[must_use]
    pub fn workers(&self) -> usize {
        self.threads * self.processes()
    }

    /// Processes.
    #[must_use]
    pub fn processes(&self) -> usize {
        match &self.place {
            Place::Alone { .. } => 1,
            Place::Among { hosts, .. } => hosts.len(),
        }
    }

    /// Which process this is.
    #[must_use]
    pub fn process(&self) -> usize {
        match &self.place {
            Place::Alone { .. } => 0,
            Place::Among { process, .. } => *process,
        }
    }

    /// Runs `body` on each worker of this process, on a thread of its own, and waits for all; what it returned, in the order of workers.
    ///
    /// Processes begin together, once all of them are there and agree on `facts`; `note` is what the first of them tells the others, that of
    /// any other is of no interest. If a worker of any process fails, panics or is lost, those
    /// that [run](Seat::run) a graph give it up, and the others are not waited for by them.
    ///
    /// # Errors
    /// If a process does not come in time, or says otherwise in `facts`; the first fault of any worker of any process; or that a
    /// process was lost.
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
        if results.is_ok() {
            links.done();
        }
        settle(guard, &fate);
        links.close();
        results
    }
}

/// Waits until all that this process has sent has arrived, unless a peer is lost that it is to arrive at.
fn settle(guard: CommsGuard, fate: &Arc<Fate>) {
    let settled = fate.clone();
    // The threads behind the guard end when every peer has ended; where one is lost they stay until the run is over here, and unwind.
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

/// What the workers returned, or why the run failed: the first fault that anyone told, not the first in the order of workers.
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
