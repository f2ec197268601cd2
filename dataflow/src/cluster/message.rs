//! Messages between processes on the control connections: one line of JSON each.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::Nanos;
use crate::fault::Fault;

/// Settings on which all processes of a run must agree, as pairs of name and value. Error messages read "has a different `name`".
pub type RunFacts = Vec<(String, String)>;

/// Identifies the messages of this module and the framing of timely. Another version of the program may have another protocol.
pub(super) const PROTOCOL: &str = "rollpacker 1, timely 0.31";

/// The maximum length of a line, in bytes.
const LONGEST: usize = 1 << 20;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Carries timely's data.
    Data,
    /// Carries [`ControlMessage`]s.
    Control,
}

/// The first line that each side sends on each connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: String,
    pub(super) role: Role,
    pub(super) process: usize,
    pub(super) facts: RunFacts,
    /// The note that process 0 sends to the others.
    pub(super) note: Option<String>,
    /// The current time of the sender's clock.
    pub(super) now: Nanos,
}

/// A message on a control connection, after the first line.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum ControlMessage {
    /// A heartbeat with the sender's progress count so far.
    Beat(u64),
    /// The process failed.
    Fault(Fault),
    /// The workers of the process have run to the end.
    Done,
}

/// Writes one line.
pub(super) fn write(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads one line and not a byte more: timely's data may follow.
pub(super) fn read<M: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<M> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return Ok(serde_json::from_slice(&line)?);
        }
        line.push(byte[0]);
        if line.len() > LONGEST {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the line exceeds 1 MiB"));
        }
    }
}
