//! The connection phase: how the processes of a cluster find each other.
//!
//! Each process listens at its own address and connects to every process with a lower index, once for timely's data connection and once for
//! the control connection. On each connection both sides send a [`Hello`] with the facts of their run. If the facts differ, both sides
//! reject the connection before any data flows, with an error that names the fact and both values.

use std::io::{self, ErrorKind};
use std::net::{SocketAddr, TcpListener, TcpStream, ToSocketAddrs};
use std::time::Duration;

use super::error::ClusterError;
use super::hosts::Hosts;
use super::message::{self, Hello, PROTOCOL, Role, RunFacts};
use crate::clock::{Clock, Nanos, WallClock};

/// The pause before the next attempt to connect to a process that does not listen yet, or to accept a connection.
const RETRY_INTERVAL: Duration = Duration::from_millis(25);

/// The time limit for a connection to one address of a process. Another address, or another attempt, may succeed.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// The time limit for the [`Hello`] of a caller. A stranger, such as a port scanner, may send nothing, or send very slowly.
const HELLO_TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug)]
pub(super) struct Peer {
    pub(super) data: TcpStream,
    pub(super) control: TcpStream,
}

/// The result of the connection phase, when all processes have connected.
#[derive(Debug)]
pub(super) struct Connected {
    /// The connections by process index; `None` for this process.
    pub(super) peers: Vec<Option<Peer>>,
    /// The clock of process 0, up to the delay of one message.
    pub(super) clock: WallClock,
    /// The note of process 0; see [`Cluster::run`](super::Cluster::run).
    pub(super) note: String,
}

pub(super) fn connect(
    hosts: &Hosts,
    process: usize,
    threads: usize,
    facts: &RunFacts,
    note: &str,
    timeout: Duration,
) -> Result<Connected, ClusterError> {
    let own = [("number of processes", hosts.len()), ("number of workers per process", threads)];
    let own = own.map(|(name, value)| (name.to_owned(), value.to_string()));
    let facts = own.into_iter().chain(facts.iter().cloned()).collect();
    let note = (process == 0).then(|| note.to_owned());
    let phase = ConnectionPhase { hosts, process, facts, note, clock: WallClock::start(), timeout };
    phase.run()
}

struct ConnectionPhase<'a> {
    hosts: &'a Hosts,
    process: usize,
    facts: RunFacts,
    note: Option<String>,
    clock: WallClock,
    timeout: Duration,
}

/// The connections to another process that exist so far.
#[derive(Default)]
struct PartialPeer {
    data: Option<TcpStream>,
    control: Option<TcpStream>,
}

impl PartialPeer {
    fn peer(self) -> Option<Peer> {
        Some(Peer { data: self.data?, control: self.control? })
    }

    fn take(&mut self, role: Role, stream: TcpStream) {
        match role {
            Role::Data => self.data = Some(stream),
            Role::Control => self.control = Some(stream),
        }
    }

    fn is_complete(&self) -> bool {
        self.data.is_some() && self.control.is_some()
    }
}

