//! A progress bar on standard error.

use std::io::IsTerminal;
use std::time::Duration;

use console::Term;
use indicatif::{ProgressBar, ProgressStyle};

/// Returns the width of standard output in characters; `None` if it is not a terminal.
pub(super) fn terminal_width() -> Option<usize> {
    Term::stdout().size_checked().map(|(_, width)| usize::from(width))
}

/// A line with a progress bar, which is redrawn in place.
pub(super) struct Bar(ProgressBar);

impl Bar {
    /// Draws a bar over the steps of a run; `None` if standard error is not a terminal.
    pub(super) fn of_steps(steps: u64) -> Option<Self> {
        let bar = Self::new("{bar:20} {pos}/{len} {wide_msg} (eta {eta})")?;
        bar.set_length(steps);
        bar.0.enable_steady_tick(Duration::from_millis(250));
        Some(bar)
    }

    /// Draws a bar over the rows of a file; `None` if standard error is not a terminal.
    pub(super) fn of_rows() -> Option<Self> {
        Self::new("{bar:20} {pos}/{len} rows, {per_sec} (eta {eta})")
    }

    fn new(template: &str) -> Option<Self> {
        let style = ProgressStyle::with_template(template);
        let style = style.expect("invariant: the template is valid");
        let is_shown = std::io::stderr().is_terminal();
        is_shown.then(|| Self(ProgressBar::no_length().with_style(style)))
    }

    pub(super) fn set_message(&self, message: &str) {
        self.0.set_message(message.to_owned());
    }

    pub(super) fn set_length(&self, length: u64) {
        self.0.set_length(length);
    }

    pub(super) fn set_position(&self, position: u64) {
        self.0.set_position(position);
    }

    /// Removes the bar while `print` prints lines of text, and draws it below them.
    pub(super) fn suspend(&self, print: impl FnOnce()) {
        self.0.suspend(print);
    }

    /// Ends the bar and removes it.
    pub(super) fn clear(&self) {
        self.0.finish_and_clear();
    }
}
