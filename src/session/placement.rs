//! The placement policy of a live run: a device is an engine instance with its threads.

use std::cell::RefCell;
use std::rc::Rc;

use anyhow::{Context, ensure};
use rollpacker_operators::placement::planner::{Planner, Rule};
use rollpacker_operators::placement::profile::Phase;
use rollpacker_operators::placement::{
    Colocated, Job, LoggedPlacement, PlacementError, PlacementPolicy, Profile, Separate, StepCost,
    StreamTrainer, StreamTrainerOptions, Trigger,
};
use rollpacker_stages::rollout::Placement;
use tch::Device;

use crate::placements::PlacementContext;
use crate::profile_monitor::ProfileMonitor;
use crate::recipe::placement::parallelisms;
use crate::recipe::{PlacementKind, PlannerOptions, Recipe};

/// A policy whose decisions are logged for metrics and Gantt charts.
pub(super) type LivePlacement = LoggedPlacement<Box<dyn PlacementPolicy>>;

/// Returns the placement policy of a run with this number of workers, or `None` if the recipe fixes the placement.
///
/// The policy decides for one worker, and every worker follows it. Predictions follow the profile of `monitor`, which the first worker has.
///
/// # Errors
/// If the options of the recipe are inconsistent.
pub(super) fn policy(
    recipe: &Recipe,
    workers: usize,
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
) -> anyhow::Result<Option<LivePlacement>> {
    let instances = recipe.engine_instances();
    let rollout = Placement { instances, tensor_parallel: 1 };
    let context = recipe.placement_context(workers);
    let stream_trainer = |options, planner: PlannerOptions| {
        let cost = LiveCost::new(context, workers, monitor);
        stream_trainer(options, planner, context, cost).context("key `placement.kind`")
    };
    let policy: Box<dyn PlacementPolicy> = match &recipe.placement {
        PlacementKind::Fixed => return Ok(None),
        PlacementKind::TimeSharing => Box::new(Colocated::new(rollout)),
        PlacementKind::SeparatePools { training_instances } => {
            Box::new(Separate::new(rollout, *training_instances))
        }
        PlacementKind::StreamTrainer { stream, planner } => {
            Box::new(stream_trainer(*stream, *planner)?)
        }
        PlacementKind::Planner(planner) => {
            let trigger = Trigger::Never;
            let stream = StreamTrainerOptions { trigger, ..StreamTrainerOptions::paper() };
            Box::new(stream_trainer(stream, *planner)?)
        }
        PlacementKind::Own(own) => own.policy(context)?,
    };
    Ok(Some(LoggedPlacement::new(policy, instances)))
}

/// Rejects a placement on a device other than the CPU. All instances of a GPU share it, so that none can be lent.
pub(crate) fn check_device(recipe: &Recipe, device: Device) -> anyhow::Result<()> {
    let kind = recipe.placement_name();
    ensure!(
        recipe.placement == PlacementKind::Fixed || device == Device::Cpu,
        "key `placement.kind`: expected `fixed` on a GPU, whose instances and trainer share it, found `{kind}`: set trainer.device = \"cpu\" to use it"
    );
    Ok(())
}

/// Rejects a profile without decode times for a parallelism that a predictive planner compares.
pub(super) fn check_profile(recipe: &Recipe, profile: &Profile) -> anyhow::Result<()> {
    if recipe.placement.planner().is_none_or(|planner| planner.rule != Rule::Predictive) {
        return Ok(());
    }
    let instances = recipe.rollout.instances;
    let is_measured = |size: &u32| {
        let placement = Placement { instances: instances / size, tensor_parallel: *size };
        profile.seconds(Phase::Decode, placement, 1.0, 1.0).is_some()
    };
    let missing = parallelisms(instances).find(|size| !is_measured(size));
    ensure!(
        missing.is_none(),
        "expected decode times of instances of {} devices with placement.rule = predictive, found none: \
         measure them with `rollpacker profile` and this recipe",
        missing.unwrap_or_default()
    );
    Ok(())
}

fn stream_trainer(
    options: StreamTrainerOptions,
    PlannerOptions { rule, tensor_parallel }: PlannerOptions,
    PlacementContext { devices, max_response_length, .. }: PlacementContext,
    cost: LiveCost,
) -> Result<StreamTrainer<LiveCost>, PlacementError> {
    let job = Job {
        devices,
        devices_per_server: devices,
        training_replica: 1,
        response_length: max_response_length,
    };
    StreamTrainer::new(options, Planner::new(rule, job.validated()?, tensor_parallel)?, cost)
}

/// The costs of a live run: the KV budgets of the recipe, and the decode times of the profile, if there is one.
///
/// The policy observes the responses of all workers, but places the instances of one. An instance of the policy therefore stands for one
/// instance of each worker. Training times are unknown; the triggers that a recipe can choose do not compare them.
struct LiveCost {
    /// The number of devices of a worker.
    devices: u32,
    workers: u32,
    /// The number of tokens that a device caches, summed over the workers.
    kv_tokens: u64,
    monitor: Option<Rc<RefCell<ProfileMonitor>>>,
}

impl LiveCost {
    fn new(
        PlacementContext { devices, kv_cache_tokens, .. }: PlacementContext,
        workers: usize,
        monitor: Option<Rc<RefCell<ProfileMonitor>>>,
    ) -> Self {
        let workers = u32::try_from(workers).unwrap_or(u32::MAX);
        let kv_tokens = u64::try_from(kv_cache_tokens).unwrap_or(u64::MAX);
        Self { devices, workers, kv_tokens, monitor }
    }
}

impl StepCost for LiveCost {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64 {
        let placement = Placement { instances: self.devices / tensor_parallel, tensor_parallel };
        let (batch_size, tokens) = (running / f64::from(self.workers), kv_tokens / running);
        let seconds = self.monitor.as_ref().and_then(|monitor| {
            monitor.borrow().profile().seconds(Phase::Decode, placement, batch_size, tokens)
        });
        seconds.unwrap_or(f64::INFINITY)
    }

    fn training(&self, _devices: u32, _tokens: f64) -> f64 {
        f64::INFINITY
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        self.kv_tokens.saturating_mul(tensor_parallel.into())
    }

    /// Instances change between rounds, when they hold no responses, and keep their weights.
    fn reconfiguration(&self, _from: Placement, _to: Placement, kv_tokens: f64) -> f64 {
        if kv_tokens == 0.0 { 0.0 } else { f64::INFINITY }
    }
}

#[cfg(test)]
mod tests;
