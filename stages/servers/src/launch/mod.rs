//! Servers as child processes of this program, which starts, watches and stops them.
//!
//! A [`Fleet`] starts a command several times, each on a free port of 127.0.0.1, and waits until the servers answer. A process that ends
//! during this wait makes the start fail. A process that ends later is started again on the same port. Meanwhile the engine moves
//! the server's responses to other servers. It delivers the weights when the server answers again, as it does for any server that restarts.
//!
//! No server outlives this process, however this process ends: each server has a process group with a guard, which kills the group when
//! this process is gone. A child of a server that leaves the group, for example with `setsid`, is not killed.

mod config;
mod error;
mod log;
mod process;
mod server;

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread::{Builder, JoinHandle};

use futures::future::{join_all, try_join_all};
use tokio::sync::{Barrier, oneshot};

use self::config::Slot;
pub use self::config::{InvalidField, LaunchConfig, MAX_SERVERS};
pub use self::error::LaunchError;
use self::server::LaunchedServer;

/// Running servers. Dropping the fleet stops the servers: it waits for at most ten seconds, and then kills the servers that still run.
#[derive(Debug)]
pub struct Fleet {
    urls: Vec<String>,
    restarts: Arc<AtomicU64>,
    /// The sender whose drop stops the servers; `None` once it was dropped.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts the servers and waits until all answer; a permanent error counts as an answer. If the timeout expires first, one ready server
    /// is enough; the others may join later.
    ///
    /// # Errors
    /// Returns an error if the configuration is out of bounds, the API key cannot be used, no port is free, or a thread cannot start or
    /// panics. Also returns an error if the log of a server cannot be written, a server cannot be started or ends before all are ready, or
    /// no server is ready in time. No server runs after an error.
    pub fn start(config: LaunchConfig) -> Result<Self, LaunchError> {
        config.check().map_err(|(field, expected, found)| LaunchError::Config {
            field,
            expected,
            found,
        })?;
        config.register_secrets();
        let slots = slots(config.count).map_err(LaunchError::Port)?;
        let urls = slots.iter().map(|slot| slot.url()).collect();
        let restarts = Arc::<AtomicU64>::default();
        let config = Arc::new(config);
        let new = |slot| LaunchedServer::new(Arc::clone(&config), slot, Arc::clone(&restarts));
        let servers = slots.into_iter().map(new).collect::<Result<_, _>>()?;
        let (ready_sender, ready) = channel();
        let (stop, stopped) = oneshot::channel();
        let thread = spawn_supervisor(Arc::clone(&config), servers, ready_sender, stopped)?;
        let mut fleet = Self { urls, restarts, stop: Some(stop), thread: Some(thread) };
        match ready.recv() {
            Ok(Ok(())) => Ok(fleet),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(fleet.join().expect_err("invariant: only a panic drops the channel")),
        }
    }

    /// Returns the URLs of the servers, in the order of their numbers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.urls.clone()
    }

    /// Returns the counter of restarts, which is shared by all callers.
    #[must_use]
    pub fn restarts(&self) -> Restarts {
        Restarts(Arc::clone(&self.restarts))
    }

    /// Waits for the end of the thread. Fails if the thread panicked.
    fn join(&mut self) -> Result<(), LaunchError> {
        let panicked = || LaunchError::Thread(io::Error::other("it panicked"));
        self.thread.take().map_or(Ok(()), |thread| thread.join().map_err(|_| panicked()))
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Err(error) = self.join() {
            tracing::warn!(%error, "the servers were killed");
        }
    }
}

/// A counter of the restarts of a fleet's servers, including failed attempts. Clones share the counter.
#[derive(Clone, Debug)]
pub struct Restarts(Arc<AtomicU64>);

impl Restarts {
    /// Returns the number of restarts since the last call of this method on any clone.
    #[must_use]
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Returns the index and a free port of each of `count` servers. All ports are held until the last one is chosen, so that they differ.
fn slots(count: usize) -> io::Result<Vec<Slot>> {
    let held = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)));
    let held = held.collect::<io::Result<Vec<TcpListener>>>()?;
    let slot = |(index, listener): (usize, &TcpListener)| {
        Ok(Slot { index, port: listener.local_addr()?.port() })
    };
    held.iter().enumerate().map(slot).collect()
}

