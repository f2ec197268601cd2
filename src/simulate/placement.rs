//! Placement policy of a job: which GPUs generate and which train, round by round.

use rollpacker_operators::placement::{
    self, Colocated, PlacementError, PlacementPolicy, Planner, Separate, StreamTrainer,
};
use rollpacker_stages::rollout::Placement as Instances;

use super::cost::PlacementCost;
use super::job::Job;
use super::raw::{self, RawJob};
use crate::placements::{CustomPlacement, PlacementContext, PlacementKeys, PlannerRule};
use crate::recipe::RecipeError;
use crate::recipe::error::{one_of, out_of_bounds};

/// The assignment of GPUs to generation and training.
#[derive(Clone, Debug, PartialEq)]
pub enum SimulatedPlacement {
    /// All GPUs generate, then all train.
    Colocated,
    /// Some GPUs generate and the others train.
    Separate,
    /// All GPUs generate, and some begin to train before the rollout ends.
    Stream,
    /// A policy of the program assigns the GPUs.
    Custom(CustomPlacement),
}

impl SimulatedPlacement {
    const BUILT_IN: [Self; 3] = [Self::Colocated, Self::Separate, Self::Stream];

    /// Returns the name, as in `pipeline.placement`.
    #[must_use]
    pub fn name(&self) -> &str {
        match self {
            Self::Colocated => "colocated",
            Self::Separate => "separate",
            Self::Stream => "stream",
            Self::Custom(own) => own.name(),
        }
    }
}

impl RawJob {
    /// Returns the placement `name`. A placement that the program adds has precedence over a built-in placement of the same name.
    pub(super) fn named_placement(&self, name: &str) -> Result<SimulatedPlacement, RecipeError> {
        let raw::Pipeline { placement_options, placements, .. } = &self.pipeline;
        if let Some(own) = placements.find(PLACEMENT_KEYS, name, placement_options)? {
            return Ok(SimulatedPlacement::Custom(own));
        }
        let mut names =
            SimulatedPlacement::BUILT_IN.each_ref().map(SimulatedPlacement::name).to_vec();
        names.extend(placements.custom_names());
        one_of(PLACEMENT_KEYS.name, name, &names)?;
        let built_in =
            SimulatedPlacement::BUILT_IN.into_iter().find(|built_in| built_in.name() == name);
        Ok(built_in.expect("invariant: a name of the program is found above"))
    }
}

/// The keys of a job that name a placement and hold its options.
const PLACEMENT_KEYS: PlacementKeys =
    PlacementKeys { name: "pipeline.placement", options: "pipeline.placement_options" };

/// Creates the placement policy of a job.
///
/// # Errors
/// If the model does not fit on its instances, or if GPUs and options are inconsistent; the error names the key.
pub(super) fn policy(job: &Job) -> Result<Box<dyn PlacementPolicy>, RecipeError> {
    let rollout = initial_placement(job);
    let kv_cache_tokens = kv_capacity(job, rollout.tensor_parallel)?;
    Ok(match &job.placement {
        SimulatedPlacement::Colocated if job.raw.planner.rule == PlannerRule::Fixed => {
            Box::new(Colocated::new(rollout))
        }
        SimulatedPlacement::Separate => Box::new(Separate::new(rollout, job.training_gpus)),
        SimulatedPlacement::Colocated | SimulatedPlacement::Stream => {
            Box::new(stream_trainer(job, rollout).map_err(recipe_error)?)
        }
        SimulatedPlacement::Custom(own) => own.policy(PlacementContext {
            devices: job.raw.cluster.gpus,
            threads_per_device: 1,
            kv_cache_tokens: usize::try_from(kv_cache_tokens).unwrap_or(usize::MAX)
                / rollout.tensor_parallel as usize,
            max_response_length: job.raw.data.max_response_length,
            staleness: job.raw.pipeline.staleness,
            tensor_parallel: rollout.tensor_parallel,
            training_replica: job.training_layout.devices(),
        })?,
    })
}

