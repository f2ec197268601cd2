//! Time and memory of training.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::Cost;
use super::cost::growth;

/// Bytes per parameter of the weights (bf16) and of the gradient (f32), on each device that holds the parameter.
const WEIGHT_AND_GRADIENT: f64 = 2.0 + 4.0;
/// Bytes per parameter of the optimizer's state (f32 weight and two moments), sharded over all devices that hold the parameter.
const OPTIMIZER: f64 = 12.0;
/// Bytes per token and unit of the hidden state that a layer keeps between forward and backward: its input, in bf16. The rest is
/// recomputed.
const CHECKPOINT: f64 = 2.0;
/// Bytes per token and unit of the hidden state for the one layer that is being recomputed (Korthikanti et al., 2022, equation 2, without
/// attention scores).
const RECOMPUTED: f64 = 34.0;

/// The layout of a copy of the model over devices during training. A number of 0 counts as 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingLayout {
    /// The number of devices over which each layer is sharded.
    pub tensor_parallel: u32,
    /// The number of pipeline stages, each with an equal part of the layers.
    pub pipeline: u32,
    /// The number of devices over which a sequence is split.
    pub context: u32,
    /// Maximum number of tokens of a micro-batch into which sequences are packed; a longer sequence is a micro-batch of its own.
    pub micro_batch_tokens: u32,
}

impl TrainingLayout {
    /// Returns the number of devices that hold one copy of the model.
    #[must_use]
    pub fn devices(self) -> u32 {
        let Self { tensor_parallel, pipeline, context, .. } = self.at_least_one();
        tensor_parallel.saturating_mul(pipeline).saturating_mul(context)
    }

    /// Returns the number of devices over which a micro-batch is split.
    fn sequence_devices(self) -> f64 {
        f64::from(self.tensor_parallel) * f64::from(self.context)
    }

    /// Returns the layout with 1 for each number of 0.
    fn at_least_one(self) -> Self {
        let Self { tensor_parallel, pipeline, context, micro_batch_tokens } = self;
        Self {
            tensor_parallel: tensor_parallel.max(1),
            pipeline: pipeline.max(1),
            context: context.max(1),
            micro_batch_tokens: micro_batch_tokens.max(1),
        }
    }
}

impl Cost {
    /// Returns the FLOPs of training on a sequence of `tokens` tokens, prompt and response.
    #[must_use]
    pub fn training_flops(&self, tokens: f64) -> f64 {
        // A forward pass takes 2 FLOPs per parameter and token, and with a causal mask 2 per layer, unit of the hidden state and pair of
        // tokens.
        let Self { model, calibration, .. } = self;
        let attention = f64::from(model.layers) * f64::from(model.hidden_size) * tokens;
        calibration.training_flops_per_parameter
            * tokens
            * (model.multiplied_parameters() + attention)
    }

    /// Returns the seconds that one call of the trainer takes on `devices` devices for the gradient of sequences with these numbers of
    /// `tokens`.
    ///
    /// There are as many copies of the model as fit on the devices, at least one and at most one per sequence. The sequences are
    /// distributed over the copies, the most expensive first, each to the copy with the least work so far (the longest-processing-time
    /// rule). A copy packs its sequences into micro-batches and runs these through its pipeline stages one after the other, so that each
    /// call has the bubble of the pipeline once. The call ends with the last copy.
    #[must_use]
    pub fn training(&self, devices: u32, layout: TrainingLayout, tokens: &[f64]) -> f64 {
        let layout = layout.at_least_one();
        let mut tokens = tokens.to_vec();
        tokens.sort_by(|a, b| b.total_cmp(a));
        let copies = (devices / layout.devices()).max(1) as usize;
        let copies = copies.min(tokens.len().max(1));
        let mut by_end: BinaryHeap<_> = (0..copies).map(|copy| Reverse((Nanos(0), copy))).collect();
        let mut packed = vec![Replica::default(); copies];
        for tokens in tokens {
            let Some(mut first) = by_end.peek_mut() else { break };
            let Reverse((_, copy)) = *first;
            packed[copy].add(tokens, self, layout);
            *first = Reverse((Nanos::from_secs_f64(packed[copy].seconds(layout)), copy));
        }
        packed.iter().map(|copy| copy.seconds(layout)).fold(0.0, f64::max)
    }

