//! Panics of the threads and tasks that run requests.

use crate::fault::{FaultKind, HasOrigin, Origin};

/// The error of a request whose thread or task ended before it replied, usually by a panic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread or task that ran the request panicked")]
pub struct Panicked;

/// The reason why a request has no result.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError<E> {
    /// The work returned an error.
    #[error(transparent)]
    Failed(E),
    /// The thread or task that ran the work panicked.
    #[error(transparent)]
    Panicked(#[from] Panicked),
}

impl HasOrigin for Panicked {
    fn origin(&self) -> Origin {
        Origin::Program
    }
}

impl<E: HasOrigin + std::error::Error> HasOrigin for CallError<E> {
    fn origin(&self) -> Origin {
        match self {
            Self::Failed(error) => error.origin(),
            Self::Panicked(error) => error.origin(),
        }
    }

    fn kind(&self) -> FaultKind {
        match self {
            Self::Failed(error) => error.kind(),
            Self::Panicked(error) => error.kind(),
        }
    }
}

/// A guard that calls a function when it is dropped, also while a thread unwinds.
pub(super) struct WakeOnDrop<F: FnOnce()>(pub(super) Option<F>);

impl<F: FnOnce()> Drop for WakeOnDrop<F> {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}
