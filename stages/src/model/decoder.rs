//! The decoder: token ids in, hidden states and logits out.

use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use tch::{Device, TchError, Tensor};

use super::checkpoint::{self, Checkpoint, Scratch};
use super::ends::Ends;
use super::layer::{Attend, Layer};
use super::{ModelConfig, ModelError, Weights, layout};

/// A decoder-only transformer in float32.
///
/// Attention is the caller's: [`forward`](Self::forward) hands over queries, keys and values of each layer, so that an engine attends
/// over its KV cache and a trainer over packed sequences ([`forward_packed`](Self::forward_packed)) with one set of weights.
///
/// Gradients flow when [`set_requires_grad`](Self::set_requires_grad) said so; a decoder for inference runs under `tch::no_grad`.
#[derive(Debug)]
pub struct Decoder {
    config: ModelConfig,
    device: Device,
    ends: Ends,
    layers: Vec<Layer>,
    parameters: Vec<(String, Tensor)>,
    trainable: bool,
}

impl Decoder {
    /// Loads a Hugging Face folder: `config.json` and one or several safetensors files. Float16 and bfloat16 become float32.
    ///
    /// # Errors
    /// If a file cannot be read, the configuration is refused, or a tensor is missing, of a wrong shape or not of this model.
    pub fn load(folder: &Path, device: Device) -> Result<Self, ModelError> {
        let config = ModelConfig::from_folder(folder)?;
        let checkpoint = Checkpoint::open(folder, &config)?;
        let decoder = Self::allocate(config, device)?;
        let mut scratch = Scratch::default();
        for (name, parameter) in &decoder.parameters {
            checkpoint.read_into(name, parameter, &mut scratch)?;
        }
        Ok(decoder)
    }

    /// Checks a Hugging Face folder as [`load`](Self::load) does, and reads no weights: only the headers of their files.
    ///
    /// # Errors
    /// As [`load`](Self::load).
    pub fn check_folder(folder: &Path) -> Result<ModelConfig, ModelError> {
        let config = ModelConfig::from_folder(folder)?;
        Checkpoint::open(folder, &config)?;
        Ok(config)
    }

