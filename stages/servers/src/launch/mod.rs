//! Servers as processes of this program: started, watched and stopped by it.
//!
//! A [`Fleet`] starts a command several times, each on a free port of 127.0.0.1, and waits until the servers answer. A process that ends
//! before it is ready is an error; one that ends later is started again on the same port. The engine moves its responses in the meantime
//! and delivers the weights when it answers again, as for a server that is restarted from outside.
//!
//! No server outlives this process, however it ends: each server has a process group with a guard, which kills the group when this process
//! is gone. A child of a server that leaves the group, such as one that calls `setsid`, must end by itself.

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
use tokio::sync::oneshot;

use self::config::Slot;
pub use self::config::{LaunchConfig, MOST_SERVERS, Refusal};
pub use self::error::LaunchError;
use self::server::LaunchedServer;

/// Running servers. They are stopped on drop, which waits until they have ended, for at most ten seconds.
#[derive(Debug)]
pub struct Fleet {
    urls: Vec<String>,
    restarts: Arc<AtomicU64>,
    /// Dropped to stop the servers.
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Fleet {
    /// Starts the servers and waits until all answer. After the timeout, one is enough; the others may join later.
    ///
    /// # Errors
    /// If the configuration is out of bounds, a server cannot be started or ends before it is ready, or none is ready in time. No server
    /// runs then.
    pub fn start(config: LaunchConfig) -> Result<Self, LaunchError> {
        config.check().map_err(|(field, expected, found)| LaunchError::Config {
            field,
            expected,
            found,
        })?;
        config.keep_secrets();
        let slots = slots(config.count).map_err(LaunchError::Port)?;
        let urls = slots.iter().map(|slot| slot.url()).collect();
        let restarts = Arc::<AtomicU64>::default();
        let config = Arc::new(config);
        let new = |slot| LaunchedServer::new(Arc::clone(&config), slot, Arc::clone(&restarts));
        let servers = slots.into_iter().map(new).collect::<Result<_, _>>()?;
        let (ready_sender, ready) = channel();
        let (stop, stopped) = oneshot::channel();
        let thread = watch(Arc::clone(&config), servers, ready_sender, stopped)?;
        let mut fleet = Self { urls, restarts, stop: Some(stop), thread: Some(thread) };
        match ready.recv() {
            Ok(Ok(())) => Ok(fleet),
            Ok(Err(error)) => Err(error),
            Err(_) => Err(fleet.join().expect_err("invariant: only a panic drops the channel")),
        }
    }

    /// Returns the URLs of the servers.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.urls.clone()
    }

    /// Returns the counter of the times that a server was started again.
    #[must_use]
    pub fn restarts(&self) -> Restarts {
        Restarts(Arc::clone(&self.restarts))
    }

    /// Waits for the end of the thread.
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

/// The number of times that a server was started again.
#[derive(Clone, Debug)]
pub struct Restarts(Arc<AtomicU64>);

impl Restarts {
    /// Returns the number since the last call.
    #[must_use]
    pub fn take(&self) -> u64 {
        self.0.swap(0, Ordering::Relaxed)
    }
}

/// Returns servers with ports that are free. All ports are held until the last one is chosen, so that they differ.
fn slots(count: usize) -> io::Result<Vec<Slot>> {
    let held = (0..count).map(|_| TcpListener::bind(("127.0.0.1", 0)));
    let held = held.collect::<io::Result<Vec<TcpListener>>>()?;
    let slot = |(index, listener): (usize, &TcpListener)| {
        Ok(Slot { index, port: listener.local_addr()?.port() })
    };
    held.iter().enumerate().map(slot).collect()
}

/// Starts the thread that owns the processes.
fn watch(
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

/// Starts the servers, reports when they are ready, and keeps them running until the fleet is dropped.
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

/// Starts all servers and waits until they are ready.
async fn start(config: &LaunchConfig, servers: &mut [LaunchedServer]) -> Result<(), LaunchError> {
    servers.iter_mut().try_for_each(|server| server.start("start 1"))?;
    let late = try_join_all(servers.iter_mut().map(LaunchedServer::ready)).await?;
    let is_any_ready = late.iter().any(Option::is_none);
    match late.into_iter().flatten().next_back() {
        Some(last) if !is_any_ready => {
            let (waited, logs) = (config.timeout, config.log_folder.clone());
            Err(LaunchError::Absent { waited, last, logs })
        }
        _ => Ok(()),
    }
}