/// Starts the thread that owns the processes.
fn spawn_supervisor(
    config: Arc<LaunchConfig>,
    servers: Vec<LaunchedServer>,
    ready_sender: Sender<Result<(), LaunchError>>,
    stopped: oneshot::Receiver<()>,
) -> Result<JoinHandle<()>, LaunchError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(LaunchError::Thread)?;
    let run = move || runtime.block_on(run(&config, servers, &ready_sender, stopped));
    Builder::new().name("launch".to_owned()).spawn(run).map_err(LaunchError::Thread)
}

/// Starts the servers, reports the result of the start, and keeps the servers running until the fleet is dropped. Stops the servers when
/// the fleet is dropped or the start fails.
async fn run(
    config: &LaunchConfig,
    mut servers: Vec<LaunchedServer>,
    ready_sender: &Sender<Result<(), LaunchError>>,
    stopped: oneshot::Receiver<()>,
) {
    let ready = start(config, &mut servers).await;
    if ready.is_ok() {
        // The receiver waits for this message.
        let _gone = ready_sender.send(Ok(()));
        let keep_running = join_all(servers.iter_mut().map(LaunchedServer::keep_running));
        tokio::select! {
            _never = keep_running => {}
            _dropped = stopped => {}
        }
    }
    join_all(servers.iter_mut().map(LaunchedServer::stop)).await;
    if ready.is_err() {
        let _gone = ready_sender.send(ready);
    }
}

/// Starts all servers and waits until each server is ready or the timeout has expired. Fails if a process cannot start or ends during the
/// wait, or if no server is ready after it. Logs the other servers that are not ready.
async fn start(config: &LaunchConfig, servers: &mut [LaunchedServer]) -> Result<(), LaunchError> {
    servers.iter_mut().try_for_each(|server| server.start("start 1"))?;
    let fleet = Barrier::new(servers.len());
    let late =
        try_join_all(servers.iter_mut().map(|server| server.wait_until_ready(&fleet))).await?;
    let is_any_ready = late.iter().any(Option::is_none);
    let late = late.into_iter().enumerate();
    let mut late = late.filter_map(|(server, error)| Some((server, error?)));
    let (waited, logs) = (config.timeout, &config.log_folder);
    if !is_any_ready && let Some((_, last)) = late.next_back() {
        return Err(LaunchError::Unreachable { waited, last, logs: logs.clone() });
    }
    for (server, error) in late {
        let logs = logs.display();
        tracing::warn!(server, ?waited, %error, %logs, "an inference server was not ready in time; the others start without it");
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::io::Write;
    use std::path::Path;
    use std::time::Duration;

    use rollpacker_dataflow::clock::{Clock, Nanos, WallClock};

    use super::*;
    use crate::server::Protocol;

    fn wait_for(file: &Path) -> String {
        let clock = WallClock::start();
        loop {
            match fs::read_to_string(file) {
                Ok(text) if text.ends_with('\n') => return text,
                _ => std::thread::yield_now(),
            }
            assert!(clock.now() < Nanos::from_secs_f64(60.0), "{} is written", file.display());
        }
    }

    #[test]
    fn a_server_that_answers_and_ends_while_others_start_makes_the_start_fail() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        // The server 1 never answers. The test answers for the server 0, which then ends.
        let script = "[ {index} = 1 ] && exec sleep 600; echo {port} > port; until [ -e answered ]; do sleep 0.05; done; exit 7";
        let script = format!("cd '{}'; {script}", folder.path().display());
        let config = LaunchConfig {
            protocol: Protocol::Sglang,
            command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
            count: 2,
            env: [].into(),
            api_key_env: None,
            model_folder: "model".into(),
            log_folder: path("logs"),
            timeout: Duration::from_secs(20),
        };
        let start = std::thread::spawn(move || Fleet::start(config));
        let port: u16 = wait_for(&path("port")).trim().parse().expect("a port");
        let listener = TcpListener::bind(("127.0.0.1", port)).expect("a free port");
        let (mut stream, _) = listener.accept().expect("a health check");
        let answer = b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\n\r\n";
        stream.write_all(answer).expect("a client that reads");
        fs::write(path("answered"), "").expect("a file");
        let error = start.join().expect("no panic").expect_err("a server ended");
        assert!(matches!(&error, LaunchError::Ended { server: 0, .. }), "{error}");
        assert!(error.to_string().contains("exit status: 7"), "{error}");
    }
}
