//! Placement policies that learn nothing: they are constant, or follow the events of the rounds. A resumed policy starts like a new one.

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::{Decision, Event, PlacementPolicy, Reason};

/// The saved state of a policy without learned state: the JSON value `null`.
pub const NO_LEARNED_STATE: &[u8] = b"null";

/// Implements `save` and `restore` for a policy without learned state. The saved state is [`NO_LEARNED_STATE`]; `restore` ignores its
/// argument.
macro_rules! impl_without_learned_state {
    () => {
        fn save(&self) -> Option<Vec<u8>> {
            Some(NO_LEARNED_STATE.to_vec())
        }

        fn restore(&mut self, _saved: &[u8]) -> Result<(), BoxError> {
            Ok(())
        }
    };
}

/// A policy under which all devices generate until the rollout is drained, and then train (verl, RLHFuse).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Colocated {
    rollout: Placement,
    out: Option<Reason>,
}

/// A policy under which some devices always generate and the others always train (RolloutPipe, one-step off-policy and asynchronous
/// pipelines).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Separate {
    rollout: Placement,
    training_devices: u32,
    out: bool,
}

impl Colocated {
    /// Creates a policy with rounds on `rollout`, which must use all devices of the job.
    #[must_use]
    pub fn new(rollout: Placement) -> Self {
        Self { rollout, out: None }
    }
}

impl Separate {
    /// Creates a policy with a rollout on `rollout` and a trainer on `training_devices` other devices.
    #[must_use]
    pub fn new(rollout: Placement, training_devices: u32) -> Self {
        Self { rollout, training_devices, out: true }
    }
}

impl PlacementPolicy for Separate {
    fn on(&mut self, _now: Nanos, _event: Event) {}

    fn poll(&mut self) -> Option<Decision> {
        let decision = || Decision {
            rollout: self.rollout,
            training_devices: self.training_devices,
            reason: Reason::Round,
        };
        std::mem::take(&mut self.out).then(decision)
    }

    impl_without_learned_state!();
}

impl PlacementPolicy for Colocated {
    fn on(&mut self, _now: Nanos, event: Event) {
        match event {
            Event::Policy { .. } => self.out = Some(Reason::Round),
            Event::Drained { .. } => self.out = Some(Reason::Drained),
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        let reason = self.out.take()?;
        let trains = reason == Reason::Drained;
        Some(Decision {
            rollout: if trains { Placement { instances: 0, ..self.rollout } } else { self.rollout },
            training_devices: if trains { self.rollout.devices() } else { 0 },
            reason,
        })
    }

    impl_without_learned_state!();
}
