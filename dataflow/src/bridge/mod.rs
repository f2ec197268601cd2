//! Bridges between operators and blocking work: futures, threads that own a value, threads that produce batches.
//!
//! All bridges work the same way. The operator keeps a capability for each piece of work in flight and hands the work out. When a result is
//! ready, a [`SyncActivator`](timely::scheduling::SyncActivator) wakes the operator, which sends the result at the capability that it kept.
//! Capabilities never leave the worker. Dropping the owner of handed-out work cancels the work. With a wall clock, no work runs on the
//! worker's own thread, because a slow future would stall every operator on that worker. In virtual time, all work runs there, and time
//! does not advance meanwhile.

mod cancellable;
mod owner;
mod panicked;
mod producer;
mod tasks;

pub use owner::{Owner, OwnerThread, Reply, VirtualOwner};
pub use panicked::{CallError, Panicked};
pub use producer::{Emitter, produce, produce_inline};
pub use tasks::{Executor, Tasks};
