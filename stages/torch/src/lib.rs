//! The stages on libtorch: the model, a rollout engine, a trainer, an in-process judge, and an engine for servers.
//!
//! Architecture invariant: no scheduling decisions.

pub mod judge;
pub mod model;
pub mod rollout;
pub mod serving;
pub mod train;
