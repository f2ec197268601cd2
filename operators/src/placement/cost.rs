//! The cost of a step: the interface through which placement policies compare alternatives.

use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::PlacementError;

/// The devices of a job, how they are grouped, and the maximum response length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// The number of devices that rollout and training share. At least 1.
    pub devices: u32,
    /// The number of devices of a server, at least 1. A tensor-parallel group never spans several servers.
    pub devices_per_server: u32,
    /// The number of devices of one data-parallel replica of the trainer (tensor x pipeline x context parallel). At least 1; training uses
    /// whole replicas.
    pub training_replica: u32,
    /// The maximum length of a response, in tokens. At least 1. (verl: `data.max_response_length`)
    pub response_length: u32,
}

/// The durations and capacities of the parts of a step, from a model or from measurements.
///
/// # Contract
/// Values are finite and not negative, except that the time of a configuration that cannot run is infinite. Equal arguments yield equal
/// results.
///
/// # Example
/// ```
/// use rollpacker_operators::placement::planner::Rule;
/// use rollpacker_operators::placement::{
///     Job, PlacementError, Planner, StepCost, StreamTrainer, StreamTrainerOptions,
/// };
/// use rollpacker_stages::rollout::Placement;
///
/// /// A device decodes in 20 ms, trains on 10,000 tokens per second and caches 8,192 tokens.
/// struct Linear;
///
/// impl StepCost for Linear {
///     fn decode_iteration(&self, tensor_parallel: u32, _running: f64, _kv_tokens: f64) -> f64 {
///         0.02 / f64::from(tensor_parallel)
///     }
///
///     fn training(&self, devices: u32, tokens: f64) -> f64 {
///         tokens / (10_000.0 * f64::from(devices))
///     }
///
///     fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
///         8192 * u64::from(tensor_parallel)
///     }
///
///     fn reconfiguration(&self, from: Placement, to: Placement, _kv_tokens: f64) -> f64 {
///         if from == to { 0.0 } else { 5.0 }
///     }
/// }
///
/// // A response of maximum length does not fit on one device, but on two.
/// let job = Job { devices: 4, devices_per_server: 4, training_replica: 1, response_length: 16_384 };
/// let on = |tensor_parallel| {
///     let planner = Planner::new(Rule::Fixed, job, tensor_parallel)?;
///     StreamTrainer::new(StreamTrainerOptions::paper(), planner, Linear).map(drop)
/// };
/// assert!(matches!(on(1), Err(PlacementError::Capacity { capacity: 8192, .. })));
/// assert_eq!(on(2), Ok(()));
/// ```
pub trait StepCost {
    /// Returns the seconds of one decode iteration of an instance over `tensor_parallel` devices. The instance runs `running` responses,
    /// which occupy `kv_tokens` tokens of its KV cache in total. Both are means and need not be integers.
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64;

    /// Returns the seconds in which `devices` devices compute the gradient of `tokens` tokens, prompts included, without the optimizer
    /// step.
    fn training(&self, devices: u32, tokens: f64) -> f64;

    /// Returns the number of tokens that the KV cache of an instance over `tensor_parallel` devices holds, or 0 if the weights do not fit.
    fn kv_capacity(&self, tensor_parallel: u32) -> u64;

    /// Returns the seconds that a change of placement takes while `kv_tokens` tokens are cached: moving the weights, and recomputing the
    /// caches of the responses that have to move.
    fn reconfiguration(&self, from: Placement, to: Placement, kv_tokens: f64) -> f64;
}

impl Job {
    /// Returns the job if its values are valid.
    ///
    /// # Errors
    /// If a value is 0, or a training replica has more devices than the job.
    pub fn validated(self) -> Result<Self, PlacementError> {
        let numbers = [
            ("devices", self.devices),
            ("devices_per_server", self.devices_per_server),
            ("training_replica", self.training_replica),
            ("response_length", self.response_length),
        ];
        if let Some((field, _)) = numbers.into_iter().find(|(_, number)| *number == 0) {
            return Err(PlacementError::Zero { field });
        }
        if self.training_replica > self.devices {
            Err(PlacementError::Replica {
                devices: self.devices,
                training_replica: self.training_replica,
            })
        } else {
            Ok(self)
        }
    }

    /// Returns the placement with as many instances of `tensor_parallel` devices as fit on the devices of the job.
    ///
    /// # Panics
    /// If `tensor_parallel` is 0.
    #[must_use]
    pub fn rollout(self, tensor_parallel: u32) -> Placement {
        Placement { instances: self.devices / tensor_parallel, tensor_parallel }
    }

    /// Returns the number of devices that can train while `rollout` generates, in whole training replicas; 0 if `rollout` has more
    /// devices than the job.
    #[must_use]
    pub fn training_beside(self, rollout: Placement) -> u32 {
        let free = self.devices.saturating_sub(rollout.devices());
        free - free % self.training_replica
    }

    /// Returns `true` if instances of `tensor_parallel` devices divide the devices of a server evenly and do not exceed the devices of the
    /// job. Returns `false` for 0.
    #[must_use]
    pub fn allows(self, tensor_parallel: u32) -> bool {
        tensor_parallel > 0
            && tensor_parallel <= self.devices
            && self.devices_per_server.is_multiple_of(tensor_parallel)
    }
}
