//! Placement: which devices generate, which train, and how the generating ones are sharded.
//!
//! A placement policy is pure, like a schedule: it is told what happens in the rounds with the time at which it happened, and drained of
//! decisions. Time-sharing of all devices between rollout and training, separate pools, the stream trainer's scale-down and the
//! parallelism planner are policies of this kind.

pub mod cost;
pub mod drift;
mod error;
pub mod fixed;
mod forecast;
pub(crate) mod operator;
pub mod options;
pub mod planner;
pub mod profile;
mod progress;
pub mod scale_down;
mod tail;

#[cfg(test)]
mod tests;

pub use cost::{Job, StepCost};
pub use error::PlacementError;
pub use fixed::{Colocated, Separate, Shared};
pub use options::{Options, Rounds, Trigger};
pub use planner::Planner;
pub use profile::Profile;
pub use progress::Load;
pub use scale_down::StreamTrainer;

use std::fmt;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, Placement};
use serde::{Deserialize, Serialize};

use crate::schedule::Round;

/// What a placement policy is told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The weights for `step` are published.
    Policy {
        /// The step.
        step: Step,
    },
    /// The round of a step opened.
    Opened {
        /// The step.
        step: Step,
        /// What kind of round.
        round: Round,
    },
    /// Responses were asked for.
    Launched {
        /// The step.
        step: Step,
        /// The prompt.
        prompt: PromptId,
        /// How many.
        samples: u32,
        /// Tokens of the prompt.
        prompt_length: u32,
    },
    /// A response ended or was dropped.
    Response {
        /// Which.
        id: SampleId,
        /// Sampled tokens.
        tokens: u32,
        /// How many of them an earlier step had sampled, before the response was paused.
        resumed: u32,
        /// Why it ended.
        finish_reason: FinishReason,
        /// Times the engine gave up its KV cache and computed it again.
        preemptions: u32,
    },
    /// A group was admitted: it will be trained on.
    Admitted {
        /// The step.
        step: Step,
        /// The prompt.
        prompt: PromptId,
        /// Responses of the group.
        samples: u32,
    },
    /// The round of a step is decided.
    Closed {
        /// The step.
        step: Step,
    },
    /// All responses of the step have ended, and none will follow: the rollout has nothing to do until the next round.
    Drained {
        /// The step.
        step: Step,
    },
}

/// What a placement policy wants.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// What generates.
    pub rollout: Placement,
    /// Devices that train; 0: groups wait.
    pub training_devices: u32,
    /// Why.
    pub reason: Reason,
}

impl fmt::Display for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rollout: Placement { instances, tensor_parallel }, training_devices, reason } =
            self;
        write!(
            f,
            "rollout {instances} x tp{tensor_parallel}, training {training_devices} ({reason})"
        )
    }
}

/// Why a placement was decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A round begins.
    Round,
    /// The rollout has nothing to do until the next round.
    Drained,
    /// The responses that are left fit on fewer instances, and groups wait for the trainer.
    ScaleDown,
    /// Few responses are left; fewer, wider instances end them sooner.
    Consolidate,
    /// Responses were preempted too often.
    Preemptions,
    /// Responses have not been preempted for several rounds.
    Idle,
    /// The shortest predicted step.
    Predicted,
}

impl Reason {
    /// As written in the column `reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Round => "round",
            Self::Drained => "drained",
            Self::ScaleDown => "scale down",
            Self::Consolidate => "consolidate",
            Self::Preemptions => "preemptions",
            Self::Idle => "idle",
            Self::Predicted => "predicted",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A policy of placement.
///
/// # Contract
/// - While a round is open or drained and not trained, some device generates or trains: the step ends.
/// - Devices in use for generating and training never exceed those of the job, unless the policy says that both share them.
/// - Decisions follow from the events alone.
pub trait Place {
    /// Takes an event in; the caller drains [`poll`](Self::poll) afterwards.
    fn on(&mut self, now: Nanos, event: Event);

    /// The next decision, until there is none.
    fn poll(&mut self) -> Option<Decision>;

    /// What it has learned that later decisions depend on, for a snapshot: asked for between two rounds, when the earlier one is drained.
    /// None: it cannot be resumed, and a run that takes snapshots refuses it.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Goes on from what [`save`](Self::save) gave, told to a policy at its start; its configuration stays its own. Steps whose policies
    /// were published before the snapshot, and whose rounds were not opened, are told again.
    ///
    /// # Errors
    /// If it is no state of this policy.
    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        let _ = saved;
        Err("the policy of placement does not implement `restore`".to_owned())
    }
}

impl Place for Box<dyn Place> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.as_mut().on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.as_mut().poll()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.as_ref().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        self.as_mut().restore(saved)
    }
}