    /// Returns the seconds of the gradient of `sequences` sequences of `tokens` tokens each: the same as [`training`](Self::training), but
    /// without a list of sequences.
    #[must_use]
    pub fn training_of_equal_lengths(
        &self,
        devices: u32,
        layout: TrainingLayout,
        sequences: usize,
        tokens: f64,
    ) -> f64 {
        let layout = layout.at_least_one();
        let copies = (devices / layout.devices()).max(1) as usize;
        let mut busiest = Replica::default();
        (0..sequences.div_ceil(copies)).for_each(|_| busiest.add(tokens, self, layout));
        busiest.seconds(layout)
    }

    /// Returns the seconds of a micro-batch of `flops` [FLOPs](Self::training_flops) in one pipeline stage of one copy of the model.
    /// Launching kernels and communication between devices take a minimum time per layer, however few the tokens are.
    fn micro_batch(&self, layout: TrainingLayout, flops: f64) -> f64 {
        let calibration = &self.calibration;
        let rate =
            f64::from(layout.devices()) * self.hardware.flops * calibration.training_utilisation;
        let layers = f64::from(self.model.layers) / f64::from(layout.pipeline);
        let latency = calibration.training_layer * growth(layout.sequence_devices());
        layers * latency + flops / rate
    }

    /// Returns the bytes that training holds on a device: weights, gradient, optimizer state, and the activations of one micro-batch for
    /// each pipeline stage, recomputed by layer. `devices` devices share the optimizer's state, and the longest sequence has `longest`
    /// tokens.
    #[must_use]
    pub fn training_bytes(&self, devices: u32, layout: TrainingLayout, longest: f64) -> f64 {
        let layout = layout.at_least_one();
        let parts = f64::from(layout.tensor_parallel) * f64::from(layout.pipeline);
        let held = self.model.parameters / parts;
        let sharers = (f64::from(devices) / parts).max(1.0);
        let tokens = longest.max(f64::from(layout.micro_batch_tokens)) / layout.sequence_devices();
        // With s stages, the first one holds 1/s of the layers but keeps the layer inputs of s micro-batches, so s cancels out.
        let kept = CHECKPOINT * f64::from(self.model.layers) + RECOMPUTED;
        let activations = tokens * f64::from(self.model.hidden_size) * kept;
        held * (WEIGHT_AND_GRADIENT + OPTIMIZER / sharers) + activations
    }

    /// Returns the seconds of the optimizer step for `responses` responses of at most `longest` tokens. This includes the controller's time
    /// for the padded batch.
    #[must_use]
    pub fn optimizer(&self, responses: u64, longest: u32) -> f64 {
        let calibration = &self.calibration;
        let padded = f64::from(longest) + super::calibration::PADDED_PROMPT;
        calibration.optimizer_step + calibration.padding_per_token * responses as f64 * padded
    }
}

/// The work of one copy of the model, as micro-batches.
#[derive(Clone, Copy, Debug, Default)]
struct Replica {
    /// Seconds of all full micro-batches in one pipeline stage.
    full: f64,
    /// Seconds of the longest full micro-batch.
    longest: f64,
    /// FLOPs of the micro-batch that is being packed.
    flops: f64,
    /// Tokens of the micro-batch that is being packed.
    tokens: f64,
    /// Seconds of the micro-batch that is being packed.
    open: f64,
}

impl Replica {
    fn add(&mut self, tokens: f64, cost: &Cost, layout: TrainingLayout) {
        if self.tokens + tokens > f64::from(layout.micro_batch_tokens) {
            self.full += self.open;
            self.longest = self.longest.max(self.open);
            (self.flops, self.tokens) = (0.0, 0.0);
        }
        self.flops += cost.training_flops(tokens);
        self.tokens += tokens;
        self.open = cost.micro_batch(layout, self.flops);
    }

    /// Returns the seconds until the last micro-batch has left the last stage.
    fn seconds(&self, layout: TrainingLayout) -> f64 {
        let bubble = f64::from(layout.pipeline - 1) * self.longest.max(self.open);
        self.full + self.open + bubble
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Calibration, Hardware, ModelShape};
    use super::*;

    const LAYOUT: TrainingLayout =
        TrainingLayout { tensor_parallel: 2, pipeline: 1, context: 1, micro_batch_tokens: 8192 };

    fn cost(model: &str) -> Cost {
        let hardware = Hardware::built_in("H800").unwrap();
        Cost::new(hardware, ModelShape::built_in(model).unwrap(), Calibration::default())
    }

