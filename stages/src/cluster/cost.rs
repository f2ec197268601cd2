//! How long the work of a step takes; all times in seconds.

use super::{Calibration, Hardware, ModelShape, calibration};
use serde::{Deserialize, Serialize};

/// The cost model of one model on one kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    hardware: Hardware,
    model: ModelShape,
    calibration: Calibration,
}

/// Devices that hold one copy of the model while it is trained.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TrainingLayout {
    /// Devices over which each layer is sharded.
    pub tensor_parallel: u32,
    /// Groups of layers.
    pub pipeline: u32,
    /// Parts of each sequence.
    pub context: u32,
}

/// A model does not fit.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// Weights leave no room for a KV cache.
    #[error(
        "{model} does not fit on {tensor_parallel} x {hardware}: weights take {weights:.1} GB, expected less than {room:.1} GB"
    )]
    Memory {
        /// The model.
        model: String,
        /// The device.
        hardware: String,
        /// Devices of an instance.
        tensor_parallel: u32,
        /// Bytes of the weights, in GB.
        weights: f64,
        /// Bytes that weights and KV cache may take, in GB.
        room: f64,
    },
    /// A tensor-parallel group would leave its server, or has no device.
    #[error(
        "tensor_parallel: expected 1 to {devices_per_server}, the devices of a server, found {tensor_parallel}"
    )]
    TensorParallel {
        /// Devices of an instance.
        tensor_parallel: u32,
        /// Devices of a server.
        devices_per_server: u32,
    },
}

impl Cost {
    /// The cost of `model` on `hardware`.
    #[must_use]
    pub fn new(hardware: Hardware, model: ModelShape, calibration: Calibration) -> Self {
        Self { hardware, model, calibration }
    }

    /// The devices.
    #[must_use]
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// The model.
    #[must_use]
    pub fn model(&self) -> &ModelShape {
        &self.model
    }

    /// The fitted constants.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Tokens that the KV cache of an instance of `tensor_parallel` devices holds.
    ///
    /// # Errors
    /// If there is no such instance, or the weights leave no room.
    pub fn kv_capacity(&self, tensor_parallel: u32) -> Result<u64, CostError> {
        let devices_per_server = self.hardware.devices_per_server;
        if !(1..=devices_per_server).contains(&tensor_parallel) {
            return Err(CostError::TensorParallel { tensor_parallel, devices_per_server });
        }
        let Calibration { memory_share, activation_bytes, .. } = self.calibration;
        let a_device = self.hardware.memory * memory_share - activation_bytes;
        let room = f64::from(tensor_parallel) * a_device;
        let weights = self.model.weight_bytes();
        let tokens = (room - weights) / self.model.kv_bytes_per_token();
        if tokens >= 1.0 {
            return Ok(tokens as u64);
        }
        Err(CostError::Memory {
            model: self.model.name.clone(),
            hardware: self.hardware.name.clone(),
            tensor_parallel,
            weights: weights * 1e-9,
            room: room * 1e-9,
        })
    }

    /// How an instance of `tensor_parallel` devices decodes.
    #[must_use]
    pub fn decode(&self, tensor_parallel: u32) -> Decode {
        let Self { hardware, model, calibration } = self;
        let devices = f64::from(tensor_parallel);
        let bandwidth = devices * hardware.memory_bandwidth;
        let (latency, transfer) = self.all_reduces(devices);
        Decode {
            fixed: calibration.iteration_overhead + latency,
            a_response: calibration.response_overhead + transfer,
            weights: model.weight_bytes() / (bandwidth * calibration.weight_bandwidth),
            arithmetic: 2.0 * model.parameters
                / (devices * hardware.flops * calibration.decode_utilisation),
            a_token: model.kv_bytes_per_token() / (bandwidth * calibration.kv_bandwidth),
        }
    }

    /// Seconds of an iteration that tensor parallelism takes: whatever runs, and for each running response.
    fn all_reduces(&self, devices: f64) -> (f64, f64) {
        if devices <= 1.0 {
            return (0.0, 0.0);
        }
        let layers = f64::from(self.model.layers);
        let latency = self.calibration.all_reduce_latency * (0.65 + 0.35 * devices.log2());
        // Two all-reduces a layer; each sends and receives a hidden state in bf16, but for the device's own share of it.
        let bytes = 8.0 * f64::from(self.model.hidden_size) * (devices - 1.0) / devices;
        (layers * latency, layers * bytes / self.hardware.interconnect_bandwidth)
    }

