//! One server: its start, the wait until it is ready, and its restarts.

use std::convert::Infallible;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::Barrier;
use tokio::time::Instant;

use super::config::{LaunchConfig, Slot};
use super::error::LaunchError;
use super::log::Log;
use super::process::Process;
use crate::breaker::Breaker;
use crate::http::{Endpoint, ServerError};
use crate::server::{Limits, Server};

/// The time between two attempts to reach a server that starts.
const RETRY_INTERVAL: Duration = Duration::from_millis(200);
/// The running time after which earlier failures no longer count. A server that ends after this time is started again immediately.
const STABLE_TIME: Duration = Duration::from_secs(60);

pub(super) struct LaunchedServer {
    config: Arc<LaunchConfig>,
    slot: Slot,
    client: Server,
    log: Log,
    /// The number of restarts of all servers of the fleet.
    restarts: Arc<AtomicU64>,
    process: Option<Process>,
}

impl LaunchedServer {
    /// Creates a server that does not run yet.
    pub(super) fn new(
        config: Arc<LaunchConfig>,
        slot: Slot,
        restarts: Arc<AtomicU64>,
    ) -> Result<Self, LaunchError> {
        let endpoint = Endpoint::new(&slot.url(), config.api_key_env.as_deref())?;
        let client = Server::new(config.protocol, endpoint, Limits::default());
        let log = Log::new(config.log_folder.join(format!("{}.log", slot.index)));
        Ok(Self { config, slot, client, log, restarts, process: None })
    }

    /// Starts the process. A line with `title` and the port precedes its output in the log.
    pub(super) fn start(&mut self, title: &str) -> Result<(), LaunchError> {
        let title = format!("{title} on port {}", self.slot.port);
        let log = self.log.open(&title).map_err(|error| {
            let path = self.log.path().to_owned();
            LaunchError::Log { path, error }
        })?;
        let (command, variables) =
            (self.config.command(self.slot), self.config.variables(self.slot));
        let process = Process::start(&command, &variables, &log).map_err(|error| {
            let (server, command) = (self.slot.index, self.config.redacted_command());
            LaunchError::Spawn { server, command, error }
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until the server answers or the timeout expires; a permanent error counts as an answer. Then waits at `fleet`, the barrier of
    /// all servers. Returns the last error if the server does not answer in time, or else `None`.
    ///
    /// # Errors
    /// Returns an error if the process ends during the wait, or its exit status cannot be read.
    pub(super) async fn wait_until_ready(
        &mut self,
        fleet: &Barrier,
    ) -> Result<Option<ServerError>, LaunchError> {
        let waited = self.config.timeout;
        let mut last = ServerError::Stalled { server: self.client.name(), waited };
        let client = self.client.clone();
        let answer = async {
            let answer = tokio::time::timeout(waited, wait_for_answer(&client, &mut last)).await;
            fleet.wait().await;
            answer
        };
        let answer = tokio::select! {
            biased;
            status = wait(&mut self.process) => match status {
                Ok(status) => return Err(self.early_end_error(status)),
                Err(source) => return Err(self.wait_error(source)),
            },
            answer = answer => answer,
        };
        Ok(answer.is_err().then_some(last))
    }

    fn early_end_error(&self, status: ExitStatus) -> LaunchError {
        LaunchError::Ended {
            server: self.slot.index,
            command: self.config.redacted_command(),
            status,
            log: self.log.path().to_owned(),
            last_lines: self.log.last_lines(),
        }
    }

    fn wait_error(&self, error: io::Error) -> LaunchError {
        LaunchError::Spawn {
            server: self.slot.index,
            command: self.config.redacted_command(),
            error,
        }
    }

    /// Starts the server again whenever it ends: immediately, or after a growing delay if it ends repeatedly (see `Breaker`).
    pub(super) async fn keep_running(&mut self) -> Infallible {
        let breaker = Breaker::default();
        let mut starts = 1;
        loop {
            let begin = Instant::now();
            let status = wait(&mut self.process).await;
            if begin.elapsed() >= STABLE_TIME {
                breaker.record_success();
            }
            breaker.record_failure();
            breaker.wait_until_permitted().await;
            starts += 1;
            self.restart(&status, starts);
        }
    }

    fn restart(&mut self, status: &io::Result<ExitStatus>, starts: u64) {
        let ended = match status {
            Ok(status) => status.to_string(),
            Err(error) => error.to_string(),
        };
        let (server, url) = (self.slot.index, self.slot.url());
        tracing::warn!(server, url, ended, "an inference server ended and is started again");
        self.restarts.fetch_add(1, Ordering::Relaxed);
        self.process = None;
        if let Err(error) = self.start(&format!("ended with {ended}; start {starts}")) {
            tracing::warn!(server, %error, "an inference server cannot be started again");
        }
    }

    /// Ends the process, if there is one.
    pub(super) async fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            process.stop().await;
        }
    }
}

/// Waits for the end of a process. Fails if `process` is `None`.
async fn wait(process: &mut Option<Process>) -> io::Result<ExitStatus> {
    match process {
        Some(process) => process.wait().await,
        None => Err(io::Error::other("it did not start")),
    }
}

/// Waits until a server answers. A permanent error counts as an answer: the engine reports it. Each temporary error is stored in `last`.
async fn wait_for_answer(client: &Server, last: &mut ServerError) {
    while let Err(error) = client.identity().await {
        if !error.is_retryable() {
            return;
        }
        *last = error;
        tokio::time::sleep(RETRY_INTERVAL).await;
    }
}
