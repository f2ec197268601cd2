//! What processes tell each other beside the graph: lines of JSON.

use std::io::{self, Read, Write};
use std::net::TcpStream;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::Facts;
use crate::clock::Nanos;
use crate::fault::Fault;

/// The language of this module and the framing of timely: another version of the program may speak another.
pub(super) const PROTOCOL: &str = "rollpacker 1, timely 0.31";

/// Longest line that is read.
const LONGEST: usize = 1 << 20;

/// What a connection is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Timely's.
    Data,
    /// That of [`Message`]s.
    Control,
}

/// The first line on each connection, either way.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: String,
    pub(super) role: Role,
    pub(super) process: usize,
    pub(super) facts: Facts,
    /// What the first process tells the others.
    pub(super) note: Option<String>,
    /// The time of the process's clock.
    pub(super) now: Nanos,
}

/// What follows on a control connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) enum Message {
    /// The process is there, and has moved so much so far.
    Beat(u64),
    /// It failed.
    Fault(Fault),
    /// Its workers have run to the end.
    Done,
}

/// Writes one line.
pub(super) fn write(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads one line, and not a byte more: what follows it may be timely's.
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
            return Err(io::Error::new(io::ErrorKind::InvalidData, "a line without an end"));
        }
    }
}
