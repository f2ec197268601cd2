//! The placement `planner`: a rule chooses the number of devices of an instance for each round (RollPacker, section 4.3).

use std::sync::Arc;

use rollpacker_operators::placement::planner::Planner as Plan;
use rollpacker_operators::placement::{
    Job, PlacementError, PlacementPolicy, StreamTrainer, StreamTrainerOptions, Trigger,
};
use rollpacker_stages::catalog::About;
use serde::{Deserialize, Serialize};

use super::live::{BuiltIn, LivePlacement, LiveRun, PlacementInputs, TrainerThreads};
use super::live_cost::LiveCost;
use super::planner_options::{PlannerOptions, PlannerRule};
use crate::recipe::error::{RecipeError, out_of_bounds};
use crate::recipe::section::section;

section! {
    /// The options of `planner`.
    Planner {
        /// Rule that chooses the number of devices of an instance for each round: `paper` doubles it if preemptions increase and halves it
        /// if there are none for four rounds (RollPacker, section 4.3); `predictive` takes the number with the shortest round that
        /// `rollout.profile` predicts; `fixed` keeps `tensor_parallel`. `paper` and `predictive` need an even `rollout.instances`.
        rule: PlannerRule = PlannerRule::Paper,
        /// Number of devices of an instance in the first full, the first short and the first long round, a power of two that divides
        /// `rollout.instances`. A device is an instance's share of threads and KV cache. From 1 to `rollout.instances`.
        tensor_parallel: u32 [devices] = 1,
    }
}

impl BuiltIn for Planner {
    const NAME: &'static str = "planner";
    const ABOUT: About = About::new(
        &[],
        "`time_sharing` with instances that compute on several devices, as `rule` decides for each round",
        "RollPacker, section 4.3",
    );

    fn check(self, recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> {
        let options = recipe.planner(self.rule, self.tensor_parallel)?;
        Ok(Arc::new(Planned { options, devices: recipe.context.devices }))
    }
}

/// A placement in which rollout and training alternate on all devices, and a planner chooses the devices of an instance.
#[derive(Debug)]
struct Planned {
    options: PlannerOptions,
    devices: u32,
}

impl LivePlacement for Planned {
    fn policy(&self, run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
        let paper = StreamTrainerOptions::paper();
        planned_policy(StreamTrainerOptions { trigger: Trigger::Never, ..paper }, self.options, run)
    }

    fn trainer_threads(&self) -> TrainerThreads {
        TrainerThreads::OfDevices(self.devices)
    }

    fn planner(&self) -> Option<PlannerOptions> {
        self.options.if_several()
    }

    fn describe(&self, devices: u32, training: &str) -> Option<String> {
        Some(format!("{}, then {training}", self.options.describe(devices)))
    }
}

impl PlacementInputs<'_> {
    /// Returns the checked options of a planner.
    ///
    /// # Errors
    /// If `algorithm.staleness` is above 0, `rollout.instances` is 1, or odd although the rule joins instances, `tensor_parallel` is not a
    /// power of two that divides `rollout.instances`, or the rule is `predictive` and `rollout.profile` is not set.
    pub(super) fn planner(
        &self,
        rule: PlannerRule,
        tensor_parallel: u32,
    ) -> Result<PlannerOptions, RecipeError> {
        self.check_on_policy()?;
        self.require_several_devices()?;
        let devices = self.context.devices;
        if rule != PlannerRule::Fixed && !devices.is_multiple_of(2) {
            let expected = "an even number, because the rule of the placement joins instances";
            return Err(out_of_bounds("rollout.instances", expected, devices));
        }
        if !PlannerOptions::parallelisms(devices).any(|size| size == tensor_parallel) {
            let sizes: Vec<_> =
                PlannerOptions::parallelisms(devices).map(|size| size.to_string()).collect();
            let sizes = sizes.join(", ");
            let expected = format!(
                "one of {sizes}, the powers of two that divide rollout.instances = {devices}"
            );
            return Err(out_of_bounds("placement.tensor_parallel", expected, tensor_parallel));
        }
        if rule == PlannerRule::Predictive && !self.has_profile {
            let expected = "a profile with placement.rule = predictive, as `rollpacker profile` writes it for this recipe";
            return Err(out_of_bounds("rollout.profile", expected, "none"));
        }
        Ok(PlannerOptions { rule: rule.into(), tensor_parallel })
    }
}

/// Returns the policy of a stream trainer in which a planner chooses the number of devices of an instance. Never returns `None`.
pub(super) fn planned_policy(
    stream: StreamTrainerOptions,
    PlannerOptions { rule, tensor_parallel }: PlannerOptions,
    run: LiveRun,
) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError> {
    let devices = run.context.devices;
    let job = Job {
        devices,
        devices_per_server: devices,
        training_replica: 1,
        response_length: run.context.max_response_length,
    };
    let policy = Plan::new(rule, job, tensor_parallel)
        .and_then(|planner| StreamTrainer::new(stream, planner, LiveCost::new(run)));
    Ok(Some(Box::new(policy.map_err(recipe_error)?)))
}

/// Converts an error of a policy into a recipe error that names the key of `[placement]`.
pub(super) fn recipe_error(error: PlacementError) -> RecipeError {
    match error {
        PlacementError::Range { field, expected, found } => {
            let key = if field == "share" { "from" } else { field };
            out_of_bounds(format!("placement.{key}"), expected, found)
        }
        other => RecipeError::Type { key: "placement.kind".to_owned(), reason: other.to_string() },
    }
}
