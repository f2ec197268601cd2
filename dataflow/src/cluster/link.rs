//! The connections beside timely's, and what becomes of timely's threads when a process is gone.

use std::cell::RefCell;
use std::io::ErrorKind;
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use timely::communication::Hooks;

use super::ClusterError;
use super::fate::Fate;
use super::message::{self, Message};

/// A process that is not heard of for so long is lost: its machine, or the way to it, is gone.
const SILENCE: Duration = Duration::from_secs(30);

/// How long what was sent may take to arrive where the run has failed; and how long a connection may be broken before anyone knows why.
pub(super) const PARTING: Duration = Duration::from_secs(2);

/// The control connections of this process.
pub(super) struct Links {
    streams: Arc<Vec<Mutex<TcpStream>>>,
    fate: Arc<Fate>,
    threads: Vec<JoinHandle<()>>,
}

impl Links {
    /// Begins to listen and to tell.
    pub(super) fn open(
        controls: Vec<Option<TcpStream>>,
        fate: &Arc<Fate>,
    ) -> Result<Self, ClusterError> {
        let system = |error: std::io::Error| ClusterError::System { reason: error.to_string() };
        let mut threads = Vec::new();
        let mut streams = Vec::new();
        for (process, control) in controls.into_iter().enumerate() {
            let Some(control) = control else { continue };
            control.set_write_timeout(Some(PARTING)).map_err(system)?;
            control.set_read_timeout(Some(SILENCE)).map_err(system)?;
            let (heard, fate) = (control.try_clone().map_err(system)?, fate.clone());
            let name = format!("from process {process}");
            let thread = std::thread::Builder::new().name(name);
            threads.push(thread.spawn(move || hear(heard, process, &fate)).map_err(system)?);
            streams.push(Mutex::new(control));
        }
        let streams = Arc::new(streams);
        let (telling, told) = (streams.clone(), fate.clone());
        let thread = std::thread::Builder::new().name("to processes".to_owned());
        threads.push(thread.spawn(move || beat(&telling, &told)).map_err(system)?);
        Ok(Self { streams, fate: fate.clone(), threads })
    }

    /// The workers of this process have run to the end.
    pub(super) fn done(&self) {
        tell(&self.streams, &Message::Done);
    }

    /// Hangs up, once the others have heard how it ended.
    pub(super) fn close(self) {
        if let Some(fault) = self.fate.wait(Duration::ZERO).flatten() {
            tell(&self.streams, &Message::Fault(fault));
        }
        self.fate.close();
        for stream in self.streams.iter() {
            let stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
            // It fails where the other side is gone already.
            drop(stream.shutdown(Shutdown::Both));
        }
        for thread in self.threads {
            drop(thread.join());
        }
    }
}

/// Tells all; one that cannot be told is missed by whoever listens to it.
fn tell(streams: &[Mutex<TcpStream>], message: &Message) {
    for stream in streams {
        let mut stream = stream.lock().unwrap_or_else(PoisonError::into_inner);
        drop(message::write(&mut stream, message));
    }
}

fn beat(streams: &[Mutex<TcpStream>], fate: &Fate) {
    while let Some(fault) = fate.wait_beat() {
        match fault {
            Some(fault) => tell(streams, &Message::Fault(fault)),
            None => tell(streams, &Message::Beat(fate.moved())),
        }
    }
}

/// Listens to a process until it is done, has failed, or is gone.
fn hear(mut stream: TcpStream, process: usize, fate: &Fate) {
    let mut beats = 0;
    loop {
        match message::read(&mut stream) {
            Ok(Message::Beat(count)) => {
                if std::mem::replace(&mut beats, count) != count {
                    fate.beat();
                }
            }
            Ok(Message::Fault(fault)) => return fate.failed_elsewhere(fault),
            Ok(Message::Done) => return,
            Err(error) => return fate.lost(process, why(&error)),
        }
    }
}

fn why(error: &std::io::Error) -> &'static str {
    match error.kind() {
        ErrorKind::WouldBlock | ErrorKind::TimedOut => "nothing was heard of it for 30 s",
        _ => "it ended without a word",
    }
}

thread_local! {
    /// What a thread does of which a panic is no bug.
    static DUTY: RefCell<Option<Duty>> = const { RefCell::new(None) };
}

/// What a thread does of which a panic is no bug.
enum Duty {
    /// A thread of timely's sends or receives: whose run it is, and which process is on the other side.
    Wire(Arc<Fate>, usize),
    /// It waits for such threads.
    Settling,
}

/// This thread waits for timely's.
pub(super) fn settling() {
    DUTY.with_borrow_mut(|own| *own = Some(Duty::Settling));
}

/// Hooks by which timely's threads know whose they are.
///
/// When a connection breaks, timely's thread panics, and the workers that read from it would panic in turn. Here such a thread goes no
/// further than the panic hook until the run is over: it sees to it that it ends, with the reason that the control connection gives if
/// that gives one.
pub(super) fn watched(fate: &Arc<Fate>) -> Hooks {
    static INSTALLED: Once = Once::new();
    INSTALLED.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| match DUTY.with_borrow_mut(Option::take) {
            None => before(panic),
            Some(Duty::Settling) => {}
            Some(Duty::Wire(fate, process)) => {
                if !fate.wait_over(PARTING) {
                    fate.lost(process, "the connection with it broke");
                }
                fate.wait_closed();
            }
        }));
    });
    let fate = fate.clone();
    Hooks {
        log_fn: Arc::new(move |setup| {
            let wire = setup.remote.map(|process| Duty::Wire(fate.clone(), process));
            DUTY.with_borrow_mut(|own| *own = wire);
            None
        }),
        ..Hooks::default()
    }
}
