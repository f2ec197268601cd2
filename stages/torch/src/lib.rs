//! The stages on libtorch: the model, a rollout engine, a trainer, an in-process judge, and an engine for servers.
//!
//! Architecture invariant: no scheduling decisions in this crate. An instance only orders the responses that it was sent.

pub mod judge;
pub mod model;
pub mod rollout;
pub mod serving;
pub mod train;