impl ConnectionPhase<'_> {
    /// Connects to all processes.
    ///
    /// The order prevents lost connections and deadlocks. The process listens before it connects to others, so that processes with higher
    /// indices can already queue at its address. Then it connects to the processes with lower indices, and last it accepts the processes
    /// with higher indices. A process replies to its callers only after it has made its own connections. Process 0 has no connections to
    /// make and replies immediately, so by induction every process gets its replies.
    fn run(&self) -> Result<Connected, ClusterError> {
        let listener = self.listen()?;
        let (mut clock, mut note) = (self.clock, self.note.clone());
        let mut partial_peers: Vec<PartialPeer> = Vec::new();
        for process in 0..self.process {
            let mut partial = PartialPeer::default();
            for role in [Role::Data, Role::Control] {
                let (stream, hello) = self.call(process, role)?;
                if process == 0 {
                    (clock, note) = (WallClock::starting_at(hello.now), hello.note);
                }
                partial.take(role, stream);
            }
            partial_peers.push(partial);
        }
        partial_peers.resize_with(self.hosts.len(), PartialPeer::default);
        self.accept_all(&listener, &mut partial_peers)?;
        let peers = partial_peers.into_iter().map(PartialPeer::peer).collect();
        Ok(Connected { peers, clock, note: note.unwrap_or_default() })
    }

    fn listen(&self) -> Result<TcpListener, ClusterError> {
        let address = self.hosts.address(self.process);
        let refused = |error: io::Error| ClusterError::Listen {
            address: address.to_owned(),
            reason: error.to_string(),
        };
        let listener = TcpListener::bind(address).map_err(refused)?;
        listener.set_nonblocking(true).map_err(refused)?;
        Ok(listener)
    }

    fn remaining_time(&self) -> Option<Duration> {
        let timeout = Nanos::from_secs_f64(self.timeout.as_secs_f64());
        let left = timeout.since(self.clock.now());
        (left.0 > 0).then(|| Duration::from_nanos(left.0))
    }

    fn missing(&self, processes: impl IntoIterator<Item = usize>) -> ClusterError {
        let names = processes.into_iter().map(|process| self.hosts.name(process));
        let missing = names.collect::<Vec<_>>().join(", ");
        ClusterError::Missing { missing, waited: self.timeout }
    }

    fn hello(&self, role: Role) -> Hello {
        Hello {
            protocol: PROTOCOL.to_owned(),
            role,
            process: self.process,
            facts: self.facts.clone(),
            note: self.note.clone(),
            now: self.clock.now(),
        }
    }

    /// Connects to a process and exchanges [`Hello`]s. Retries until the process listens or the time limit passes.
    fn call(&self, process: usize, role: Role) -> Result<(TcpStream, Hello), ClusterError> {
        let address = self.hosts.address(process);
        loop {
            let left = self.remaining_time().ok_or_else(|| self.missing([process]))?;
            let connected = address
                .to_socket_addrs()
                .and_then(|addresses| self.connect_any(&addresses.collect::<Vec<_>>()));
            match connected {
                Ok(mut stream) => {
                    let left = self.remaining_time().ok_or_else(|| self.missing([process]))?;
                    let hello = self.exchange_hello(&mut stream, role, left);
                    let hello: Hello = match hello {
                        Ok(hello) => hello,
                        // The process did not reply in time, perhaps because it is itself waiting for others.
                        Err(error) if is_timeout(&error) => return Err(self.missing([process])),
                        Err(error) => {
                            let peer = self.hosts.name(process);
                            let reason = error.to_string();
                            return Err(ClusterError::Connection { peer, reason });
                        }
                    };
                    self.check_agreement(process, &hello)?;
                    return Ok((stream, hello));
                }
                Err(_) => std::thread::park_timeout(RETRY_INTERVAL.min(left)),
            }
        }
    }

    fn connect_any(&self, addresses: &[SocketAddr]) -> io::Result<TcpStream> {
        try_addresses(addresses, || self.remaining_time(), TcpStream::connect_timeout)
    }

    fn exchange_hello(
        &self,
        stream: &mut TcpStream,
        role: Role,
        timeout: Duration,
    ) -> io::Result<Hello> {
        stream.set_nodelay(true)?;
        message::write(stream, &self.hello(role))?;
        message::read_within(stream, timeout)
    }

    /// Accepts the connections of all processes with a higher index.
    fn accept_all(
        &self,
        listener: &TcpListener,
        partial_peers: &mut [PartialPeer],
    ) -> Result<(), ClusterError> {
        let absent = |partial_peers: &[PartialPeer]| -> Vec<usize> {
            let after = partial_peers.iter().enumerate().skip(self.process + 1);
            after
                .filter(|(_, partial)| !partial.is_complete())
                .map(|(process, _)| process)
                .collect()
        };
        while !absent(partial_peers).is_empty() {
            let left = self.remaining_time().ok_or_else(|| self.missing(absent(partial_peers)))?;
            match listener.accept() {
                Ok((stream, _)) => {
                    if let Some((stream, hello)) = self.admit(stream)? {
                        partial_peers[hello.process].take(hello.role, stream);
                    }
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::park_timeout(RETRY_INTERVAL.min(left));
                }
                Err(error) => {
                    return Err(ClusterError::Listen {
                        address: self.hosts.address(self.process).to_owned(),
                        reason: error.to_string(),
                    });
                }
            }
        }
        Ok(())
    }

    /// Reads the [`Hello`] of a caller and replies to it. Returns `None` if the caller sends no valid [`Hello`] within [`HELLO_TIMEOUT`],
    /// or hangs up.
    fn admit(&self, mut stream: TcpStream) -> Result<Option<(TcpStream, Hello)>, ClusterError> {
        let Ok(hello) = self.greet(&mut stream) else { return Ok(None) };
        if hello.process <= self.process || hello.process >= self.hosts.len() {
            let peer = format!("process {}, which connected here,", hello.process);
            return Err(ClusterError::Mismatch {
                peer,
                name: "position in the hostfile".to_owned(),
                here: format!("after {} of {}", self.process, self.hosts.len()),
                there: hello.process.to_string(),
            });
        }
        self.check_agreement(hello.process, &hello)?;
        Ok(Some((stream, hello)))
    }

    fn greet(&self, stream: &mut TcpStream) -> io::Result<Hello> {
        stream.set_nonblocking(false)?;
        stream.set_nodelay(true)?;
        let hello: Hello = message::read_within(stream, HELLO_TIMEOUT)?;
        message::write(stream, &self.hello(hello.role))?;
        Ok(hello)
    }

    /// Rejects a process whose protocol, position or facts differ.
    fn check_agreement(&self, process: usize, hello: &Hello) -> Result<(), ClusterError> {
        let differs = |name: &str, here: &str, there: &str| ClusterError::Mismatch {
            peer: self.hosts.name(process),
            name: name.to_owned(),
            here: here.to_owned(),
            there: there.to_owned(),
        };
        if hello.protocol != PROTOCOL {
            return Err(differs("protocol", PROTOCOL, &hello.protocol));
        }
        if hello.process != process {
            let (here, there) = (process.to_string(), hello.process.to_string());
            return Err(differs("position in the hostfile", &here, &there));
        }
        for (name, here) in &self.facts {
            let there = hello.facts.iter().find(|(of, _)| of == name);
            let there = there.map_or("", |(_, value)| value);
            if here != there {
                return Err(differs(name, here, there));
            }
        }
        Ok(())
    }
}

