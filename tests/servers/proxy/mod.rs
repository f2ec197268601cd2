//! A proxy in front of a server. It forwards calls, and injects faults into those that a test names.

mod fault;
mod forward;
mod http;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::Duration;

use serde_json::Value;

pub(crate) use self::fault::{Fault, Gate, Sent};
use self::forward::{forward, whole};
use self::http::Request;
use super::workspace::server::Server;

/// The kind of the calls to generate that stream their tokens.
pub(crate) const TOKENS: &str = "tokens";
/// The kind of all other calls to generate: those that score the canary, and those of the checks at the start.
pub(crate) const SCORE: &str = "score";
/// The kind of the calls that load weights.
pub(crate) const LOAD: &str = "/collective_rpc";
/// The kind of the calls for the name of the model.
pub(crate) const MODELS: &str = "/v1/models";

/// A server behind a proxy. Dropping the value stops both.
pub(crate) struct Proxy {
    state: Arc<State>,
    listener: Mutex<Option<JoinHandle<()>>>,
}

struct State {
    address: SocketAddr,
    peer: Mutex<Option<Server>>,
    rules: Mutex<Vec<Rule>>,
    /// The kinds and bodies of the calls that were answered, in order.
    calls: Mutex<Vec<(String, Vec<u8>)>>,
    /// `true` while nothing listens and every connection is reset.
    is_down: AtomicBool,
    /// `true` while no byte is sent.
    is_unresponsive: AtomicBool,
}

/// The calls that have a fault: after `skip` calls of the kind, the next `times` ones.
struct Rule {
    kind: &'static str,
    skip: usize,
    times: usize,
    fault: Fault,
}

impl Proxy {
    pub(crate) fn start(peer: Server) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let state = Arc::new(State {
            address: listener.local_addr().unwrap(),
            peer: Mutex::new(Some(peer)),
            rules: Mutex::default(),
            calls: Mutex::default(),
            is_down: AtomicBool::new(false),
            is_unresponsive: AtomicBool::new(false),
        });
        let listener = Mutex::new(Some(listen(listener, &state)));
        Self { state, listener }
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.state.address)
    }

    /// Injects a fault into `times` calls of a kind, after `skip` ones without it. A kind is [`TOKENS`], [`SCORE`] or a path.
    pub(crate) fn inject(&self, kind: &'static str, skip: usize, times: usize, fault: Fault) {
        self.state.rules().push(Rule { kind, skip, times, fault });
    }

    /// Returns the number of calls of a kind that were answered.
    pub(crate) fn count(&self, kind: &str) -> usize {
        self.bodies(kind).len()
    }

    /// Returns the request bodies, as JSON, of the calls of a kind that were answered.
    pub(crate) fn bodies(&self, kind: &str) -> Vec<Value> {
        let calls = self.state.calls.lock().unwrap();
        let own = calls.iter().filter(|(found, _)| found == kind);
        own.map(|(_, body)| serde_json::from_slice(body).unwrap_or_default()).collect()
    }

    pub(crate) fn is_down(&self) -> bool {
        self.state.is_down()
    }

    /// Returns the label of the server's weights.
    pub(crate) fn label(&self) -> String {
        let request = Request::get("/weight_info");
        let info: Value = serde_json::from_str(&whole(&self.state, &request).unwrap()).unwrap();
        info["weight_version"].as_str().unwrap().to_owned()
    }

    /// Listens again at the same port, in front of another server.
    pub(crate) fn revive(&self, peer: Server) {
        let mut listener_thread = self.listener.lock().unwrap();
        listener_thread.take().unwrap().join().unwrap();
        *self.state.peer.lock().unwrap() = Some(peer);
        self.state.is_down.store(false, Ordering::SeqCst);
        // Another process may use the port for a moment.
        let listener = loop {
            match TcpListener::bind(self.state.address) {
                Ok(listener) => break listener,
                Err(_) => pause(),
            }
        };
        *listener_thread = Some(listen(listener, &self.state));
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.state.go_down();
    }
}

