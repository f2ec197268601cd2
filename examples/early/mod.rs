//! A placement that lends an instance to training as soon as enough groups of a round are complete.

use std::collections::VecDeque;

use rollpacker::operators::placement::{Decision, Event, LEARNED_NOTHING, Reason};
use rollpacker::placements::PlacementContext;
use rollpacker::prelude::*;
use rollpacker::stages::catalog::CatalogError;
use rollpacker::stages::rollout::Placement;
use serde::Deserialize;

/// The options of the placement: `placement.options`.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EarlyOptions {
    /// Number of complete groups for which an instance is lent, at least 1.
    groups: u32,
}

/// A policy that lends one more instance for every `groups` complete groups of a round, but the last one only after the rollout.
pub(crate) struct Early {
    groups: u32,
    devices: u32,
    /// The number of groups of the round that are complete.
    complete: u32,
    decisions: VecDeque<Decision>,
}

impl Early {
    /// Creates the policy.
    pub(crate) fn new(
        options: EarlyOptions,
        context: PlacementContext,
    ) -> Result<Self, CatalogError> {
        let EarlyOptions { groups } = options;
        if groups == 0 {
            return Err(CatalogError::bound("groups", "at least 1", groups));
        }
        if context.staleness > 0 {
            return Err(CatalogError::start("expected algorithm.staleness = 0: rounds overlap"));
        }
        let (devices, decisions) = (context.devices, VecDeque::new());
        Ok(Self { groups, devices, complete: 0, decisions })
    }

    /// Lends this number of instances to training.
    fn lend(&mut self, training_devices: u32, reason: Reason) {
        let instances = self.devices - training_devices;
        let rollout = Placement { instances, tensor_parallel: 1 };
        self.decisions.push_back(Decision { rollout, training_devices, reason });
    }
}

impl PlacementPolicy for Early {
    fn on(&mut self, _now: Nanos, event: Event) {
        match event {
            Event::Opened { .. } => {
                self.complete = 0;
                self.lend(0, Reason::Round);
            }
            Event::Admitted { .. } => {
                self.complete += 1;
                let lent = self.complete / self.groups;
                if self.complete.is_multiple_of(self.groups) && lent < self.devices {
                    self.lend(lent, Reason::ScaleDown);
                }
            }
            Event::Drained { .. } => self.lend(self.devices, Reason::Drained),
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// Nothing outlives a round, so a resumed policy starts like a new one.
    fn save(&self) -> Option<Vec<u8>> {
        Some(LEARNED_NOTHING.to_vec())
    }
}
