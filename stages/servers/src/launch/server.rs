//! One server: its start, the wait until it is ready, and its restarts.

use std::convert::Infallible;
use std::io;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::time::Instant;

use super::config::{LaunchConfig, Slot};
use super::error::LaunchError;
use super::log::Log;
use super::process::Process;
use crate::breaker::Breaker;
use crate::http::{Endpoint, ServerError};
use crate::server::{Limits, Server};

/// The time between two attempts to reach a server that starts.
const INTERVAL: Duration = Duration::from_millis(200);
/// A server that ran for so long is started again at once when it ends.
const STEADY: Duration = Duration::from_secs(60);

/// A server that this program starts.
pub(super) struct LaunchedServer {
    config: Arc<LaunchConfig>,
    slot: Slot,
    client: Server,
    log: Log,
    /// The number of times that a server of the fleet was started again.
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

    /// Starts the process.
    pub(super) fn start(&mut self, title: &str) -> Result<(), LaunchError> {
        let title = format!("{title} on port {}", self.slot.port);
        let log = self.log.open(&title).map_err(|error| {
            let path = self.log.path().to_owned();
            LaunchError::Log { path, error }
        })?;
        let (command, variables) =
            (self.config.command(self.slot), self.config.variables(self.slot));
        let process = Process::start(&command, &variables, &log).map_err(|error| {
            let (server, command) = (self.slot.index, self.config.shown());
            LaunchError::Spawn { server, command, error }
        })?;
        self.process = Some(process);
        Ok(())
    }

    /// Waits until the server answers. Returns its last error if it does not answer in time.
    ///
    /// # Errors
    /// If the process ends before it answers.
    pub(super) async fn ready(&mut self) -> Result<Option<ServerError>, LaunchError> {
        let waited = self.config.timeout;
        let mut last = ServerError::Stalled { server: self.client.name(), waited };
        let client = self.client.clone();
        let answer = tokio::time::timeout(waited, answered(&client, &mut last));
        let answer = tokio::select! {
            biased;
            status = ended(&mut self.process) => match status {
                Ok(status) => return Err(self.ended_early(status)),
                Err(source) => return Err(self.lost(source)),
            },
            answer = answer => answer,
        };
        Ok(answer.is_err().then_some(last))
    }

    fn ended_early(&self, status: ExitStatus) -> LaunchError {
        LaunchError::Ended {
            server: self.slot.index,
            command: self.config.shown(),
            status,
            log: self.log.path().to_owned(),
            last_lines: self.log.last_lines(),
        }
    }

    fn lost(&self, error: io::Error) -> LaunchError {
        LaunchError::Spawn { server: self.slot.index, command: self.config.shown(), error }
    }

    /// Starts the server again whenever it ends: at once, and after a growing time if it ends again and again.
    pub(super) async fn keep_running(&mut self) -> Infallible {
        let breaker = Breaker::default();
        let mut starts = 1;
        loop {
            let begin = Instant::now();
            let status = ended(&mut self.process).await;
            if begin.elapsed() >= STEADY {
                breaker.succeeded();
            }
            breaker.failed();
            breaker.permitted().await;
            starts += 1;
            self.start_again(&status, starts);
        }
    }

    fn start_again(&mut self, status: &io::Result<ExitStatus>, starts: u64) {
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

    /// Ends the process.
    pub(super) async fn stop(&mut self) {
        if let Some(process) = &mut self.process {
            process.stop().await;
        }
    }
}

/// Waits for the end of a process.
async fn ended(process: &mut Option<Process>) -> io::Result<ExitStatus> {
    match process {
        Some(process) => process.ended().await,
        None => Err(io::Error::other("it did not start")),
    }
}

/// Waits until a server answers. A permanent error counts as an answer: the engine reports it.
async fn answered(client: &Server, last: &mut ServerError) {
    while let Err(error) = client.identity().await {
        if !error.is_retryable() {
            return;
        }
        *last = error;
        tokio::time::sleep(INTERVAL).await;
    }
}
