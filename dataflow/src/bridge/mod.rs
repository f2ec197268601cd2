//! Between operators and the world that waits: futures, owners that work for a while, threads that produce.
//!
//! The shape is always the same: the operator keeps a capability for each thing under way, hands the work out, and is woken by a
//! [`SyncActivator`](timely::scheduling::SyncActivator) when an answer is there; it gives the answer out at the capability that it kept.
//! Capabilities never leave the worker. What was handed out is given up when its owner is dropped. Live, nothing runs on the worker's own
//! thread: a slow future would stall every operator on it. In virtual time everything does, and time stands still meanwhile.

mod cancellable;
mod owner;
mod produce;
mod tasks;

pub use owner::{Owner, OwnerThread, Reply, VirtualOwner};
pub use produce::{Emitter, produce, produce_inline};
pub use tasks::{Executor, Tasks};

/// The thread or task that should have answered is gone: it panicked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the thread or task that was asked panicked")]
pub struct Lost;

/// Calls something when it is dropped, also by a thread that unwinds.
struct WakeOnDrop<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for WakeOnDrop<F> {
    fn drop(&mut self) {
        if let Some(wake) = self.0.take() {
            wake();
        }
    }
}
