//! What a step costs: the interface through which placement policies compare what they could do.

use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::PlacementError;

/// The devices of a job, and what runs on them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// Devices that rollout and training share.
    pub devices: u32,
    /// Devices of a server; a tensor-parallel group never leaves one.
    pub devices_per_server: u32,
    /// Devices of one data-parallel replica of the trainer (tensor x pipeline x context parallel); training uses whole replicas.
    pub training_replica: u32,
    /// Longest response, in tokens.
    pub response_length: u32,
}

/// Seconds and tokens of the parts of a step, from a model or from measurements.
///
/// # Contract
/// Values are finite and not negative, except that what cannot run takes infinitely long. Equal questions get equal answers.
pub trait StepCost {
    /// Seconds of one decode iteration of an instance over `tensor_parallel` devices, with `running` responses of `kv_tokens` tokens
    /// together in its cache; both are means and so need not be whole.
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64;

    /// Seconds in which `devices` devices turn `tokens` tokens, prompts included, into their gradient; the optimizer step left out.
    fn training(&self, devices: u32, tokens: f64) -> f64;

    /// Tokens that the KV cache of an instance over `tensor_parallel` devices holds; 0 if the weights do not fit.
    fn kv_capacity(&self, tensor_parallel: u32) -> u64;

    /// Seconds that going from one placement to another takes while `kv_tokens` tokens are cached: weights moved, and the caches of
    /// what has to move computed again.
    fn reconfiguration(&self, from: Placement, to: Placement, kv_tokens: f64) -> f64;
}

impl Job {
    /// The job, if its numbers go together.
    ///
    /// # Errors
    /// If one is 0, or a training replica has more devices than the job.
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
        match self.training_replica > self.devices {
            true => Err(PlacementError::Replica {
                devices: self.devices,
                training_replica: self.training_replica,
            }),
            false => Ok(self),
        }
    }

    /// All devices that instances of `tensor_parallel` devices can use.
    #[must_use]
    pub fn rollout(self, tensor_parallel: u32) -> Placement {
        Placement { instances: self.devices / tensor_parallel, tensor_parallel }
    }

    /// Devices of the whole training replicas that find room beside `rollout`.
    #[must_use]
    pub fn training_beside(self, rollout: Placement) -> u32 {
        let free = self.devices - rollout.devices();
        free - free % self.training_replica
    }

    /// Whether groups of `tensor_parallel` devices fill servers.
    #[must_use]
    pub fn allows(self, tensor_parallel: u32) -> bool {
        tensor_parallel > 0
            && tensor_parallel <= self.devices
            && self.devices_per_server.is_multiple_of(tensor_parallel)
    }
}
