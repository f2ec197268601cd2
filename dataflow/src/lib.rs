//! The foundation of RollPacker: Arrow record batches on timely streams.
//!
//! An RL step is one timestamp, [`step::Step`]. Operators exchange [`batch::Batch`]es of the schemas in [`schema`] on timely streams, and
//! the frontier reports when a step is complete; there are no barriers. [`operator::Operator`] builds operators on streams. [`bridge`]
//! connects operators to tokio tasks and to threads that own a value. [`feedback`] closes the loop from the weights of one step to the
//! rollout of the next. [`fault`] carries errors as rows. [`snapshot`] stores the state from which a killed run resumes. [`watchdog`]
//! reports what a stalled graph waits for. [`mod@exit`] ends a process from any thread. [`runtime`] runs the graph until it ends or fails,
//! and [`cluster`] runs it on the threads of several processes.
//!
//! Architecture invariant: this crate contains no RL decision, no model and no HTTP.

pub mod batch;
pub mod bridge;
pub mod budget;
pub mod clock;
pub mod cluster;
pub mod exit;
pub mod fault;
pub mod feedback;
pub mod frontier;
pub mod operator;
pub mod route;
pub mod runtime;
pub mod schema;
pub mod shared_list;
pub mod snapshot;
pub mod step;
pub mod telemetry;
pub mod watchdog;

pub use differential_dataflow;
pub use timely;

/// An error of any type, for functions that users provide. `?` converts any error to it, and `into` converts text.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;
