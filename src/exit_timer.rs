//! Ends the process of a failed run whose stages hang.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use rollpacker_dataflow::exit::exit_now;

use crate::terminal;

/// A timer that ends the process if a failed run does not end by itself. A failed run waits for the threads of its stages, one of which may
/// hang.
pub(crate) struct ExitTimer(
    #[expect(dead_code, reason = "the thread ends when it is dropped")] mpsc::Sender<()>,
);

impl ExitTimer {
    /// Starts a timer that, after `time`, prints `error` and ends the process with exit status 1. Dropping the value stops the timer.
    pub(crate) fn begin(time: Duration, error: String) -> Self {
        let (end, ended) = mpsc::channel();
        let wait = move || {
            if ended.recv_timeout(time) == Err(RecvTimeoutError::Timeout) {
                terminal::warn(&format!("error: {error}; a stage did not end within {time:?}"));
                exit_now(1);
            }
        };
        // Without a thread there is no timer, and the user has to kill a process that hangs.
        drop(std::thread::Builder::new().name("grace".to_owned()).spawn(wait));
        Self(end)
    }
}
