//! The threads of the commands that serve HTTP.

use anyhow::Context;

/// Returns a runtime with two threads for an HTTP server.
pub(super) fn server_runtime() -> anyhow::Result<tokio::runtime::Runtime> {
    let threads = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("http")
        .enable_all()
        .build();
    threads.context("cannot start the threads of the server")
}
