//! The stages on libtorch: the model, a rollout engine, a trainer, and a judge in process.
//!
//! Architecture invariant: no scheduling decisions.

pub mod judge;
pub mod model;
pub mod rollout;
pub mod train;
