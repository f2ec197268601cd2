//! The placement `time_sharing`: all instances generate until the rollout of the step has ended; then their threads train.

use std::sync::Arc;

use rollpacker_operators::placement::{Colocated, PlacementPolicy};
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented;
use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::live::{BuiltIn, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use crate::recipe::error::RecipeError;

documented! {
    /// The placement `time_sharing`, which has no options.
    #[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct TimeSharing {}
}

impl BuiltIn for TimeSharing {
    const NAME: &'static str = "time_sharing";
    const ABOUT: About = About::new(
        &[],
        "all instances generate until the rollout of the step has ended; then their threads train",
        "RLHFuse, verl",
    );

    fn check(self, recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        recipe.check_on_policy()?;
        Ok(Arc::new(TimeShared { devices: recipe.context.devices }))
    }
}

/// A placement in which rollout and training alternate on all `devices` devices.
#[derive(Debug)]
struct TimeShared {
    devices: u32,
}

impl LivePlacement for TimeShared {
    fn policy(&self, _run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        let rollout = Placement { instances: self.devices, tensor_parallel: 1 };
        Ok(Some(Box::new(Colocated::new(rollout))))
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::OfDevices(self.devices)
    }

    fn describe(&self, devices: u32, training: &str) -> Option<String> {
        Some(format!("{devices} instances generate, then {training}"))
    }
}
