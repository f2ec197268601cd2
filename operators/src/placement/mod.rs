//! Placement: which devices generate, which devices train, and how the generating devices are sharded.
//!
//! A placement policy is pure, like a schedule: it receives the events of the rounds, each with the time at which it happened, and returns
//! decisions. Policies of this kind include time-sharing of all devices between rollout and training, separate pools, the stream trainer's
//! scale-down, and the parallelism planner.

pub mod cost;
pub mod drift;
mod error;
pub mod fixed;
mod forecast;
mod log;
pub(crate) mod operator;
pub mod options;
pub mod planner;
pub mod profile;
mod round_progress;
pub mod scale_down;
mod tail;

#[cfg(test)]
mod tests;

pub use cost::{Job, StepCost};
pub use error::PlacementError;
pub use fixed::{Colocated, NO_LEARNED_STATE, Separate};
pub use log::{LoggedPlacement, PlacementLog, StepPlacement, TimedDecision};
pub use operator::restore;
pub use options::{RoundFilter, StreamTrainerOptions, Trigger};
pub use planner::Planner;
pub use profile::Profile;
pub use round_progress::RoundLoad;
pub use scale_down::StreamTrainer;

use std::fmt;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, Placement};
use serde::{Deserialize, Serialize};

use crate::wire::decision::RoundKind;

/// An event that a placement policy receives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Event {
    /// The weights for `step` are published.
    Policy {
        /// The step that samples with the weights.
        step: Step,
    },
    /// The round of a step opened.
    Opened {
        /// The step of the round.
        step: Step,
        /// The kind of the round.
        round: RoundKind,
    },
    /// Responses were launched.
    Launched {
        /// The step of the round.
        step: Step,
        /// The id of the prompt.
        prompt: PromptId,
        /// The number of responses.
        samples: u32,
        /// The number of tokens of the prompt.
        prompt_length: u32,
    },
    /// A response ended, was paused or was dropped.
    Response {
        /// The id of the response.
        id: SampleId,
        /// The number of sampled tokens.
        tokens: u32,
        /// The number of these tokens that an earlier step sampled before the response was paused.
        resumed: u32,
        /// The reason why the response ended; [`FinishReason::Pause`] if it was paused.
        finish_reason: FinishReason,
        /// The number of times that the engine evicted the KV cache of the response and recomputed it.
        preemptions: u32,
    },
    /// A group was admitted and will be trained on.
    Admitted {
        /// The step of the round.
        step: Step,
        /// The id of the prompt.
        prompt: PromptId,
        /// The number of responses of the group that were admitted.
        samples: u32,
    },
    /// The round of a step closed.
    Closed {
        /// The step of the round.
        step: Step,
    },
    /// All responses of the step have ended and none will follow. The rollout is idle until the next round, unless a later round has
    /// already opened.
    Drained {
        /// The step of the round.
        step: Step,
    },
}

/// A decision of a placement policy.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// The instances that generate.
    pub rollout: Placement,
    /// The number of devices that train. With 0, groups wait.
    pub training_devices: u32,
    /// The reason for the decision.
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

/// The reason for a placement decision.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reason {
    /// A round begins.
    Round,
    /// The rollout of a step is drained.
    Drained,
    /// The [`Trigger`] of the stream trainer lets devices leave the rollout to train.
    ScaleDown,
    /// The step is predicted to end sooner on fewer, wider instances.
    Consolidate,
    /// The last round had more than the tolerated multiple of the preemptions of the previous round of the same
    /// [kind](crate::wire::decision::RoundKind).
    Preemptions,
    /// No response was preempted in several consecutive rounds of the same kind.
    Idle,
    /// The round is predicted to be the shortest with this parallelism.
    Predicted,
}

impl Reason {
    /// Returns the name as written in the column `reason` of placements.
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

/// A policy that decides which devices generate and which devices train.
///
/// # Contract
/// - From the opening of a round until the round has been trained on, at least one device generates or trains, so that the step ends.
/// - The generating and the training devices together never exceed the devices of the job, unless generation and training may share
///   devices.
/// - Decisions depend only on the events and their times.
///
/// # Example
/// ```
/// use std::collections::VecDeque;
///
/// use rollpacker_dataflow::clock::Nanos;
/// use rollpacker_dataflow::step::Step;
/// use rollpacker_operators::placement::{Decision, Event, PlacementPolicy, Reason};
/// use rollpacker_operators::schedule::RoundKind;
/// use rollpacker_stages::rollout::Placement;
///
/// /// Trains on one of four devices during a round, and on all of them once the rollout is drained.
/// #[derive(Default)]
/// struct MostlyRollout(VecDeque<Decision>);
///
/// impl PlacementPolicy for MostlyRollout {
///     fn on(&mut self, _now: Nanos, event: Event) {
///         let (instances, training_devices, reason) = match event {
///             Event::Opened { .. } => (3, 1, Reason::Round),
///             Event::Drained { .. } => (0, 4, Reason::Drained),
///             _ => return,
///         };
///         let rollout = Placement { instances, tensor_parallel: 1 };
///         self.0.push_back(Decision { rollout, training_devices, reason });
///     }
///
///     fn poll(&mut self) -> Option<Decision> {
///         self.0.pop_front()
///     }
/// }
///
/// let mut policy = MostlyRollout::default();
/// policy.on(Nanos(0), Event::Opened { step: Step(0), round: RoundKind::Full });
/// policy.on(Nanos(9), Event::Drained { step: Step(0) });
/// let decisions = std::iter::from_fn(|| policy.poll());
/// let decisions: Vec<String> = decisions.map(|decision| decision.to_string()).collect();
/// assert_eq!(
///     decisions,
///     ["rollout 3 x tp1, training 1 (round)", "rollout 0 x tp1, training 4 (drained)"]
/// );
/// ```
pub trait PlacementPolicy {
    /// Processes an event that happened at `now`. The caller then calls [`poll`](Self::poll) until it returns `None`.
    fn on(&mut self, now: Nanos, event: Event);

    /// Returns the next decision, or `None` if there is none.
    fn poll(&mut self) -> Option<Decision>;

    /// Returns the learned state on which later decisions depend, for a snapshot. Returns [`NO_LEARNED_STATE`] if the policy has no learned
    /// state; a resumed policy then starts like a new one. Returns `None`, the default, if the policy cannot be resumed; a run that takes
    /// snapshots rejects such a policy. The run calls this method at its start, and then between two rounds, when the earlier round is
    /// drained.
    fn save(&self) -> Option<Vec<u8>> {
        None
    }

    /// Restores a state that [`save`](Self::save) returned. The run calls this method on a new policy, which keeps its own configuration,
    /// and never with [`NO_LEARNED_STATE`]. The policy receives [`Event::Policy`] again for the steps whose rounds had not opened before
    /// the snapshot. By default, returns an error.
    ///
    /// # Errors
    /// If `saved` is not a state of this policy.
    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let _ = saved;
        Err("the placement policy does not implement `restore`".into())
    }
}

impl PlacementPolicy for Box<dyn PlacementPolicy> {
    fn on(&mut self, now: Nanos, event: Event) {
        self.as_mut().on(now, event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.as_mut().poll()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.as_ref().save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.as_mut().restore(saved)
    }
}
