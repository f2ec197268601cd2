//! The decoder: token ids in, hidden states and logits out.

use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use rollpacker_stages::train::config::Precision;
use tch::{Device, Kind, TchError, Tensor};

use super::checkpoint::{self, Checkpoint, Scratch};
use super::layer::{Attend, Handle, Layer};
use super::outer_layers::OuterLayers;
use super::{ModelConfig, ModelError, TorchError, Weights, layout};

/// A decoder-only transformer with float32 weights.
///
/// The caller computes the attention: [`forward`](Self::forward) passes it the queries, keys and values of each layer, for example to
/// attend over a KV cache. [`forward_packed`](Self::forward_packed) attends within packed sequences.
///
/// Gradients are computed after [`set_requires_grad(true)`](Self::set_requires_grad); run a decoder for inference under `tch::no_grad`.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    device: Device,
    outer: OuterLayers,
    layers: Vec<Layer>,
    parameters: Vec<(String, Tensor)>,
    trainable: bool,
    precision: Precision,
}

impl Decoder {
    /// Loads a Hugging Face folder: `config.json` and one or more safetensors files. Float16 and bfloat16 are converted to float32.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, the configuration is rejected, a tensor is missing, has a wrong shape or type or does not
    /// belong to this model, or the device is out of memory.
    pub fn load(folder: &Path, device: Device) -> Result<Self, TorchError> {
        Self::load_as(ModelConfig::from_folder(folder)?, folder, device)
    }

    /// Loads the safetensors files of a folder as the weights of a model of the configuration `config`. Other files of the folder are not
    /// read.
    ///
    /// # Errors
    /// Returns an error if a file cannot be read, a tensor is missing, has a wrong shape or type or does not belong to this model, or the
    /// device is out of memory.
    pub fn load_as(config: ModelConfig, folder: &Path, device: Device) -> Result<Self, TorchError> {
        let checkpoint = Checkpoint::open(folder, &config)?;
        let decoder = Self::allocate(config, device)?;
        let mut scratch = Scratch::default();
        for (name, parameter) in &decoder.parameters {
            checkpoint.read_into(name, parameter, &mut scratch)?;
        }
        Ok(decoder)
    }

    /// Checks a Hugging Face folder as [`load`](Self::load) does, but reads only the headers of the weights files. Returns the model
    /// configuration.
    ///
    /// # Errors
    /// Returns the errors of [`load`](Self::load), except those of reading the values of tensors and of allocating memory on a device.
    pub fn check_folder(folder: &Path) -> Result<ModelConfig, TorchError> {
        let config = ModelConfig::from_folder(folder)?;
        Checkpoint::open(folder, &config)?;
        Ok(config)
    }

    /// Creates a model to train from scratch.
    ///
    /// Weights are drawn from a normal distribution with standard deviation `initializer_range`; norms are one and biases zero. The same
    /// seed gives the same weights on every machine and device.
    ///
    /// # Errors
    /// Returns an error if `initializer_range` is not finite, or the device is out of memory.
    pub fn init(config: ModelConfig, seed: u64, device: Device) -> Result<Self, TorchError> {
        let normal =
            Normal::new(0.0, config.initializer_range as f32).map_err(|_| ModelError::Key {
                path: "the model's configuration".into(),
                key: "initializer_range".to_owned(),
                expected: "a finite number".to_owned(),
                found: config.initializer_range.to_string(),
            })?;
        let mut decoder = Self::allocate(config, device)?;
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for at in 0..decoder.parameters.len() {
            let (name, parameter) = &decoder.parameters[at];
            let count = parameter.numel();
            let values: Vec<f32> = match name.as_str() {
                name if name.ends_with(".bias") => vec![0.0; count],
                name if name.ends_with("norm.weight") => vec![1.0; count],
                _ => normal.sample_iter(&mut random).take(count).collect(),
            };
            let values = Tensor::f_from_slice(&values)?.f_view(parameter.size().as_slice())?;
            decoder.assign(at, &values, "initialization")?;
        }
        Ok(decoder)
    }

