//! The placement policy of a live run: a device is an engine instance with its threads.

use anyhow::{Context, ensure};
use rollpacker_operators::placement::planner::{Planner, Rule};
use rollpacker_operators::placement::{
    Colocated, Job, LoggedPlacement, PlacementError, PlacementPolicy, Separate, StepCost,
    StreamTrainer, StreamTrainerOptions,
};
use rollpacker_stages::rollout::Placement;
use tch::Device;

use crate::placements::PlacementContext;
use crate::recipe::{PlacementKind, Recipe};

/// A policy whose decisions are logged for metrics and Gantt charts.
pub(super) type LivePlacement = LoggedPlacement<Box<dyn PlacementPolicy>>;

/// Returns the placement policy of a run with this number of workers, or `None` if the recipe fixes the placement.
///
/// The policy decides for one worker, and every worker follows it.
///
/// # Errors
/// If the options of the recipe are inconsistent.
pub(super) fn policy(recipe: &Recipe, workers: usize) -> anyhow::Result<Option<LivePlacement>> {
    let instances = recipe.engine_instances();
    let rollout = Placement { instances, tensor_parallel: 1 };
    let context = recipe.placement_context(workers);
    let policy: Box<dyn PlacementPolicy> = match &recipe.placement {
        PlacementKind::Fixed => return Ok(None),
        PlacementKind::TimeSharing => Box::new(Colocated::new(rollout)),
        PlacementKind::SeparatePools { training_instances } => {
            Box::new(Separate::new(rollout, *training_instances))
        }
        PlacementKind::StreamTrainer(options) => {
            Box::new(stream_trainer(*options, context).context("key `placement.kind`")?)
        }
        PlacementKind::Own(own) => own.policy(context)?,
    };
    Ok(Some(LoggedPlacement::new(policy, instances)))
}

/// Rejects a placement on a device other than the CPU. All instances of a GPU share it, so that none can be lent.
pub(super) fn check_device(recipe: &Recipe, device: Device) -> anyhow::Result<()> {
    let kind = recipe.placement_name();
    ensure!(
        recipe.placement == PlacementKind::Fixed || device == Device::Cpu,
        "key `placement.kind`: expected `fixed` on a GPU, whose instances and trainer share it, found `{kind}`: set trainer.device = \"cpu\" to use it"
    );
    Ok(())
}

fn stream_trainer(
    options: StreamTrainerOptions,
    PlacementContext { devices, kv_cache_tokens, max_response_length, .. }: PlacementContext,
) -> Result<StreamTrainer<CacheCapacity>, PlacementError> {
    let job = Job {
        devices,
        devices_per_server: devices,
        training_replica: 1,
        response_length: max_response_length,
    };
    let cost = CacheCapacity { tokens: u64::try_from(kv_cache_tokens).unwrap_or(u64::MAX) };
    StreamTrainer::new(options, Planner::new(Rule::Fixed, job.validated()?, 1)?, cost)
}

/// The KV-cache capacity of an instance, summed over the workers because the policy observes the responses of all of them.
///
/// No times are known. The triggers that a recipe can choose compare capacities only.
struct CacheCapacity {
    tokens: u64,
}

impl StepCost for CacheCapacity {
    fn decode_iteration(&self, _tensor_parallel: u32, _running: f64, _kv_tokens: f64) -> f64 {
        f64::INFINITY
    }

    fn training(&self, _devices: u32, _tokens: f64) -> f64 {
        f64::INFINITY
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        if tensor_parallel == 1 { self.tokens } else { 0 }
    }

    fn reconfiguration(&self, _from: Placement, _to: Placement, _kv_tokens: f64) -> f64 {
        f64::INFINITY
    }
}