/// Returns the number of tokens that the KV cache of an instance holds. Rejects instances whose cache cannot hold the longest prompt and
/// the longest response together: such a response would be preempted forever and never end.
fn kv_capacity(job: &Job, tensor_parallel: u32) -> Result<u64, RecipeError> {
    let memory_error = |reason: String| RecipeError::Type {
        key: TENSOR_PARALLEL.to_owned(),
        reason: format!("{reason}; the memory left depends on {MEMORY_KEYS}"),
    };
    let capacity =
        job.cost().kv_capacity(tensor_parallel).map_err(|error| memory_error(error.to_string()))?;
    if capacity >= job.longest_sequence() {
        return Ok(capacity);
    }
    let (prompt, response) = (job.longest_prompt, job.raw.data.max_response_length);
    Err(memory_error(format!(
        "expected instances whose KV cache holds data.max_response_length = {response} tokens and a longest prompt of {prompt} \
         (recorded, or of lengths.population.prompt_length), found {capacity} tokens on {tensor_parallel} x {}",
        job.hardware.name,
    )))
}

fn stream_trainer(
    job: &Job,
    rollout: Instances,
) -> Result<StreamTrainer<PlacementCost>, PlacementError> {
    let planner =
        Planner::new(job.raw.planner.rule.into(), placed_job(job), rollout.tensor_parallel)?;
    let cost = PlacementCost::new(job.cost(), job.training_layout, job.longest_sequence())
        .with_kv_transfer(kv_transfer_bandwidth(job));
    StreamTrainer::new(stream_options(job), planner, cost)
}

fn recipe_error(error: PlacementError) -> RecipeError {
    let key = match error {
        PlacementError::Range { field, expected, found } => {
            return out_of_bounds(format!("stream.{field}"), expected, found);
        }
        PlacementError::Replica { .. } => "training.tensor_parallel",
        PlacementError::Capacity { .. } => {
            let reason = format!("{error}: data.max_response_length");
            return RecipeError::Type { key: TENSOR_PARALLEL.to_owned(), reason };
        }
        PlacementError::TensorParallel { .. } => TENSOR_PARALLEL,
        PlacementError::EmptyProfile
        | PlacementError::Profile { .. }
        | PlacementError::Zero { .. } => "cluster",
    };
    RecipeError::Type { key: key.to_owned(), reason: error.to_string() }
}

/// The settings that determine the memory for weights and KV cache.
const MEMORY_KEYS: &str = "cluster.hardware.memory, rollout.gpu_memory_utilization, calibration.memory_share and calibration.activation_bytes";

const TENSOR_PARALLEL: &str = "rollout.tensor_parallel";

/// Returns the instances at the beginning of a run.
pub(super) fn initial_placement(job: &Job) -> Instances {
    let tensor_parallel = job.raw.rollout.tensor_parallel;
    Instances { instances: job.rollout_gpus() / tensor_parallel, tensor_parallel }
}

/// Returns the bandwidth at which an instance sends KV caches, in bytes/s; `None` if moved responses are computed again.
pub(super) fn kv_transfer_bandwidth(job: &Job) -> Option<f64> {
    Some(job.raw.stream.kv_transfer_bandwidth).filter(|&bandwidth| bandwidth > 0.0)
}

fn placed_job(job: &Job) -> placement::Job {
    let layout = job.training_layout;
    placement::Job {
        devices: job.raw.cluster.gpus,
        devices_per_server: job.hardware.devices_per_server,
        training_replica: layout.devices(),
        response_length: job.raw.data.max_response_length,
    }
}

fn stream_options(job: &Job) -> placement::StreamTrainerOptions {
    let stream = &job.raw.stream;
    let trigger = match stream.trigger {
        _ if job.placement == SimulatedPlacement::Colocated => placement::Trigger::Never,
        raw::Trigger::Never => placement::Trigger::Never,
        raw::Trigger::Fixed => placement::Trigger::Fixed { share: stream.from },
        raw::Trigger::Adaptive => {
            placement::Trigger::Adaptive { from: stream.from, to: stream.to, every: stream.every }
        }
        raw::Trigger::Predicted => {
            placement::Trigger::Predicted { from: stream.from, every: stream.every }
        }
    };
    placement::StreamTrainerOptions {
        rounds: stream.rounds,
        trigger,
        keep: stream.keep,
        headroom: stream.headroom,
        consolidate: stream.consolidate,
    }
}