    /// Returns the model configuration.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Returns the device of the weights; inputs must be on the same device.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// Returns the parameters by their Hugging Face names, in the order of the network.
    ///
    /// They are leaves of the autograd graph, each in contiguous memory. A tied head is not listed.
    pub fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    pub(crate) fn into_parameters(self) -> Vec<(String, Tensor)> {
        self.parameters
    }

    /// Sets whether gradients of the parameters are computed. Default: `false`. Without gradients, a forward pass runs fewer and larger
    /// matrix products.
    pub fn set_requires_grad(&mut self, requires_grad: bool) {
        self.trainable = requires_grad;
        for (_, parameter) in &self.parameters {
            let _same_tensor = parameter.set_requires_grad(requires_grad);
        }
    }

    /// Sets the precision of the layers' matrix products. Weights stay float32. Default: float32.
    pub fn set_precision(&mut self, precision: Precision) {
        self.precision = precision;
        let factors = match precision {
            Precision::Float32 => None,
            Precision::Bfloat16 => Some(Kind::BFloat16),
        };
        self.layers.iter_mut().for_each(|layer| layer.set_factors(factors));
    }

    /// Returns the precision of the layers' matrix products.
    #[must_use]
    pub fn precision(&self) -> Precision {
        self.precision
    }

    /// Returns another handle to the same weights, for use on another thread. Writes through one handle are visible through all.
    #[must_use]
    pub fn share(&self) -> Self {
        self.over_same_memory(Tensor::shallow_clone)
    }

    /// Returns a decoder that shares the weights but has its own gradients, so that two threads can compute gradients at the same time.
    /// Writes to the weights through one decoder are visible through both.
    #[must_use]
    pub(crate) fn with_own_gradients(&self) -> Self {
        let mut decoder = self.over_same_memory(Tensor::detach);
        decoder.set_requires_grad(true);
        decoder
    }

    /// Returns a decoder with a copy of the weights, without gradients.
    pub(crate) fn duplicate(&self) -> Result<Self, TorchError> {
        let mut copy = Self::allocate(self.config.clone(), self.device)?;
        copy.set_precision(self.precision);
        let pairs = copy.parameters.iter().zip(&self.parameters);
        for ((_, to), (_, from)) in pairs {
            tch::no_grad(|| to.shallow_clone().f_copy_(from))?;
        }
        Ok(copy)
    }

    fn over_same_memory(&self, handle: Handle) -> Self {
        let layers: Vec<Layer> = self.layers.iter().map(|layer| layer.share(handle)).collect();
        let outer = self.outer.share(handle);
        let parameters = named(&outer, &layers);
        let (config, device) = (self.config.clone(), self.device);
        let (trainable, precision) = (self.trainable, self.precision);
        Self { config, device, outer, layers, parameters, trainable, precision }
    }

