//! A placement that lends devices to training as soon as enough groups of a round are complete.

use std::collections::VecDeque;

use rollpacker::operators::placement::{Decision, Event, NO_LEARNED_STATE, Reason};
use rollpacker::placements::PlacementContext;
use rollpacker::prelude::*;
use rollpacker::stages::catalog::CatalogError;
use rollpacker::stages::rollout::Placement;
use serde::Deserialize;

/// The options of the placement: `placement.options` of a recipe, or `pipeline.placement_options` of a simulated job.
#[derive(Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct EarlyOptions {
    /// Number of groups that must complete before each further loan of devices, at least 1.
    groups: u32,
}

/// A policy that lends more devices for every `groups` complete groups of a round, but the last ones only after the rollout. In a live run,
/// it lends one instance each time. In a simulated job, it lends the GPUs of a copy of the model.
pub(crate) struct Early {
    groups: u32,
    context: PlacementContext,
    /// The number of groups of the round that are complete.
    complete: u32,
    decisions: VecDeque<Decision>,
}

impl Early {
    /// Creates the policy.
    ///
    /// # Errors
    /// If `groups` is 0, or rounds overlap.
    pub(crate) fn new(
        options: EarlyOptions,
        context: PlacementContext,
    ) -> Result<Self, CatalogError> {
        let EarlyOptions { groups } = options;
        if groups == 0 {
            return Err(CatalogError::out_of_range("groups", "at least 1", groups));
        }
        if context.staleness > 0 {
            return Err(CatalogError::start("expected a staleness of 0: rounds overlap"));
        }
        Ok(Self { groups, context, complete: 0, decisions: VecDeque::new() })
    }

    /// Decides that `training_devices` devices in total are lent to training. The other devices generate, as far as they are whole
    /// instances.
    fn lend(&mut self, training_devices: u32, reason: Reason) {
        let PlacementContext { devices, tensor_parallel, .. } = self.context;
        let instances = (devices - training_devices) / tensor_parallel;
        let rollout = Placement { instances, tensor_parallel };
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
                let PlacementContext { devices, tensor_parallel, training_replica, .. } =
                    self.context;
                let lent = self.complete / self.groups * training_replica;
                if self.complete.is_multiple_of(self.groups) && lent + tensor_parallel <= devices {
                    self.lend(lent, Reason::ScaleDown);
                }
            }
            Event::Drained { .. } => self.lend(self.context.devices, Reason::Drained),
            _ => {}
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    /// Returns [`NO_LEARNED_STATE`], because no state outlives a round. A resumed policy starts like a new one.
    fn save(&self) -> Option<Vec<u8>> {
        Some(NO_LEARNED_STATE.to_vec())
    }
}
