//! The contracts of the placements of live runs.

use std::cell::RefCell;
use std::fmt;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker_operators::placement::PlacementPolicy;
use rollpacker_stages::catalog::About;
use rollpacker_stages::documented::Documented;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::context::PlacementContext;
use super::planner_options::PlannerOptions;
use crate::profile_monitor::ProfileMonitor;
use crate::recipe::error::{RecipeError, out_of_bounds};

/// The placement of a live run, with checked options.
pub(crate) trait LivePlacement: fmt::Debug + Send + Sync {
    /// Returns the policy in its initial state; `None` if all instances always generate and the trainer has threads of its own.
    ///
    /// # Errors
    /// If an option does not fit the run.
    fn policy(&self, run: LiveRun) -> Result<Option<Box<dyn PlacementPolicy>>, RecipeError>;

    /// Returns the threads with which the trainer computes.
    fn trainer_threads(&self) -> TrainerThreads;

    /// Returns the number of devices that never generate.
    fn only_training(&self) -> u32 {
        0
    }

    /// Returns `true` if devices are lent to the trainer before the rollout of a step ends. Groups must then be scored and trained on while
    /// the rollout runs, or the lent devices are idle.
    fn needs_streamed_groups(&self) -> bool {
        false
    }

    /// Returns the options of the planner; `None` if an instance always has one device.
    fn planner(&self) -> Option<PlannerOptions> {
        None
    }

    /// Describes the placement of `devices` devices that generate; `None` if it is fixed. `training` describes the trainer's threads.
    fn describe(&self, devices: u32, training: &str) -> Option<String>;
}

/// A built-in placement: the keys that `[placement]` has for it, with their defaults.
pub(super) trait BuiltIn:
    Documented + DeserializeOwned + Serialize + Default + Clone + Send + Sync + 'static
{
    /// The value of `placement.kind`.
    const NAME: &'static str;
    /// The documentation that `rollpacker keys` prints.
    const ABOUT: About;

    /// Checks the options against the rest of a recipe.
    ///
    /// # Errors
    /// If an option is out of bounds, or the rest of the recipe does not allow the placement. The error names the key.
    fn check(self, recipe: &PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError>;
}

/// Checks options that have been read against the rest of a recipe.
pub(crate) type Check =
    Arc<dyn Fn(&PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> + Send + Sync>;

/// The threads with which the trainer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrainerThreads {
    /// Threads of its own, next to those of all devices.
    Own,
    /// The threads of this many devices, whenever it computes.
    OfDevices(u32),
    /// The threads of the devices that are lent to it, and its own.
    Lent,
}

/// The inputs of the placement policy of a live run.
pub(crate) struct LiveRun {
    /// The devices to divide.
    pub(crate) context: PlacementContext,
    /// The number of workers, which all follow the policy.
    pub(crate) workers: usize,
    /// The profile of the engine, which the first worker has.
    pub(crate) monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

/// The part of a recipe against which the options of a placement are checked.
#[derive(Clone, Copy)]
pub(crate) struct PlacementInputs<'a> {
    /// The value of `placement.kind`.
    pub(crate) kind: &'a str,
    /// The devices of a single worker.
    pub(crate) context: PlacementContext,
    /// `true` if `rollout.profile` is set.
    pub(crate) has_profile: bool,
}

impl PlacementInputs<'_> {
    /// Rejects staleness for placements in which a device either generates or trains: the next round would take the devices back before the
    /// step is trained on.
    pub(super) fn check_on_policy(&self) -> Result<(), RecipeError> {
        let (kind, staleness) = (self.kind, self.context.staleness);
        if staleness == 0 {
            return Ok(());
        }
        let expected = format!(
            "0 with placement.kind = {kind}: the next round would need the instances that train (use separate_pools)"
        );
        Err(out_of_bounds("algorithm.staleness", expected, staleness))
    }

    /// Rejects a single device.
    pub(super) fn check_several(&self) -> Result<(), RecipeError> {
        let (kind, devices) = (self.kind, self.context.devices);
        if devices > 1 {
            return Ok(());
        }
        let expected = format!("at least 2 with placement.kind = {kind}");
        Err(out_of_bounds("rollout.instances", expected, devices))
    }
}
