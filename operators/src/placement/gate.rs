//! When waiting groups are handed to the trainer.
//!
//! The placement says how many devices train; the gradient operator asks its gate how many of the waiting groups may go. The option lives
//! with the gradient, not with the policy: a policy decides the same whichever way groups are fetched.

use serde::{Deserialize, Serialize};

use super::{Decision, Reason};

/// How the trainer fetches groups while responses still run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Fetch {
    /// Each as soon as it is complete.
    #[default]
    Stream,
    /// Those that wait when devices are freed, in one go; the rest when the rollout is drained (RollPacker, Table 4).
    Once,
}

/// Holds groups back while no device trains, or a single fetch has been made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gate {
    fetch: Fetch,
    opening: Opening,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Opening {
    Shut,
    /// For the one fetch of the round.
    Once,
    /// The one fetch was made.
    Spent,
    Open,
}

impl Gate {
    /// A gate that is shut until a placement opens it.
    #[must_use]
    pub fn new(fetch: Fetch) -> Self {
        Self { fetch, opening: Opening::Shut }
    }

    /// Takes in a placement.
    pub fn place(&mut self, decision: &Decision) {
        let is_early = matches!(decision.reason, Reason::ScaleDown | Reason::Consolidate);
        self.opening = match (self.opening, self.fetch) {
            _ if decision.training_devices == 0 => Opening::Shut,
            (Opening::Shut, Fetch::Once) if is_early => Opening::Once,
            (same, Fetch::Once) if is_early => same,
            _ => Opening::Open,
        };
    }

    /// How many of `waiting` groups may go to the trainer now.
    pub fn pass(&mut self, waiting: usize) -> usize {
        match self.opening {
            Opening::Shut | Opening::Spent => 0,
            Opening::Open => waiting,
            Opening::Once => {
                self.opening = Opening::Spent;
                waiting
            }
        }
    }
}
