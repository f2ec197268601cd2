//! Bridges between operators and blocking work: futures, threads that own a value, threads that produce batches.
//!
//! All bridges work the same way. The operator keeps a capability for each piece of work in flight and hands the work out. When a result is
//! ready, a [`SyncActivator`](timely::scheduling::SyncActivator) wakes the operator, which sends the result at the capability that it kept.
//! Capabilities never leave the worker. Dropping the owner of handed-out work cancels the work. With a wall clock, no work runs on the
//! worker's own thread, because a slow future would stall every operator on that worker. In virtual time, all work runs there, and time
//! does not advance meanwhile.

mod cancellable;
mod owner;
mod producer;
mod tasks;

pub use owner::{Owner, OwnerThread, Reply, VirtualOwner};
pub use producer::{Emitter, produce, produce_inline};
pub use tasks::{Executor, Tasks};

/// The thread or task that should have replied panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread or task that ran the request panicked")]
pub struct Panicked;

/// Calls a function when it is dropped, also while a thread unwinds.
struct WakeOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for WakeOnDrop<F> {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}
