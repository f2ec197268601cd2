//! What keeps workers from running together.

use std::path::PathBuf;
use std::time::Duration;

use crate::fault::Fault;

/// Why a cluster did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The hostfile cannot be read.
    #[error("cannot read the hostfile {path}: {reason}")]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        reason: String,
    },
    /// A line of the hostfile is no address.
    #[error("{path}, line {line}: expected `host:port`, found `{found}`")]
    Address {
        /// The file.
        path: PathBuf,
        /// Its line, from 1.
        line: usize,
        /// What is there.
        found: String,
    },
    /// Two processes have one address, or there is none at all.
    #[error("{path}: expected one address for each process, found {found}")]
    Hosts {
        /// The file.
        path: PathBuf,
        /// What is there.
        found: String,
    },
    /// There is no such process.
    #[error(
        "process {found} is not among the {processes} of the hostfile, which are counted from 0"
    )]
    Process {
        /// Which was asked for.
        found: usize,
        /// How many there are.
        processes: usize,
    },
    /// This process cannot listen at its own address.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// The address of the process.
        address: String,
        /// What the system said.
        reason: String,
    },
    /// Some processes did not come.
    #[error("waited {} s for {missing}", waited.as_secs_f64())]
    Missing {
        /// Which.
        missing: String,
        /// How long.
        waited: Duration,
    },
    /// Another process runs something else.
    #[error("{peer} has another {name}: `{there}`, here it is `{here}`")]
    Mismatch {
        /// Which process.
        peer: String,
        /// What they differ in.
        name: String,
        /// What this process has.
        here: String,
        /// What that one has.
        there: String,
    },
    /// A connection broke before the run began.
    #[error("the connection with {peer} broke: {reason}")]
    Connection {
        /// Which process.
        peer: String,
        /// What the system said.
        reason: String,
    },
    /// The system does not give what workers need.
    #[error("cannot start the workers: {reason}")]
    System {
        /// What it said.
        reason: String,
    },
    /// A worker failed, here or elsewhere.
    #[error(transparent)]
    Fault(Fault),
    /// A process is gone: it was killed, or its machine or the way to it failed.
    #[error(transparent)]
    Lost(Fault),
}
