//! The ground of RollPacker: Arrow record batches on timely streams.
//!
//! An RL step is one timestamp, [`step::Step`]. Operators exchange [`batch::Batch`]es of the schemas in [`schema`] on timely streams,
//! and the frontier says when a step is complete; nothing waits on a barrier. [`operator::Operator`] puts logic on streams,
//! [`bridge`] joins it to tokio tasks and to threads that own something, [`feedback`] closes the loop from one step's weights to the
//! next step's rollout, [`fault`] carries errors as rows, [`snapshot`] keeps what a killed run resumes from, [`watchdog`] says what a
//! silent graph waits for, [`mod@exit`] ends a process from any thread, [`runtime`] runs the graph until it ends or fails, and [`cluster`]
//! runs it on the threads of several processes.
//!
//! Architecture invariant: no RL decision, no model and no network protocol in this crate.

pub mod batch;
pub mod bridge;
pub mod budget;
pub mod clock;
pub mod cluster;
pub mod exit;
pub mod fault;
pub mod feedback;
pub mod operator;
pub mod route;
pub mod runtime;
pub mod schema;
pub mod snapshot;
pub mod step;
pub mod telemetry;
pub mod watchdog;

pub use differential_dataflow;
pub use timely;
