//! What placement policies predict with: the costs of the cluster that they place on.

use rollpacker_operators::placement::StepCost;
use rollpacker_stages::cluster::{Cost, TrainingLayout};
use rollpacker_stages::rollout::Placement;

/// The costs that the simulated stages have, as predictions. What a policy does not know is the lengths that will be drawn.
#[derive(Clone, Debug)]
pub struct Predicted {
    /// The costs.
    pub cost: Cost,
    /// How the trainer is laid out.
    pub layout: TrainingLayout,
}

/// Tokens of the sequence by which the arithmetic of training a token is taken, and that of computing a cache again.
const SEQUENCE: f64 = 2048.0;

impl StepCost for Predicted {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64 {
        let decode = self.cost.decode(tensor_parallel);
        decode.iteration(running.round() as u32, kv_tokens.round() as u64)
    }

    fn training(&self, devices: u32, tokens: f64) -> f64 {
        if devices == 0 {
            return f64::INFINITY;
        }
        let flops = self.cost.training_flops(self.layout, SEQUENCE) * tokens / SEQUENCE;
        self.cost.training(devices, self.layout, flops)
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        self.cost.kv_capacity(tensor_parallel).unwrap_or(0)
    }

    fn reconfiguration(&self, from: Placement, to: Placement, kv_tokens: f64) -> f64 {
        if from == to || to.instances == 0 {
            return 0.0;
        }
        let restarts = from.tensor_parallel != to.tensor_parallel;
        let stays = f64::from(to.instances) / f64::from(from.instances.max(1));
        let moved = if restarts { 1.0 } else { (1.0 - stays).max(0.0) };
        let sequences = moved * kv_tokens / SEQUENCE / f64::from(to.instances);
        let computed = sequences * self.cost.prefill(to.tensor_parallel, SEQUENCE);
        computed + if restarts { self.cost.reconfiguration() } else { 0.0 }
    }
}
