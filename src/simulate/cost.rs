//! The cost model of the simulated cluster, as the interface of placement policies.

use rollpacker_operators::placement::StepCost;
use rollpacker_simulated::cluster::{Cost, TrainingLayout};
use rollpacker_stages::rollout::Placement;

/// The cost model with which placement policies predict; the simulated stages use the same model.
#[derive(Clone, Debug)]
pub(super) struct PlacementCost {
    cost: Cost,
    layout: TrainingLayout,
    /// The number of tokens that each KV cache must be able to hold: the maximum length of a prompt with its response.
    longest_sequence: u64,
    /// Bandwidth at which an instance sends KV caches, in bytes/s; `None` if they are computed again.
    kv_transfer_bandwidth: Option<f64>,
}

/// The length of a sequence, in tokens, where only a total number of tokens is known: about the mean of the paper's jobs, prompt included.
/// The additional attention cost of longer sequences is neglected.
pub(super) const NOMINAL_SEQUENCE_TOKENS: f64 = 1500.0;

/// Maximum number of sequences that are packed individually. The time of a larger batch is extrapolated in proportion to its tokens.
const MAX_SEQUENCES: f64 = 4096.0;

impl PlacementCost {
    /// Creates the cost model. A copy of the model is trained on devices in the layout `layout`, and each engine instance must hold
    /// `longest_sequence` tokens.
    #[must_use]
    pub(super) fn new(cost: Cost, layout: TrainingLayout, longest_sequence: u64) -> Self {
        Self { cost, layout, longest_sequence, kv_transfer_bandwidth: None }
    }

    /// Sets the bandwidth at which an instance sends KV caches to other instances, in bytes/s. With `None`, the default, KV caches are not
    /// sent but computed again.
    #[must_use]
    pub(super) fn with_kv_transfer(self, kv_transfer_bandwidth: Option<f64>) -> Self {
        Self { kv_transfer_bandwidth, ..self }
    }
}

impl StepCost for PlacementCost {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64 {
        self.cost.decode(tensor_parallel).iteration(running.round() as u32, kv_tokens as u64)
    }

    fn training(&self, devices: u32, tokens: f64) -> f64 {
        if devices == 0 {
            return f64::INFINITY;
        }
        let sequences = (tokens / NOMINAL_SEQUENCE_TOKENS).ceil().clamp(1.0, MAX_SEQUENCES);
        let predicted = self.cost.training_of_equal_lengths(
            devices,
            self.layout,
            sequences as usize,
            NOMINAL_SEQUENCE_TOKENS,
        );
        predicted * tokens / (sequences * NOMINAL_SEQUENCE_TOKENS)
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        let capacity = self.cost.kv_capacity(tensor_parallel).unwrap_or(0);
        // Policies check the capacity against the longest response alone; the prompt has to fit as well.
        if capacity >= self.longest_sequence { capacity } else { 0 }
    }

    fn reconfiguration(&self, from: Placement, to: Placement, kv_tokens: f64) -> f64 {
        if from == to {
            return 0.0;
        }
        let (start, sending) = if from.tensor_parallel == to.tensor_parallel {
            (0.0, from.instances.saturating_sub(to.instances))
        } else {
            (self.cost.reconfiguration(), from.instances)
        };
        if sending == 0 {
            return start;
        }
        let tokens_each = kv_tokens / f64::from(from.instances.max(1));
        if let Some(bandwidth) = self.kv_transfer_bandwidth {
            return start + tokens_each * self.cost.model().kv_bytes_per_token() / bandwidth;
        }
        // The KV cache that has to move is recomputed by prefill, one response after the other, on the remaining instances.
        let moved = f64::from(sending) * tokens_each;
        let responses = moved / NOMINAL_SEQUENCE_TOKENS / f64::from(to.instances.max(1));
        start + responses * self.cost.prefill(to.tensor_parallel, NOMINAL_SEQUENCE_TOKENS)
    }
}
