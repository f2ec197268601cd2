//! The stages of a simulated cluster: a rollout engine, a trainer and rewards that take virtual time, and the cost model behind them.
//!
//! Architecture invariant: no operators, no wall clock.

pub mod cluster;
pub mod profile;
pub mod reward;
pub mod rollout;
pub mod train;
