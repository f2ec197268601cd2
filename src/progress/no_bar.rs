//! A replacement for the progress bar in a program without the feature `cli`, which draws none.

/// Returns `None`, as for an output that is not a terminal.
pub(super) fn terminal_width() -> Option<usize> {
    None
}

/// A progress bar that cannot be created.
pub(super) enum Bar {}

impl Bar {
    pub(super) fn of_steps(_: u64) -> Option<Self> {
        None
    }

    pub(super) fn of_rows() -> Option<Self> {
        None
    }

    pub(super) fn set_message(&self, _: &str) {
        match *self {}
    }

    pub(super) fn set_length(&self, _: u64) {
        match *self {}
    }

    pub(super) fn set_position(&self, _: u64) {
        match *self {}
    }

    pub(super) fn suspend(&self, _: impl FnOnce()) {
        match *self {}
    }

    pub(super) fn clear(&self) {
        match *self {}
    }
}