    /// A model to train from scratch: weights drawn from a normal distribution of deviation `initializer_range`, norms one, biases
    /// zero. Equal seeds give equal weights on every machine and device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn init(config: ModelConfig, seed: u64, device: Device) -> Result<Self, ModelError> {
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
            decoder.assign(at, &values, "initialisation")?;
        }
        Ok(decoder)
    }

    /// What the model is.
    #[must_use]
    pub fn config(&self) -> &ModelConfig {
        &self.config
    }

    /// Where the weights are, and where inputs must be.
    #[must_use]
    pub fn device(&self) -> Device {
        self.device
    }

    /// The parameters by their Hugging Face names, in the order of the network: leaves of the autograd graph, each in contiguous
    /// memory. A tied head is not listed.
    pub fn parameters(&self) -> &[(String, Tensor)] {
        &self.parameters
    }

    /// Says whether gradients are wanted. Without, fewer and larger matrix products are run.
    pub fn set_requires_grad(&mut self, requires_grad: bool) {
        self.trainable = requires_grad;
        for (_, parameter) in &self.parameters {
            let _same_tensor = parameter.set_requires_grad(requires_grad);
        }
    }

    /// Another handle of the same weights, to run on another thread: what is written through one is seen through all.
    #[must_use]
    pub fn share(&self) -> Self {
        let layers: Vec<Layer> = self.layers.iter().map(Layer::share).collect();
        let ends = self.ends.share();
        let parameters = named(&ends, &layers);
        let (config, device) = (self.config.clone(), self.device);
        Self { config, device, ends, layers, parameters, trainable: self.trainable }
    }

    /// Runs the layers over `n` tokens, whichever sequences they belong to: ids `[n]` and positions `[n]`, both int64.
    ///
    /// `attend(layer, q, k, v)` computes the attention: q `[n, heads, head_dim]`, k and v `[n, kv_heads, head_dim]`, rotated already,
    /// perhaps views with strides; it returns `[n, heads * head_dim]`, by query head. The scale `head_dim^(-1/2)` is left to it.
    ///
    /// Returns the hidden states after the last norm, `[n, hidden]`; see [`logits`](Self::logits).
    ///
    /// # Errors
    /// If an operation fails, or `attend` does.
    pub fn forward(
        &self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        let (mut x, rotation) = self.ends.enter(ids, positions)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer
                .forward(&x, &rotation, self.trainable, &mut |q, k, v| attend(index, q, k, v))?;
        }
        self.ends.leave(&x)
    }

    /// Hidden states `[n, hidden]` to logits `[n, vocab]`.
    ///
    /// # Errors
    /// If the operation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.ends.logits(hidden)
    }

    /// Runs the layers over sequences that lie end to end without padding: ids `[sum(lengths)]`, int64. Each token attends to itself
    /// and to the tokens before it in its own sequence. Returns hidden states `[sum(lengths), hidden]`.
    ///
    /// Neighbours of equal length share a kernel launch.
    ///
    /// # Errors
    /// If a length is not above 0, the lengths do not add up to the ids, or an operation fails.
    pub fn forward_packed(&self, ids: &Tensor, lengths: &[i64]) -> Result<Tensor, TchError> {
        let packing = super::packed::Packing::new(lengths, ids.size1()?)?;
        let positions = packing.positions()?.f_to_device(self.device)?;
        self.forward(ids, &positions, &mut |_, q, k, v| packing.attend(q, k, v))
    }

    /// Overwrites the parameters, in place and outside the autograd graph.
    ///
    /// # Errors
    /// If `weights` are of another model; nothing is overwritten then.
    pub fn copy_from(&mut self, weights: &Weights) -> Result<(), ModelError> {
        self.check(weights)?;
        for (at, (_, tensor)) in weights.tensors().iter().enumerate() {
            self.assign(at, tensor, "published weights")?;
        }
        Ok(())
    }

    /// A copy of the parameters on the decoder's device.
    ///
    /// # Errors
    /// If the device has no room.
    pub fn snapshot(&self) -> Result<Weights, ModelError> {
        let copy = |(name, tensor): &(String, Tensor)| {
            let mut copy = tensor.f_detach()?.f_empty_like()?;
            copy.f_copy_(&tensor.f_detach()?)?;
            Ok((name.clone(), copy))
        };
        Weights::new(self.parameters.iter().map(copy).collect::<Result<_, ModelError>>()?)
    }

    /// Writes `config.json`, `generation_config.json` and `model.safetensors` (float32), which transformers loads. The folder is
    /// made if it is not there.
    ///
    /// # Errors
    /// If a file cannot be written.
    pub fn save(&self, folder: &Path) -> Result<(), ModelError> {
        std::fs::create_dir_all(folder).map_err(ModelError::write(folder))?;
        self.config.write(folder)?;
        checkpoint::write(folder, &self.parameters)
    }

    /// A decoder whose weights hold whatever the memory held.
    fn allocate(config: ModelConfig, device: Device) -> Result<Self, ModelError> {
        let ends = Ends::allocate(&config, device)?;
        let layers: Vec<_> = (0..config.layers)
            .map(|_| Layer::allocate(&config, device))
            .collect::<Result<_, _>>()?;
        let parameters = named(&ends, &layers);
        Ok(Self { config, device, ends, layers, parameters, trainable: false })
    }

    fn check(&self, weights: &Weights) -> Result<(), ModelError> {
        let own: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let given: Vec<&str> = weights.tensors().iter().map(|(name, _)| name.as_str()).collect();
        let without = |all: &[&str], some: &[&str]| -> Vec<String> {
            all.iter().filter(|name| !some.contains(name)).map(|&name| name.to_owned()).collect()
        };
        if own != given {
            layout::refuse_strangers(
                "published weights",
                without(&own, &given),
                without(&given, &own),
            )?;
        }
        for ((name, own), (_, given)) in self.parameters.iter().zip(weights.tensors()) {
            layout::check_shape("published weights", name, &own.size(), &given.size())?;
        }
        Ok(())
    }

    fn assign(&mut self, at: usize, values: &Tensor, place: &str) -> Result<(), ModelError> {
        let (name, parameter) = &mut self.parameters[at];
        layout::check_shape(place, name, &parameter.size(), &values.size())?;
        tch::no_grad(|| parameter.f_copy_(values))?;
        Ok(())
    }
}

fn named(ends: &Ends, layers: &[Layer]) -> Vec<(String, Tensor)> {
    let own = |(name, tensor): (&str, &Tensor)| (name.to_owned(), tensor.shallow_clone());
    let mut all: Vec<_> = ends.before().into_iter().map(own).collect();
    for (index, layer) in layers.iter().enumerate() {
        let prefix = layout::layer_prefix(index as i64);
        all.extend(
            layer
                .parameters()
                .into_iter()
                .map(|(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone())),
        );
    }
    all.extend(ends.after().map(own));
    all
}
