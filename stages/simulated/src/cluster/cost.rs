//! Cost model of inference: the time and memory that the work of a rollout takes. All times are in seconds.

use super::model::BF16;
use super::{Calibration, Decode, Hardware, ModelShape};

/// The cost model of a model on a kind of device.
#[derive(Clone, Debug, PartialEq)]
pub struct Cost {
    pub(super) hardware: Hardware,
    pub(super) model: ModelShape,
    pub(super) calibration: Calibration,
}

/// The reason why an instance cannot hold the model or cannot have the requested number of devices.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CostError {
    /// The weights leave no room for a KV cache.
    #[error(
        "{model} does not fit on {tensor_parallel} x {hardware}: weights take {weights:.1} GB, expected less than {room:.1} GB"
    )]
    Memory {
        /// The name of the model.
        model: String,
        /// The name of the device.
        hardware: String,
        /// The number of devices of an instance.
        tensor_parallel: u32,
        /// The size of the weights, in GB.
        weights: f64,
        /// The memory for weights and KV cache, in GB.
        room: f64,
    },
    /// A tensor-parallel group is larger than a server, or has no device.
    #[error(
        "tensor_parallel: expected 1 to {devices_per_server}, the devices of a server, found {tensor_parallel}"
    )]
    TensorParallel {
        /// The number of devices of an instance.
        tensor_parallel: u32,
        /// The number of devices of a server.
        devices_per_server: u32,
    },
}

impl Cost {
    /// Creates the cost model of `model` on `hardware`.
    #[must_use]
    pub fn new(hardware: Hardware, model: ModelShape, calibration: Calibration) -> Self {
        Self { hardware, model, calibration }
    }

    /// Returns the data sheet of the devices.
    #[must_use]
    pub fn hardware(&self) -> &Hardware {
        &self.hardware
    }

    /// Returns the shape of the model.
    #[must_use]
    pub fn model(&self) -> &ModelShape {
        &self.model
    }

    /// Returns the constants that no data sheet provides: the fitted values, unless a recipe changes them.
    #[must_use]
    pub fn calibration(&self) -> &Calibration {
        &self.calibration
    }

    /// Returns the number of tokens that the KV cache of an instance of `tensor_parallel` devices holds.
    ///
    /// # Errors
    /// Returns an error if `tensor_parallel` is 0 or exceeds the devices of a server, or the weights leave no room.
    pub fn kv_capacity(&self, tensor_parallel: u32) -> Result<u64, CostError> {
        let devices_per_server = self.hardware.devices_per_server;
        if !(1..=devices_per_server).contains(&tensor_parallel) {
            return Err(CostError::TensorParallel { tensor_parallel, devices_per_server });
        }
        let Calibration { memory_share, activation_bytes, .. } = self.calibration;
        let per_device = self.hardware.memory * memory_share - activation_bytes;
        let room = f64::from(tensor_parallel) * per_device;
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

    /// Returns the decoding costs of an instance of `tensor_parallel` devices.
    #[must_use]
    pub fn decode(&self, tensor_parallel: u32) -> Decode {
        let Self { hardware, model, calibration } = self;
        let devices = f64::from(tensor_parallel);
        let bandwidth = devices * hardware.memory_bandwidth;
        let (latency, transfer) = self.all_reduces(devices);
        Decode {
            overhead: calibration.iteration_overhead,
            per_response: calibration.response_overhead,
            launch: calibration.layer_launch * f64::from(model.layers),
            latency,
            transfer,
            weights: BF16 * model.multiplied_parameters()
                / (bandwidth * calibration.weight_bandwidth),
            arithmetic: 2.0 * model.multiplied_parameters()
                / (devices * hardware.flops * calibration.decode_utilisation),
            per_token: model.kv_bytes_per_token() / (bandwidth * calibration.kv_bandwidth),
        }
    }

    /// Returns the seconds of the all-reduces in an iteration: a fixed latency, and the transfer time per running response.
    fn all_reduces(&self, devices: f64) -> (f64, f64) {
        if devices <= 1.0 {
            return (0.0, 0.0);
        }
        let layers = f64::from(self.model.layers);
        let latency = self.calibration.all_reduce_latency * growth(devices);
        // Two all-reduces per layer; each sends and receives a hidden state in bf16, except for the device's own share of it.
        let bytes = 8.0 * f64::from(self.model.hidden_size) * (devices - 1.0) / devices;
        (layers * latency, layers * bytes / self.hardware.interconnect_bandwidth)
    }

    /// Returns the seconds to prefill `tokens` tokens of a sequence on an instance of `tensor_parallel` devices. The instance does not
    /// decode during that time.
    #[must_use]
    pub fn prefill(&self, tensor_parallel: u32, tokens: f64) -> f64 {
        let Self { hardware, model, calibration } = self;
        let attention = 2.0 * f64::from(model.layers) * f64::from(model.hidden_size);
        let flops = 2.0 * model.multiplied_parameters() * tokens + attention * tokens * tokens;
        let rate = f64::from(tensor_parallel) * hardware.flops * calibration.prefill_utilisation;
        calibration.prefill_overhead + flops / rate
    }

    /// Returns the seconds to transfer new weights to an instance.
    #[must_use]
    pub fn weight_sync(&self) -> f64 {
        self.calibration.weight_sync_per_parameter * self.model.parameters
    }

    /// Returns the seconds of a rollout with new weights before its first token, in addition to the transfer of the weights: resharding,
    /// and setting up the KV cache.
    #[must_use]
    pub fn rollout_overhead(&self) -> f64 {
        self.calibration.rollout_overhead
    }

    /// Returns the seconds to restart instances with another tensor parallelism, in addition to loading the weights.
    #[must_use]
    pub fn reconfiguration(&self) -> f64 {
        self.calibration.reconfiguration
    }
}

/// Returns the factor by which a latency grows with the number of devices: 1 for two devices.
pub(super) fn growth(devices: f64) -> f64 {
    0.65 + 0.35 * devices.log2()
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

    proptest! {
        #[test]
        fn iterations_take_the_sum_of_their_single_times(
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
    fn decoding_alone_takes_the_launch_of_its_kernels_or_the_reading_of_the_weights() {
        let decode = cost("Qwen2.5-7B").decode(1);
        // 28 layers at 0.25 ms, and 0.225 ms on the host.
        assert!((decode.iteration(1, 0) - 7.225e-3).abs() < 0.01e-3);
        // 14.15 GB at 95 % of 3.35 TB/s, and 0.225 ms on the host: the input embedding is not read.
        let graphs = Calibration { layer_launch: 0.0, ..Calibration::default() };
        let hardware = Hardware::built_in("H800").unwrap();
        let model = ModelShape::built_in("Qwen2.5-7B").unwrap();
        let launched_at_once = Cost::new(hardware, model, graphs).decode(1);
        assert!((launched_at_once.iteration(1, 0) - 4.671e-3).abs() < 0.01e-3);
        assert!(decode.iteration(128, 0) < 2.0 * decode.iteration(1, 0));
    }

    #[test]
    fn capacity_is_the_memory_without_the_weights() {
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
