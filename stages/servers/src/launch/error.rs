//! The reasons why servers cannot be started.

use std::io;
use std::path::PathBuf;
use std::process::ExitStatus;
use std::time::Duration;

use crate::http::{AddressError, ServerError};

/// The reason why servers cannot be started. Its messages contain no secrets.
#[derive(Debug, thiserror::Error)]
pub enum LaunchError {
    /// A field of the configuration is out of bounds.
    #[error("`{field}`: expected {expected}, found {found}")]
    Config {
        /// The name of the field.
        field: &'static str,
        /// A description of the valid values.
        expected: &'static str,
        /// The value that was found, without secrets.
        found: String,
    },
    /// The log of a server cannot be written.
    #[error("cannot write the log of a server, {path}: {error}")]
    Log {
        /// The path of the log.
        path: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// No port is free.
    #[error("cannot find a free port on 127.0.0.1: {0}")]
    Port(io::Error),
    /// The process of a server cannot be started, or its exit status cannot be read.
    #[error("cannot start the server {server}, `{command}`: {error}")]
    Spawn {
        /// The number of the server, from 0.
        server: usize,
        /// The command without secrets.
        command: String,
        /// The cause.
        error: io::Error,
    },
    /// A server ended before all servers were ready.
    #[error("the server {server}, `{command}`, ended before all servers were ready, with {status}; {}", quote(.log, .last_lines))]
    Ended {
        /// The number of the server, from 0.
        server: usize,
        /// The command without secrets.
        command: String,
        /// The exit status.
        status: ExitStatus,
        /// The file with the output of the server.
        log: PathBuf,
        /// The last lines of the output, without secrets.
        last_lines: String,
    },
    /// No server was ready in time.
    #[error("no server was ready after {waited:?}; the last error: {last}; the logs are in {logs}")]
    Unreachable {
        /// The time limit.
        waited: Duration,
        /// The last error of the server with the highest number.
        last: ServerError,
        /// The folder of the logs.
        logs: PathBuf,
    },
    /// The URL or the API key of a server cannot be used, or its HTTP client cannot start.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The thread that watches the servers cannot start, or it panicked.
    #[error("cannot start a thread to watch servers: {0}")]
    Thread(io::Error),
}

fn quote(log: &std::path::Path, last_lines: &str) -> String {
    match last_lines {
        "" => format!("it wrote nothing to {}", log.display()),
        lines => format!("the last lines of {}:\n{lines}", log.display()),
    }
}
