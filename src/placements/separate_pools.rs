//! The placement `separate_pools`: some instances only generate, and the threads of the others only train.

use std::sync::Arc;

use rollpacker_operators::placement::{PlacementPolicy, Separate};
use rollpacker_stages::catalog::About;
use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::live::{BuiltIn, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use crate::recipe::error::{RecipeError, between};
use crate::recipe::section::section;

section! {
    /// The options of `separate_pools`.
    SeparatePools {
        /// Number of instances whose threads train. From 1 to `rollout.instances - 1`. Default: half of `rollout.instances`, rounded down.
        training_instances: Option<u32> [instances] = None,
    }
}

impl BuiltIn for SeparatePools {
    const NAME: &'static str = "separate_pools";
    const ABOUT: About = About::new(
        &[],
        "some instances only generate, and the threads of the others only train",
        "StreamRL, AReaL",
    );

    fn check(self, recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        recipe.require_several_devices()?;
        let devices = recipe.context.devices;
        let training = self.training_instances.unwrap_or(devices / 2);
        between("placement.training_instances", training, 1, devices - 1)?;
        Ok(Arc::new(Pools { generating: devices - training, training }))
    }
}

/// The numbers of devices that generate and that train.
#[derive(Debug)]
struct Pools {
    generating: u32,
    training: u32,
}

impl LivePlacement for Pools {
    fn policy(&self, _run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        let rollout = Placement { instances: self.generating, tensor_parallel: 1 };
        Ok(Some(Box::new(Separate::new(rollout, self.training))))
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::OfDevices(self.training)
    }

    fn training_only_devices(&self) -> u32 {
        self.training
    }

    fn describe(&self, devices: u32, training: &str) -> Option<String> {
        Some(format!("{devices} instances generate, {training}"))
    }
}