    /// Running `tokens` tokens of a sequence through the model at once on an instance of `tensor_parallel` devices, which decodes
    /// nothing meanwhile.
    #[must_use]
    pub fn prefill(&self, tensor_parallel: u32, tokens: f64) -> f64 {
        let Self { hardware, model, calibration } = self;
        let attention = 2.0 * f64::from(model.layers) * f64::from(model.hidden_size);
        let flops = 2.0 * model.parameters * tokens + attention * tokens * tokens;
        let rate = f64::from(tensor_parallel) * hardware.flops * calibration.prefill_utilisation;
        calibration.prefill_overhead + flops / rate
    }

    /// The transfer of new weights to an instance.
    #[must_use]
    pub fn weight_sync(&self) -> f64 {
        self.calibration.weight_sync_per_parameter * self.model.parameters
    }

    /// What a rollout with new weights takes before its first token, beside their transfer: resharding, the KV cache set up anew.
    #[must_use]
    pub fn rollout_overhead(&self) -> f64 {
        self.calibration.rollout_overhead
    }

    /// Starting instances with another tensor parallelism.
    #[must_use]
    pub fn reconfiguration(&self) -> f64 {
        self.calibration.reconfiguration
    }

    /// Arithmetic of training a sequence of `tokens` tokens, prompt and response.
    #[must_use]
    pub fn training_flops(&self, layout: TrainingLayout, tokens: f64) -> f64 {
        let Self { model, calibration, .. } = self;
        let attention = 5.0 * f64::from(model.layers) * f64::from(model.hidden_size);
        let filled = calibration.saturating_tokens * layout.sequence_devices();
        calibration.training_flops_per_parameter * model.parameters * tokens.max(filled)
            + attention * tokens * tokens
    }

    /// Gradient of sequences of `flops` [arithmetic](Self::training_flops) on `devices` devices, as their share of a balanced batch.
    #[must_use]
    pub fn training(&self, devices: u32, layout: TrainingLayout, flops: f64) -> f64 {
        flops / (f64::from(devices) * self.hardware.flops * layout.utilisation())
    }

    /// The optimizer step after `responses` responses, the longest of them `longest` tokens: the padded batch passes the controller.
    #[must_use]
    pub fn optimizer(&self, responses: u64, longest: u32) -> f64 {
        let Calibration { optimizer_step, padding_per_token, .. } = self.calibration;
        let padded = f64::from(longest) + calibration::PADDED_PROMPT;
        optimizer_step + padding_per_token * responses as f64 * padded
    }
}

impl TrainingLayout {
    /// Devices over which a sequence is split.
    fn sequence_devices(self) -> f64 {
        f64::from(self.tensor_parallel) * f64::from(self.context)
    }

    /// Share of the peak that training reaches.
    #[must_use]
    pub fn utilisation(self) -> f64 {
        let copy = self.sequence_devices() * f64::from(self.pipeline);
        let table = &calibration::TRAINING_UTILISATION;
        let above = table.partition_point(|(devices, _)| *devices < copy).clamp(1, table.len() - 1);
        let [(low, from), (high, to)] = [table[above - 1], table[above]];
        from + (to - from) * ((copy / low).log2() / (high / low).log2()).clamp(0.0, 1.0)
    }
}

/// How an engine instance decodes: an iteration samples a token for each of the running responses.
///
/// With `n` responses running and `s` tokens in their KV caches an iteration takes `base(n) + a * s` seconds, and leaves `s + n` tokens.
/// So iterations between two events have a closed form, and a simulation jumps from event to event.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decode {
    /// Seconds, whatever runs.
    fixed: f64,
    /// Seconds a response.
    a_response: f64,
    /// Seconds to read the weights.
    weights: f64,
    /// Seconds of arithmetic a response; hidden by the reading of the weights until it exceeds it.
    arithmetic: f64,
    /// Seconds to read a token of KV cache.
    a_token: f64,
}

impl Decode {
    /// The same, `factor` times as slow: something else runs on the devices.
    #[must_use]
    pub fn slowed(self, factor: f64) -> Self {
        Self {
            fixed: self.fixed * factor,
            a_response: self.a_response * factor,
            weights: self.weights * factor,
            arithmetic: self.arithmetic * factor,
            a_token: self.a_token * factor,
        }
    }

    /// One iteration of `running` responses that hold `tokens` tokens.
    #[must_use]
    pub fn iteration(&self, running: u32, tokens: u64) -> f64 {
        self.base(running) + self.a_token * tokens as f64
    }

    /// `count` iterations on end.
    #[must_use]
    pub fn iterations(&self, count: u64, running: u32, tokens: u64) -> f64 {
        let count = count as f64;
        let grown = f64::from(running) * count * (count - 1.0) * 0.5;
        count * self.base(running) + self.a_token * (count * tokens as f64 + grown)
    }

