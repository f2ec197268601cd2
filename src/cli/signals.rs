//! The handling of the signals that end a command: SIGINT, SIGTERM and SIGHUP.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Context;
use rollpacker_dataflow::exit::exit_now;
#[cfg(feature = "servers")]
use tokio::sync::watch;

use crate::terminal;

/// Exit status after a second signal: 128 plus the number of SIGINT, which is 2, as in shells.
pub(super) const INTERRUPTED: u8 = 130;

/// Calls `stop` and prints `notice` at the first signal. A second signal ends the process at once, with exit status [`INTERRUPTED`].
///
/// # Errors
/// If the process already has a handler, or the system rejects it.
pub(crate) fn on_signal(
    notice: &'static str,
    stop: impl Fn() + Send + 'static,
) -> anyhow::Result<()> {
    let signalled_once = AtomicBool::new(false);
    let handler = move || {
        if signalled_once.swap(true, Ordering::Relaxed) {
            exit_now(INTERRUPTED.into());
        }
        stop();
        terminal::warn(notice);
    };
    ctrlc::set_handler(handler).context("cannot listen for signals")
}

/// Returns a receiver whose value becomes `true` at the first signal; see [`on_signal`].
#[cfg(feature = "servers")]
pub(crate) fn watch_signals(notice: &'static str) -> anyhow::Result<watch::Receiver<bool>> {
    let (stop, stopping) = watch::channel(false);
    on_signal(notice, move || {
        stop.send_replace(true);
    })?;
    Ok(stopping)
}
