//! The faults that a proxy injects.

use std::sync::{Arc, Condvar, Mutex};

use serde_json::Value;

/// A fault of a call.
#[derive(Clone)]
pub(crate) enum Fault {
    /// From this call on, the server sends no more bytes for any call.
    Unresponsive,
    /// The server is killed. If it streams, it sends this many events before.
    Crash(usize),
    /// The call is answered with this status, further header lines and body, and not forwarded.
    Answer { status: &'static str, header: &'static str, body: &'static str },
    /// The function changes the body of the answer.
    Body(fn(&str) -> String),
    /// The function changes the data of each event. It receives the number of the event and its data.
    Events(fn(usize, &str) -> Sent),
    /// The call is forwarded when the gate opens.
    HeldRequest(Gate),
    /// The call is forwarded at once, and answered when the gate opens.
    HeldAnswer(Gate),
}

/// The replacement of an event on its way to the client.
pub(crate) enum Sent {
    Data(String),
    /// The connection is reset.
    Reset,
}

impl Sent {
    /// Returns the event after a change of its JSON.
    pub(crate) fn changed(data: &str, change: impl FnOnce(&mut Value)) -> Self {
        let mut json = serde_json::from_str(data).unwrap();
        change(&mut json);
        Self::Data(json.to_string())
    }
}

/// Holds calls until a test opens it.
#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<GateState>, Condvar)>);

#[derive(Default)]
struct GateState {
    is_open: bool,
    arrived: usize,
}

impl Gate {
    /// Waits until the gate opens.
    pub(super) fn wait(&self) {
        let (passage, changed) = &*self.0;
        let mut passage = passage.lock().unwrap();
        passage.arrived += 1;
        drop(changed.wait_while(passage, |passage| !passage.is_open).unwrap());
    }

    pub(crate) fn open(&self) {
        let (passage, changed) = &*self.0;
        passage.lock().unwrap().is_open = true;
        changed.notify_all();
    }

    /// Returns `true` once this many calls are held.
    pub(crate) fn holds(&self, calls: usize) -> bool {
        self.0.0.lock().unwrap().arrived >= calls
    }
}
