//! Errors that prevent workers from running together.

use std::path::PathBuf;
use std::time::Duration;

use crate::fault::{Fault, HasOrigin, Origin};

/// The operator name of faults that the cluster itself raises.
pub const NAME: &str = "cluster";

/// The reason why a cluster did not run to its end.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The hostfile cannot be read.
    #[error("cannot read the hostfile {path}: {reason}")]
    Read {
        /// The path of the hostfile.
        path: PathBuf,
        /// The error of the system.
        reason: String,
    },
    /// A line of the hostfile is not an address.
    #[error(
        "{path}, line {line}: expected `host:port` with a port from 1 to 65535, found `{found}`"
    )]
    Address {
        /// The path of the hostfile.
        path: PathBuf,
        /// The line number, from 1.
        line: usize,
        /// The text of the line.
        found: String,
    },
    /// Two processes have the same address, or there is no address at all.
    #[error("{path}: expected one address for each process, found {found}")]
    Hosts {
        /// The path of the hostfile.
        path: PathBuf,
        /// An address in backquotes, followed by `twice`; or `none`.
        found: String,
    },
    /// The process index is out of range.
    #[error("process {found} does not exist: the hostfile lists {processes}, counted from 0")]
    Process {
        /// The index that was requested.
        found: usize,
        /// The number of processes in the hostfile.
        processes: usize,
    },
    /// This process cannot listen at its own address.
    #[error("cannot listen at {address}: {reason}")]
    Listen {
        /// The address of the process.
        address: String,
        /// The error of the system.
        reason: String,
    },
    /// Some processes did not connect in time.
    #[error("{missing} did not connect within {} s", waited.as_secs_f64())]
    Missing {
        /// The names of the missing processes, separated by commas.
        missing: String,
        /// The time limit.
        waited: Duration,
    },
    /// Another process has different settings, another version of the protocol, or an unexpected position in the hostfile.
    #[error("{peer} has a different {name}: `{there}`; this process has `{here}`")]
    Mismatch {
        /// The name of the other process.
        peer: String,
        /// The name of the fact that differs.
        name: String,
        /// The value of this process.
        here: String,
        /// The value of the other process.
        there: String,
    },
    /// A connection broke before the run began, or the other process sent an invalid first message.
    #[error("the connection with {peer} broke: {reason}")]
    Connection {
        /// The name of the other process.
        peer: String,
        /// The error of the system, or the reason why the message is invalid.
        reason: String,
    },
    /// The system lacks a resource that the workers need.
    #[error("cannot start the workers: {reason}")]
    System {
        /// The error of the system.
        reason: String,
    },
    /// A worker failed, in this process or another.
    #[error(transparent)]
    Fault(Fault),
    /// A process was lost: it was killed, or its machine or the network failed.
    #[error(transparent)]
    Lost(Fault),
}

impl HasOrigin for ClusterError {
    fn origin(&self) -> Origin {
        match self {
            Self::Address { .. }
            | Self::Hosts { .. }
            | Self::Process { .. }
            | Self::Mismatch { .. } => Origin::User,
            Self::Read { .. }
            | Self::Listen { .. }
            | Self::Missing { .. }
            | Self::Connection { .. }
            | Self::System { .. } => Origin::Environment,
            Self::Fault(fault) | Self::Lost(fault) => fault.origin,
        }
    }
}
