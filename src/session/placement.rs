//! The placement policy of a live run: a device is an engine instance with its threads.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::ensure;
use rollpacker_operators::placement::planner::Rule;
use rollpacker_operators::placement::profile::Phase;
use rollpacker_operators::placement::{LoggedPlacement, PlacementPolicy, Profile};
use rollpacker_stages::rollout::Placement;
use tch::Device;

use crate::placements::PlannerOptions;
use crate::placements::live::LiveRun;
use crate::profile_monitor::ProfileMonitor;
use crate::recipe::{Recipe, RecipeError};

/// A policy whose decisions are logged for metrics and Gantt charts.
pub(super) type LoggedPolicy = LoggedPlacement<Box<dyn PlacementPolicy>>;

/// Returns the placement policy of a run with this number of workers, or `None` if the recipe fixes the placement.
///
/// The policy decides for one worker, and every worker follows it. Predictions use the profile of `monitor`, which only the first worker
/// has.
///
/// # Errors
/// If an option of the placement does not fit the run.
pub(super) fn policy(
    recipe: &Recipe,
    workers: usize,
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
) -> Result<Option<LoggedPolicy>, RecipeError> {
    let run = LiveRun { context: recipe.placement_context(workers), workers, monitor };
    let policy = recipe.placement.policy(run)?;
    Ok(policy.map(|policy| LoggedPlacement::new(policy, recipe.engine_instances())))
}

/// Rejects placements other than `fixed` on a GPU. All instances share the GPU, so that none of them can be lent to the trainer.
pub(crate) fn check_device(recipe: &Recipe, device: Device) -> anyhow::Result<()> {
    let kind = recipe.placement_name();
    ensure!(
        recipe.has_fixed_placement() || device == Device::Cpu,
        "key `placement.kind`: expected `fixed` on a GPU, whose instances and trainer share it, found `{kind}`: set trainer.device = \"cpu\" to use it"
    );
    Ok(())
}

/// Rejects a profile without decode times for a parallelism that a predictive planner compares.
pub(super) fn check_profile(recipe: &Recipe, profile: &Profile) -> anyhow::Result<()> {
    if recipe.planner().is_none_or(|planner| planner.rule != Rule::Predictive) {
        return Ok(());
    }
    let instances = recipe.rollout.instances;
    let is_measured = |size: &u32| {
        let placement = Placement { instances: instances / size, tensor_parallel: *size };
        profile.seconds(Phase::Decode, placement, 1.0, 1.0).is_some()
    };
    let missing = PlannerOptions::parallelisms(instances).find(|size| !is_measured(size));
    ensure!(
        missing.is_none(),
        "expected decode times of instances of {} devices with placement.rule = predictive, found none: \
         measure them with `rollpacker profile` and this recipe",
        missing.unwrap_or_default()
    );
    Ok(())
}
