//! The control connections between processes, and the handling of timely's network threads when a process is lost.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use timely::communication::Hooks;

use super::error::ClusterError;
use super::message::{self, ControlMessage};
use super::run_state::{DRAIN_TIMEOUT, RunState};

/// A process that sends nothing for this long is considered lost: its machine or the network has failed.
const PEER_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct ControlConnections {
    streams: Arc<Vec<Mutex<TcpStream>>>,
    run_state: Arc<RunState>,
    /// The threads that read from the other processes. Each ends when its process is done, has failed or is lost.
    receivers: Vec<JoinHandle<()>>,
    /// The thread that writes to the other processes; `None` until it is started.
    sender: Option<JoinHandle<()>>,
}

impl ControlConnections {
    /// Starts the threads that read from and write to the other processes.
    pub(super) fn open(
        controls: Vec<Option<TcpStream>>,
        run_state: &Arc<RunState>,
    ) -> Result<Self, ClusterError> {
        let system = |error: std::io::Error| ClusterError::System { reason: error.to_string() };
        let mut incoming = Vec::new();
        let mut streams = Vec::new();
        for (process, control) in controls.into_iter().enumerate() {
            let Some(control) = control else { continue };
            control.set_write_timeout(Some(DRAIN_TIMEOUT)).map_err(system)?;
            control.set_read_timeout(Some(PEER_TIMEOUT)).map_err(system)?;
            incoming.push((process, control.try_clone().map_err(system)?));
            streams.push(Mutex::new(control));
        }
        let (streams, run_state) = (Arc::new(streams), run_state.clone());
        // If a thread cannot be started, `connections` is dropped, which ends the threads that already run.
        let mut connections = Self { streams, run_state, receivers: Vec::new(), sender: None };
        for (process, stream) in incoming {
            let run_state = connections.run_state.clone();
            let receive = move || receive_loop(stream, process, &run_state);
            let thread = spawn(format!("from process {process}"), receive).map_err(system)?;
            connections.receivers.push(thread);
        }
        let (streams, run_state) = (connections.streams.clone(), connections.run_state.clone());
        let send = move || send_loop(&streams, &run_state);
        connections.sender = Some(spawn("to processes".to_owned(), send).map_err(system)?);
        Ok(connections)
    }

    /// Reports to the other processes that the workers of this process have run to the end. Waits until each other process has also
    /// reported its end, has reported a fault, or is lost.
    pub(super) fn end_together(&mut self) {
        broadcast(&self.streams, &ControlMessage::Done);
        self.join_receivers();
    }

    fn join_receivers(&mut self) {
        self.receivers.drain(..).for_each(|thread| drop(thread.join()));
    }
}

fn spawn(
    name: String,
    body: impl FnOnce() + Send + 'static,
) -> Result<JoinHandle<()>, std::io::Error> {
    std::thread::Builder::new().name(name).spawn(body)
}

impl Drop for ControlConnections {
    /// Closes the connections, after reporting a fault that is not yet reported.
    fn drop(&mut self) {
        if let Some(fault) = self.run_state.wait(Duration::ZERO).flatten() {
            broadcast(&self.streams, &ControlMessage::Fault(fault));
        }
        self.run_state.close();
        for stream in self.streams.iter() {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            // `shutdown` fails if the other side has already closed the connection.
            drop(stream.shutdown(Shutdown::Both));
        }
        self.join_receivers();
        if let Some(sender) = self.sender.take() {
            drop(sender.join());
        }
    }
}

/// Sends a message to all processes. Errors are ignored: the thread that listens to an unreachable process detects the loss.
fn broadcast(streams: &[Mutex<TcpStream>], message: &ControlMessage) {
    for stream in streams {
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        drop(message::write(&mut stream, message));
    }
}

fn send_loop(streams: &[Mutex<TcpStream>], run_state: &RunState) {
    while let Some(fault) = run_state.wait_for_heartbeat() {
        match fault {
            Some(fault) => broadcast(streams, &ControlMessage::Fault(fault)),
            None => broadcast(streams, &ControlMessage::Beat(run_state.progress_count())),
        }
    }
}

/// Reads from a process until it is done, has failed, or is lost.
fn receive_loop(mut stream: TcpStream, process: usize, run_state: &RunState) {
    let mut beats = 0;
    loop {
        match message::read(&mut stream) {
            Ok(ControlMessage::Beat(count)) => {
                if std::mem::replace(&mut beats, count) != count {
                    run_state.record_remote_progress();
                }
            }
            Ok(ControlMessage::Fault(fault)) => return run_state.fail_reported(fault),
            Ok(ControlMessage::Done) => return,
            Err(error) => return run_state.fail_lost(process, &describe_loss(&error)),
        }
    }
}

fn describe_loss(error: &std::io::Error) -> String {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => {
            format!("it sent nothing for {} s", PEER_TIMEOUT.as_secs())
        }
        _ => "it exited without reporting an error".to_owned(),
    }
}

thread_local! {
    /// The role of this thread; `None` if its panics are reported as usual.
    static THREAD_ROLE: RefCell<Option<ThreadRole>> = const { RefCell::new(None) };
}

/// The role of a thread in which a panic is expected when a process is lost.
enum ThreadRole {
    /// A network thread of timely, with the state of its run and the index of the process that it connects to.
    Network(Arc<RunState>, usize),
    /// A thread that joins timely's network threads.
    Joining,
}

/// Marks this thread as one that joins timely's network threads.
pub(super) fn mark_joining_thread() {
    THREAD_ROLE.with_borrow_mut(|own| *own = Some(ThreadRole::Joining));
}

/// Returns hooks that identify timely's network threads, and installs the panic hook that handles their panics.
///
/// When a connection breaks, timely's network thread panics, and the workers that read from it would panic in turn. The panic hook
/// therefore holds such a thread until the run is closed, so the workers never see the broken channel. First it waits up to
/// [`DRAIN_TIMEOUT`] for the reason. The control connection usually reports a fault of the other process at about the same time, and that
/// message is better than "the connection broke". If no reason arrives, the hook itself reports the process as lost. Panics of threads that
/// join network threads are silenced, and all other panics go to the previous hook.
pub(super) fn network_hooks(run_state: &Arc<RunState>) -> Hooks {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            match THREAD_ROLE.with_borrow_mut(Option::take) {
                None => before(panic),
                Some(ThreadRole::Joining) => {}
                Some(ThreadRole::Network(run_state, process)) => {
                    if !run_state.wait_for_end(DRAIN_TIMEOUT) {
                        run_state.fail_lost(process, "the connection to it broke");
                    }
                    run_state.wait_closed();
                }
            }
        }));
    });
    let run_state = run_state.clone();
    Hooks {
        log_fn: Arc::new(move |setup| {
            let role = setup.remote.map(|process| ThreadRole::Network(run_state.clone(), process));
            THREAD_ROLE.with_borrow_mut(|own| *own = role);
            None
        }),
        ..Hooks::default()
    }
}