/// Waits a moment before something is checked again.
fn pause() {
    std::thread::park_timeout(Duration::from_millis(5));
}

fn listen(listener: TcpListener, state: &Arc<State>) -> JoinHandle<()> {
    let state = Arc::clone(state);
    std::thread::spawn(move || {
        for connection in listener.incoming().map_while(Result::ok) {
            if state.is_down() {
                return;
            }
            let state = Arc::clone(&state);
            std::thread::spawn(move || state.serve(connection));
        }
    })
}

impl State {
    fn rules(&self) -> MutexGuard<'_, Vec<Rule>> {
        self.rules.lock().unwrap()
    }

    fn is_down(&self) -> bool {
        self.is_down.load(Ordering::SeqCst)
    }

    /// Kills the server, and stops listening.
    fn go_down(&self) {
        if !self.is_down.swap(true, Ordering::SeqCst) {
            drop(self.peer.lock().unwrap().take());
            // This connection wakes the listener, which then ends.
            drop(TcpStream::connect(self.address));
        }
    }

    /// Blocks while the proxy is unresponsive.
    ///
    /// # Errors
    /// If the server is down.
    fn check(&self) -> io::Result<()> {
        while self.is_unresponsive.load(Ordering::SeqCst) && !self.is_down() {
            pause();
        }
        if self.is_down() { Err(io::ErrorKind::ConnectionReset.into()) } else { Ok(()) }
    }

    fn server(&self) -> io::Result<SocketAddr> {
        let peer = self.peer.lock().unwrap();
        peer.as_ref().map(|peer| peer.address).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }

    /// Answers the call of a connection. An error closes the connection, which the client sees as its own error.
    fn serve(&self, mut connection: TcpStream) {
        let Ok(mut request) = Request::read(&mut connection) else { return };
        let fault = self.fault(&request.kind);
        if self.answer(&mut connection, &request, fault).is_ok() {
            // Before the rest is read, closing the connection resets it.
            request.read_rest(&mut connection);
            self.calls.lock().unwrap().push((request.kind, request.body));
        }
    }

    fn fault(&self, kind: &str) -> Option<Fault> {
        let mut rules = self.rules();
        let rule = rules.iter_mut().find(|rule| rule.kind == kind && rule.times > 0)?;
        if rule.skip > 0 {
            rule.skip -= 1;
            return None;
        }
        rule.times -= 1;
        Some(rule.fault.clone())
    }

    fn answer(
        &self,
        client: &mut TcpStream,
        request: &Request,
        fault: Option<Fault>,
    ) -> io::Result<()> {
        let unchanged = |_: usize, data: &str| Sent::Data(data.to_owned());
        self.check()?;
        match fault {
            None => forward(self, request, client, unchanged),
            Some(Fault::Unresponsive) => {
                self.is_unresponsive.store(true, Ordering::SeqCst);
                self.check()
            }
            Some(Fault::Crash(_)) if request.kind != TOKENS => {
                self.go_down();
                self.check()
            }
            Some(Fault::Crash(events)) => forward(self, request, client, |at, data| {
                if at == events {
                    self.go_down();
                }
                Sent::Data(data.to_owned())
            }),
            Some(Fault::Answer { status, header, body }) => {
                http::respond(client, status, header, body)
            }
            Some(Fault::Body(change)) => {
                let body = change(&whole(self, request)?);
                http::respond(client, "200 OK", "content-type: application/json\r\n", &body)
            }
            Some(Fault::Events(change)) => forward(self, request, client, change),
            Some(Fault::HeldRequest(gate)) => {
                gate.wait();
                forward(self, request, client, unchanged)
            }
            Some(Fault::HeldAnswer(gate)) => {
                let body = whole(self, request)?;
                gate.wait();
                http::respond(client, "200 OK", "content-type: application/json\r\n", &body)
            }
        }
    }
}