    /// Runs the layers over `n` tokens of any number of sequences: ids `[n]` and positions `[n]`, both int64.
    ///
    /// `attend(layer, q, k, v)` computes the attention: q is `[n, heads, head_dim]`, k and v are `[n, kv_heads, head_dim]`. q and k are
    /// already rotated; all three may be strided views. `attend` returns `[n, heads * head_dim]`, ordered by query head, and must apply the
    /// scale `head_dim^(-1/2)` itself.
    ///
    /// Returns the hidden states after the last norm, `[n, hidden]`; see [`logits`](Self::logits).
    ///
    /// # Errors
    /// Returns an error if an operation or `attend` fails.
    pub fn forward(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        let (mut x, rotation) = self.outer.embed(ids, positions)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer
                .forward(&x, &rotation, self.trainable, &mut |q, k, v| attend(index, q, k, v))?;
        }
        self.outer.apply_norm(&x)
    }

    /// Maps hidden states `[n, hidden]` to logits `[n, vocab]`.
    ///
    /// # Errors
    /// Returns an error if the operation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.outer.logits(hidden)
    }

    /// Runs the layers over sequences that are concatenated without padding: ids `[sum(lengths)]`, int64.
    ///
    /// Each token attends to itself and to the earlier tokens of its own sequence. Returns hidden states `[sum(lengths), hidden]`.
    ///
    /// Adjacent sequences of equal length share a kernel launch.
    ///
    /// # Errors
    /// Returns an error if there are no ids, a length is not positive, the lengths do not add up to the number of ids, or an operation
    /// fails.
    pub fn forward_packed(&self, ids: &Tensor, lengths: &[i64]) -> Result<Tensor, TchError> {
        let packing = super::packed::Packing::new(lengths, ids.size1()?)?;
        let positions = packing.positions()?.f_to_device(self.device)?;
        self.forward(ids, &positions, &mut |_, q, k, v| packing.attend(q, k, v))
    }

    /// Copies `weights` into the parameters, in place and outside the autograd graph.
    ///
    /// # Errors
    /// Returns an error if `weights` belong to another model; the parameters are unchanged in that case. Also returns an error if a copy
    /// fails; some parameters then have new values and others do not.
    pub fn copy_from(&mut self, weights: &Weights) -> Result<(), TorchError> {
        let mut given = weights.parameters(&self.config)?;
        for (name, parameter) in &mut self.parameters {
            tch::no_grad(|| parameter.f_copy_(&given.take(name)))?;
        }
        Ok(())
    }

    /// Returns a copy of the parameters on the decoder's device.
    ///
    /// # Errors
    /// Returns an error if the device is out of memory, or the values cannot be copied to the CPU for the digest.
    pub fn snapshot(&self) -> Result<Weights, TorchError> {
        let copy = |(name, tensor): &(String, Tensor)| {
            let mut copy = tensor.f_detach()?.f_empty_like()?;
            copy.f_copy_(&tensor.f_detach()?)?;
            Ok((name.clone(), copy))
        };
        Weights::new(self.parameters.iter().map(copy).collect::<Result<_, TorchError>>()?)
    }

    /// Writes `config.json`, `generation_config.json` and `model.safetensors` (float32) in a format that transformers loads. Creates the
    /// folder if it does not exist, and replaces existing files of these names.
    ///
    /// # Errors
    /// Returns an error if the folder cannot be created or a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), TorchError> {
        std::fs::create_dir_all(folder).map_err(ModelError::write(folder))?;
        self.config.write(folder)?;
        checkpoint::write(folder, &self.parameters)
    }

    /// Allocates a decoder with uninitialized weights.
    fn allocate(config: ModelConfig, device: Device) -> Result<Self, TorchError> {
        let outer = OuterLayers::allocate(&config, device)?;
        let layers: Vec<_> = (0..config.layers)
            .map(|_| Layer::allocate(&config, device))
            .collect::<Result<_, _>>()?;
        let parameters = named(&outer, &layers);
        let precision = Precision::Float32;
        Ok(Self { config, device, outer, layers, parameters, trainable: false, precision })
    }

    fn assign(&mut self, at: usize, values: &Tensor, origin: &str) -> Result<(), TorchError> {
        let (name, parameter) = &mut self.parameters[at];
        layout::check_shape(origin, name, &parameter.size(), &values.size())?;
        tch::no_grad(|| parameter.f_copy_(values))?;
        Ok(())
    }
}

fn named(outer: &OuterLayers, layers: &[Layer]) -> Vec<(String, Tensor)> {
    let own = |(name, tensor): (&str, &Tensor)| (name.to_owned(), tensor.shallow_clone());
    let mut all: Vec<_> = outer.input_parameters().into_iter().map(own).collect();
    for (index, layer) in layers.iter().enumerate() {
        let prefix = layout::layer_prefix(index as i64);
        all.extend(
            layer
                .parameters()
                .into_iter()
                .map(|(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone())),
        );
    }
    all.extend(outer.output_parameters().map(own));
    all
}