/// Tries all addresses of a host, in order, while time remains. An address that does not answer takes at most [`CONNECT_TIMEOUT`], and at
/// most an equal share of the remaining time.
fn try_addresses<S>(
    addresses: &[SocketAddr],
    remaining_time: impl Fn() -> Option<Duration>,
    connect: impl Fn(&SocketAddr, Duration) -> io::Result<S>,
) -> io::Result<S> {
    let mut failure = io::Error::new(ErrorKind::NotFound, "the host name resolves to no address");
    for (address, untried) in addresses.iter().zip((1..=addresses.len() as u32).rev()) {
        let Some(left) = remaining_time() else { break };
        match connect(address, CONNECT_TIMEOUT.min(left / untried)) {
            Ok(stream) => return Ok(stream),
            Err(error) => failure = error,
        }
    }
    Err(failure)
}

fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;

    /// Tries `count` addresses within `limit`; only the last address answers. Returns whether it answered, and the time that passed.
    fn try_unresponsive(count: u16, limit: Duration) -> (bool, Duration) {
        let addresses: Vec<SocketAddr> =
            (1..=count).map(|port| SocketAddr::from(([127, 0, 0, 1], port))).collect();
        let passed = Cell::new(Duration::ZERO);
        let left = || limit.checked_sub(passed.get()).filter(|left| !left.is_zero());
        let connect = |address: &SocketAddr, timeout: Duration| match address.port() == count {
            true => Ok(()),
            false => {
                passed.set(passed.get() + timeout);
                Err(ErrorKind::TimedOut.into())
            }
        };
        (try_addresses(&addresses, left, connect).is_ok(), passed.get())
    }

    #[test]
    fn addresses_that_do_not_answer_share_the_time() {
        assert_eq!(try_unresponsive(5, Duration::from_secs(10)), (true, Duration::from_secs(8)));
        assert_eq!(try_unresponsive(3, Duration::from_secs(300)), (true, 2 * CONNECT_TIMEOUT));
        assert!(try_addresses(&[], || None, TcpStream::connect_timeout).is_err());
    }
}
