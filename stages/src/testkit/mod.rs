//! Conformance checks: each runs an implementation of a contract in a small simulated environment.
//!
//! [`check_engine`] checks a [`RolloutEngine`](crate::rollout::RolloutEngine), [`check_reward`] a [`Reward`](crate::reward::Reward), and
//! [`check_trainer`] a [`Trainer`](crate::train::Trainer). They are meant for the tests of a custom stage: the first rule that does not
//! hold is returned as a [`Nonconformance`], before a run depends on it.

mod engine;
mod reward;
mod trainer;

#[cfg(test)]
mod tests;

pub use engine::{EngineWorld, check_engine};
pub use reward::{RewardWorld, check_reward};
pub use trainer::{TrainerWorld, check_trainer};

/// A rule of a contract that an implementation does not keep.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{rule}: {found}")]
pub struct Nonconformance {
    /// The rule, in the words of the contract.
    pub rule: &'static str,
    /// The behaviour of the implementation that breaks the rule.
    pub found: String,
}

impl Nonconformance {
    /// Returns the error that `found` breaks `rule`.
    pub fn new(rule: &'static str, found: impl std::fmt::Display) -> Self {
        Self { rule, found: found.to_string() }
    }

    /// Returns a function that wraps an error, for `map_err`.
    fn of<E: std::fmt::Display>(rule: &'static str) -> impl FnOnce(E) -> Self {
        move |error| Self::new(rule, error)
    }
}