    /// How many iterations end within `seconds`: the inverse of [`iterations`](Self::iterations), rounded down.
    #[must_use]
    pub fn within(&self, seconds: f64, running: u32, tokens: u64) -> u64 {
        // a n / 2 * k^2 + (base + a (s - n / 2)) * k = seconds
        let half = self.a_token * f64::from(running) * 0.5;
        let linear = self.base(running) + self.a_token * tokens as f64 - half;
        let root = (linear * linear + 4.0 * half * seconds.max(0.0)).sqrt();
        let mut count = (2.0 * seconds.max(0.0) / (linear + root)) as u64;
        // The square root may err on either side of a whole iteration.
        while self.iterations(count, running, tokens) > seconds && count > 0 {
            count -= 1;
        }
        while self.iterations(count + 1, running, tokens) <= seconds {
            count += 1;
        }
        count
    }

    fn base(&self, running: u32) -> f64 {
        let running = f64::from(running);
        self.fixed + self.a_response * running + self.weights.max(self.arithmetic * running)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn cost(model: &str) -> Cost {
        Cost::new(
            Hardware::built_in("H800").unwrap(),
            ModelShape::built_in(model).unwrap(),
            Calibration::default(),
        )
    }

    const LAYOUT: TrainingLayout = TrainingLayout { tensor_parallel: 2, pipeline: 1, context: 1 };

    proptest! {
        #[test]
        fn iterations_on_end_take_as_long_as_one_after_the_other(
            running in 1_u32..256, tokens in 0_u64..400_000, count in 0_u64..300, tensor_parallel in 1_u32..8
        ) {
            let decode = cost("Qwen2.5-14B").decode(tensor_parallel);
            let one_by_one: f64 =
                (0..count).map(|k| decode.iteration(running, tokens + k * u64::from(running))).sum();
            let at_once = decode.iterations(count, running, tokens);
            prop_assert!((one_by_one - at_once).abs() <= 1e-9 * at_once, "{one_by_one} {at_once}");
        }

        #[test]
        fn within_is_the_inverse_of_iterations(
            running in 1_u32..256, tokens in 0_u64..400_000, count in 0_u64..40_000, rest in 0.0..0.999
        ) {
            let decode = cost("Qwen2.5-7B").decode(1);
            let next = decode.iteration(running, tokens + count * u64::from(running));
            let time = decode.iterations(count, running, tokens);
            prop_assert_eq!(decode.within(time + rest * next, running, tokens), count);
        }
    }

    #[test]
    fn decoding_alone_reads_the_weights_once_a_token() {
        let decode = cost("Qwen2.5-7B").decode(1);
        // 15.24 GB at 95 % of 3.35 TB/s, and 0.5 ms.
        assert!((decode.iteration(1, 0) - 5.31e-3).abs() < 0.05e-3);
        assert!(decode.iteration(128, 0) < 2.0 * decode.iteration(1, 0));
    }

    #[test]
    fn a_longer_sequence_costs_more_than_its_share() {
        let cost = cost("Qwen2.5-7B");
        let flops = |tokens| cost.training_flops(LAYOUT, tokens);
        assert!(flops(16_000.0) > 2.0 * flops(8_000.0));
        assert!(flops(100.0) > 0.99 * flops(1000.0), "two devices are not filled by 1000 tokens");
        assert!(cost.prefill(2, 8000.0) < cost.prefill(1, 8000.0));
    }

    #[test]
    fn utilisation_falls_with_the_devices_of_a_copy() {
        let at = |tensor_parallel| TrainingLayout { tensor_parallel, ..LAYOUT }.utilisation();
        assert_eq!([at(1), at(2), at(8), at(64)], [0.37, 0.37, 0.22, 0.16]);
        assert!((at(4) - 0.295).abs() < 1e-9);
    }

    #[test]
    fn capacity_is_what_the_weights_leave() {
        assert_eq!(cost("Qwen2.5-14B").kv_capacity(2).unwrap() / 1000, 460);
        let error = cost("Qwen2.5-32B").kv_capacity(1).unwrap_err();
        assert_eq!(
            error.to_string(),
            "Qwen2.5-32B does not fit on 1 x H800: weights take 65.5 GB, expected less than 60.0 GB"
        );
        assert_eq!(
            cost("Qwen2.5-7B").kv_capacity(16).unwrap_err().to_string(),
            "tensor_parallel: expected 1 to 8, the devices of a server, found 16"
        );
    }
}