    #[test]
    fn a_longer_sequence_costs_more_than_its_share() {
        let flops = |tokens| cost("Qwen2.5-7B").training_flops(tokens);
        assert!(flops(16_000.0) > 2.0 * flops(8000.0));
    }

    #[test]
    fn training_takes_the_flops_of_its_forward_passes() {
        let cost = cost("Qwen2.5-7B");
        let passes = cost.calibration().training_flops_per_parameter / 2.0;
        let rate = cost.hardware().flops * cost.calibration().prefill_utilisation;
        let forward = (cost.prefill(1, 8192.0) - cost.calibration().prefill_overhead) * rate;
        let flops = cost.training_flops(8192.0);
        assert!((flops - passes * forward).abs() < 1e-9 * flops, "{flops} {passes} {forward}");
    }

    #[test]
    fn packed_sequences_fill_the_devices_and_single_ones_do_not() {
        let cost = cost("Qwen2.5-7B");
        let time = |micro_batch_tokens| {
            let layout = TrainingLayout { micro_batch_tokens, ..LAYOUT };
            cost.training(2, layout, &[400.0; 40])
        };
        assert!(time(1) > 2.0 * time(8000), "{} {}", time(1), time(8000));
        assert!(time(400) > 0.999 * time(1));
    }

    #[test]
    fn a_call_ends_with_the_busiest_copy() {
        let cost = cost("Qwen2.5-7B");
        let layout = TrainingLayout { micro_batch_tokens: 1, ..LAYOUT };
        let one = cost.training(2, layout, &[1000.0]);
        let time = |sequences: usize| cost.training(8, layout, &vec![1000.0; sequences]) / one;
        assert_eq!(
            [1, 4, 5, 8].map(time).map(|time| (time * 1e6).round() / 1e6),
            [1.0, 1.0, 2.0, 2.0]
        );
    }

    #[test]
    fn training_alike_matches_training_on_equal_sequences() {
        let cost = cost("Qwen2.5-7B");
        for (sequences, micro_batch_tokens) in [(1, 1), (7, 4000), (64, 8192), (101, 3000)] {
            let layout = TrainingLayout { pipeline: 2, micro_batch_tokens, ..LAYOUT };
            let alike = cost.training_of_equal_lengths(16, layout, sequences, 1500.0);
            assert_eq!(alike, cost.training(16, layout, &vec![1500.0; sequences]));
        }
    }

    #[test]
    fn a_layout_with_zeros_counts_them_as_one() {
        let cost = cost("Qwen2.5-7B");
        let of = |number| {
            let (tensor_parallel, pipeline) = (number, number);
            let (context, micro_batch_tokens) = (number, number);
            TrainingLayout { tensor_parallel, pipeline, context, micro_batch_tokens }
        };
        let costs = |layout: TrainingLayout| {
            (
                layout.devices(),
                cost.training(2, layout, &[700.0, 900.0]),
                cost.training_of_equal_lengths(2, layout, 3, 700.0),
                cost.training_bytes(2, layout, 900.0),
            )
        };
        assert_eq!(costs(of(0)), costs(of(1)));
        assert_eq!(of(u32::MAX).devices(), u32::MAX);
    }

    #[test]
    fn each_call_pays_the_bubble_of_its_pipeline() {
        let cost = cost("Qwen2.5-14B");
        let layout = TrainingLayout { pipeline: 4, micro_batch_tokens: 1, ..LAYOUT };
        let time = |sequences: usize| cost.training(8, layout, &vec![1000.0; sequences]);
        let stage = time(1) / 4.0;
        let expected = (8.0 + 3.0) * stage;
        assert!((time(8) - expected).abs() < 1e-9 * expected, "{} {expected}", time(8));
    }

    #[test]
    fn a_copy_on_too_few_devices_does_not_fit() {
        let cost = cost("Qwen2.5-32B");
        let bytes = |tensor_parallel, pipeline, context| {
            let layout =
                TrainingLayout { tensor_parallel, pipeline, context, micro_batch_tokens: 1 };
            cost.training_bytes(64, layout, 34_816.0) * 1e-9
        };
        assert!(bytes(1, 1, 1) > 200.0);
        let of_the_paper = bytes(4, 1, 4);
        assert!((50.0..70.0).contains(&of_the_paper), "{of_the_paper}");
        assert!(bytes(4, 2, 2) < of_the_paper);
    }
}
