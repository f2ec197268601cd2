//! Tests of placement policies.

mod forecast;
mod laws;
mod planner;
mod profile;
mod scale_down;
mod timeline;
mod triggers;

use rollpacker_stages::rollout::Placement;
use serde::{Deserialize, Serialize};

use super::{Job, StepCost};

/// Costs that are easy to compute by hand.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Cost {
    /// Seconds of an iteration on one device for any batch; more devices divide it.
    iteration: f64,
    /// Seconds that each running response adds to an iteration.
    response: f64,
    /// Tokens per second that a device trains on.
    training: f64,
    /// Tokens that a device caches.
    capacity: u64,
    /// Seconds that a change of placement takes.
    change: f64,
}

impl StepCost for Cost {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, _: f64) -> f64 {
        self.iteration / f64::from(tensor_parallel) + self.response * running
    }

    fn training(&self, devices: u32, tokens: f64) -> f64 {
        tokens / (self.training * f64::from(devices))
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        self.capacity * u64::from(tensor_parallel)
    }

    fn reconfiguration(&self, from: Placement, to: Placement, _: f64) -> f64 {
        if from == to { 0.0 } else { self.change }
    }
}

/// Returns a job of four devices in servers of four, with training replicas of one device and responses of at most 100 tokens.
fn job() -> Job {
    Job { devices: 4, devices_per_server: 4, training_replica: 1, response_length: 100 }
}

fn cost() -> Cost {
    Cost { iteration: 0.1, response: 0.0, training: 10.0, capacity: 1000, change: 0.0 }
}
