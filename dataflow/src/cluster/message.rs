//! Messages between processes on the control connections: one line of JSON each.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::clock::{Clock, Nanos, WallClock};
use crate::fault::Fault;

/// Settings on which all processes of a run must agree, as pairs of name and value. If the values of two processes differ, the error reads
/// "has a different NAME".
pub type RunFacts = Vec<(String, String)>;

/// The version of the messages of this module and of timely's framing. Processes with different versions reject each other.
pub(super) const PROTOCOL: &str = "rollpacker 1, timely 0.31";

const MAX_LINE_BYTES: usize = 1 << 20;

/// The purpose of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Role {
    /// Carries timely's data.
    Data,
    /// Carries [`ControlMessage`]s.
    Control,
}

/// The first line that each process sends on each connection.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Hello {
    pub(super) protocol: String,
    pub(super) role: Role,
    /// The index of the sender, from 0.
    pub(super) process: usize,
    pub(super) facts: RunFacts,
    /// The note of process 0, which the workers of all processes can read; see [`Cluster::run`](super::Cluster::run). `None` if another
    /// process is the sender.
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

/// Writes `message` as one line of JSON.
pub(super) fn write(stream: &mut TcpStream, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line)
}

/// Reads one line as a message. Reads no byte after the line, because timely's data may follow.
pub(super) fn read<M: DeserializeOwned>(stream: &mut TcpStream) -> io::Result<M> {
    read_line(stream, |_| Ok(()))
}

/// Reads one line as [`read`] does; the whole line must arrive within `timeout`. On success, the read timeout of the stream is removed;
/// after an error, the stream may still have one.
///
/// # Errors
/// If the line does not arrive in time ([`ErrorKind::TimedOut`] or [`ErrorKind::WouldBlock`]), exceeds 1 MiB or is not a valid message, or
/// if the connection breaks.
pub(super) fn read_within<M: DeserializeOwned>(
    stream: &mut TcpStream,
    timeout: Duration,
) -> io::Result<M> {
    let clock = WallClock::start();
    let timeout = Nanos::from_secs_f64(timeout.as_secs_f64());
    let message = read_line(stream, |stream| match timeout.since(clock.now()) {
        Nanos(0) => Err(ErrorKind::TimedOut.into()),
        Nanos(left) => stream.set_read_timeout(Some(Duration::from_nanos(left))),
    })?;
    stream.set_read_timeout(None)?;
    Ok(message)
}

/// Reads one line. Calls `before_byte` before each byte.
fn read_line<M: DeserializeOwned>(
    stream: &mut TcpStream,
    before_byte: impl Fn(&TcpStream) -> io::Result<()>,
) -> io::Result<M> {
    let mut line = Vec::new();
    let mut byte = [0];
    loop {
        before_byte(stream)?;
        stream.read_exact(&mut byte)?;
        if byte == *b"\n" {
            return Ok(serde_json::from_slice(&line)?);
        }
        line.push(byte[0]);
        if line.len() > MAX_LINE_BYTES {
            return Err(io::Error::new(ErrorKind::InvalidData, "the line exceeds 1 MiB"));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_line_must_arrive_in_time_as_a_whole() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("bound");
        let sender = std::thread::spawn(move || {
            let mut stream = TcpStream::connect(address).expect("connected");
            write(&mut stream, &ControlMessage::Beat(7)).expect("sent");
            // A byte at a time, without an end, until the reader hangs up.
            while stream.write_all(b" ").is_ok() {
                std::thread::park_timeout(Duration::from_millis(5));
            }
        });
        let (mut stream, _) = listener.accept().expect("a caller");
        let beat = read_within(&mut stream, Duration::from_secs(60)).expect("in time");
        assert!(matches!(beat, ControlMessage::Beat(7)));
        assert_eq!(stream.read_timeout().expect("readable"), None);
        let late = read_within::<ControlMessage>(&mut stream, Duration::from_millis(50));
        let late = late.expect_err("the line has no end").kind();
        assert!(matches!(late, ErrorKind::TimedOut | ErrorKind::WouldBlock), "{late}");
        drop(stream);
        sender.join().expect("it ends");
    }
}
