//! Bridges between operators and blocking work: futures, threads that own a value, threads that produce batches.
//!
//! All bridges work the same way. The operator keeps a capability for each piece of work in flight and hands the work out. When a result is
//! ready, a [`SyncActivator`](timely::scheduling::SyncActivator) wakes the operator, which sends the result at the capability that it kept.
//! Capabilities never leave the worker. Dropping [`Tasks`] cancels its futures; dropping a [`ServiceThread`] or the operator of a producer
//! waits until the thread has ended. With a wall clock, no work runs on the worker's own thread, because a slow future would stall every
//! operator on that worker. In virtual time, all work runs on the worker's thread, and time advances only while no work runs.

mod cancellable;
mod panicked;
mod producer;
mod service;
mod task_runtime;
mod tasks;

pub use panicked::{CallError, Panicked};
pub use producer::{Emitter, produce, produce_inline};
pub use service::{Reply, Service, ServiceThread, VirtualService};
pub use task_runtime::TaskRuntime;
pub use tasks::{Executor, Tasks};
