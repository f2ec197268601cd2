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

    fn trainer_threads(&self) -> TrainerThreads;

    /// Returns the number of devices that never generate.
    fn training_only_devices(&self) -> u32 {
        0
    }

    /// Returns `true` if devices are lent to the trainer before the rollout of a step ends. Groups must then be scored and trained on while
    /// the rollout runs, or the lent devices are idle. Returns `false` for a placement of a program, whose decisions are not known.
    fn needs_streamed_groups(&self) -> bool {
        false
    }

    /// Returns the options of the planner; `None` if an instance always has one device.
    fn planner(&self) -> Option<PlannerOptions> {
        None
    }

    /// Describes the placement of `devices` devices that generate; `None` if the placement is fixed. `training` describes the trainer's
    /// threads.
    fn describe(&self, devices: u32, training: &str) -> Option<String>;
}

/// The options of a built-in placement, with their defaults. They are keys of `[placement]`.
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

/// A function that checks the options of a placement, already read from a recipe, against the rest of the recipe.
pub(crate) type Check =
    Arc<dyn Fn(&PlacementInputs<'_>) -> Result<Arc<dyn LivePlacement>, RecipeError> + Send + Sync>;

/// The threads with which the trainer computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TrainerThreads {
    /// Threads of its own, in addition to the threads of all devices.
    Own,
    /// The threads of this many devices, but at least `actor.threads`, whenever it computes.
    OfDevices(u32),
    /// The threads of the devices that are lent to the trainer, but at least `actor.threads`.
    Lent,
}

/// The inputs of the placement policy of a live run.
pub(crate) struct LiveRun {
    /// The context from which the policy is built.
    pub(crate) context: PlacementContext,
    /// The number of workers, which all follow the policy.
    pub(crate) workers: usize,
    /// The monitor of the engine's profile. `None` without a profile, and on all workers but the first.
    pub(crate) monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

/// The part of a recipe against which the options of a placement are checked.
#[derive(Clone, Copy)]
pub(crate) struct PlacementInputs<'a> {
    /// The value of `placement.kind`.
    pub(crate) kind: &'a str,
    /// The context of the policy, with the devices of a single worker.
    pub(crate) context: PlacementContext,
    /// `true` if `rollout.profile` is set.
    pub(crate) has_profile: bool,
}

impl PlacementInputs<'_> {
    /// Rejects staleness for placements in which a device generates and trains in turn: the next round would take the devices back before
    /// the step is trained on.
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

    /// Rejects a placement that needs several devices if `rollout.instances` is 1.
    pub(super) fn require_several_devices(&self) -> Result<(), RecipeError> {
        let (kind, devices) = (self.kind, self.context.devices);
        if devices > 1 {
            return Ok(());
        }
        let expected = format!("at least 2 with placement.kind = {kind}");
        Err(out_of_bounds("rollout.instances", expected, devices))
    }
}
