//! The contracts of the stages of an RL step: the traits of rollout engines, rewards and trainers, with their value types.
//!
//! [`catalog`] makes entries by the names that recipes use. The implementations are in crates of their own, which depend on this one.
//! [`testkit`] checks an implementation against its contract.
//!
//! Architecture invariant: no libtorch, no HTTP, no timely streams and no scheduling decisions in this crate.

pub mod catalog;
pub mod device;
pub mod documented;
pub mod draw;
pub mod fields;
#[cfg(test)]
mod generated_page;
pub mod metrics;
pub mod reward;
pub mod rollout;
pub mod secret;
pub mod serving;
pub mod shape;
pub mod testkit;
pub mod train;
pub mod wrong_value;
