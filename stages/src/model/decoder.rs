//! The decoder: token ids in, hidden states and logits out.

use std::collections::HashMap;
use std::path::Path;

use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;
use rand_distr::{Distribution, Normal};
use tch::{Device, Kind, TchError, Tensor};

use super::layer::{Attend, Layer, Norm, Rotation};
use super::{ModelConfig, ModelError, Weights, checkpoint, layout};

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
    /// `[vocab, hidden]`
    embedding: Tensor,
    layers: Vec<Layer>,
    norm: Norm,
    /// `[vocab, hidden]`; absent if tied to the embedding.
    head: Option<Tensor>,
    /// `[head_dim]`, radians per position, negative in the first half.
    frequencies: Tensor,
    parameters: Vec<(String, Tensor)>,
    trainable: bool,
}

impl Decoder {
    /// Loads a Hugging Face folder: `config.json` and one or several safetensors files. Float16 and bfloat16 become float32.
    ///
    /// # Errors
    /// If a file cannot be read, the configuration is refused, or a tensor is missing, of a wrong shape or not of this model.
    pub fn load(folder: &Path, device: Device) -> Result<Self, ModelError> {
        let mut decoder = Self::allocate(ModelConfig::from_folder(folder)?, device)?;
        let mut names: HashMap<String, usize> = decoder
            .parameters
            .iter()
            .enumerate()
            .map(|(at, (name, _))| (name.clone(), at))
            .collect();
        let mut extra = Vec::new();
        checkpoint::read(folder, &mut |path, name, tensor| {
            match names.remove(name) {
                Some(at) => decoder.assign(at, &tensor, &path.display().to_string())?,
                None if layout::is_redundant(&decoder.config, name) => {}
                None => extra.push(name.to_owned()),
            }
            Ok(())
        })?;
        let mut missing: Vec<String> = names.into_keys().collect();
        missing.sort_unstable();
        refuse_strangers(&folder.display().to_string(), missing, extra)?;
        Ok(decoder)
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
        let embedding = self.embedding.shallow_clone();
        let layers: Vec<Layer> = self.layers.iter().map(Layer::share).collect();
        let norm = self.norm.share();
        let head = self.head.as_ref().map(Tensor::shallow_clone);
        let parameters = named(&embedding, &layers, &norm, head.as_ref());
        Self {
            config: self.config.clone(),
            device: self.device,
            embedding,
            layers,
            norm,
            head,
            frequencies: self.frequencies.shallow_clone(),
            parameters,
            trainable: self.trainable,
        }
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
        let rotation = Rotation::new(&self.frequencies, positions)?;
        let mut x = Tensor::f_embedding(&self.embedding, ids, -1, false, false)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer
                .forward(&x, &rotation, self.trainable, &mut |q, k, v| attend(index, q, k, v))?;
        }
        self.norm.forward(&x)
    }

    /// Hidden states `[n, hidden]` to logits `[n, vocab]`.
    ///
    /// # Errors
    /// If the operation fails.
    pub fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        hidden.f_linear::<&Tensor>(self.head.as_ref().unwrap_or(&self.embedding), None)
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
        let matrix =
            || Tensor::f_empty([config.vocab_size, config.hidden_size], (Kind::Float, device));
        let embedding = matrix()?;
        let head = if config.tie_word_embeddings { None } else { Some(matrix()?) };
        let layers: Vec<_> = (0..config.layers)
            .map(|_| Layer::allocate(&config, device))
            .collect::<Result<_, _>>()?;
        let norm = Norm::allocate(config.hidden_size, config.rms_norm_eps, device)?;
        let frequencies = signed_frequencies(&config)?.f_to_device(device)?;
        let parameters = named(&embedding, &layers, &norm, head.as_ref());
        Ok(Self {
            config,
            device,
            embedding,
            layers,
            norm,
            head,
            frequencies,
            parameters,
            trainable: false,
        })
    }

    fn check(&self, weights: &Weights) -> Result<(), ModelError> {
        let own: Vec<&str> = self.parameters.iter().map(|(name, _)| name.as_str()).collect();
        let given: Vec<&str> = weights.tensors().iter().map(|(name, _)| name.as_str()).collect();
        let without = |all: &[&str], some: &[&str]| -> Vec<String> {
            all.iter().filter(|name| !some.contains(name)).map(|&name| name.to_owned()).collect()
        };
        if own != given {
            refuse_strangers("published weights", without(&own, &given), without(&given, &own))?;
        }
        for ((name, own), (_, given)) in self.parameters.iter().zip(weights.tensors()) {
            check_shape("published weights", name, own, given)?;
        }
        Ok(())
    }

    fn assign(&mut self, at: usize, values: &Tensor, place: &str) -> Result<(), ModelError> {
        let (name, parameter) = &mut self.parameters[at];
        check_shape(place, name, parameter, values)?;
        tch::no_grad(|| parameter.f_copy_(values))?;
        Ok(())
    }
}

fn named(
    embedding: &Tensor,
    layers: &[Layer],
    norm: &Norm,
    head: Option<&Tensor>,
) -> Vec<(String, Tensor)> {
    let mut all = vec![("model.embed_tokens.weight".to_owned(), embedding.shallow_clone())];
    for (index, layer) in layers.iter().enumerate() {
        let prefix = layout::layer_prefix(index as i64);
        all.extend(
            layer
                .parameters()
                .into_iter()
                .map(|(name, tensor)| (format!("{prefix}{name}"), tensor.shallow_clone())),
        );
    }
    all.push(("model.norm.weight".to_owned(), norm.weight().shallow_clone()));
    all.extend(head.map(|head| ("lm_head.weight".to_owned(), head.shallow_clone())));
    all
}

/// The frequencies twice, negative the first time: the cosine does not see the sign, and the sine takes it along.
fn signed_frequencies(config: &ModelConfig) -> Result<Tensor, TchError> {
    let frequencies = config.rope.frequencies(config.head_dim);
    let signed: Vec<f32> = frequencies
        .iter()
        .map(|f| -f)
        .chain(frequencies.iter().copied())
        .map(|f| f as f32)
        .collect();
    Tensor::f_from_slice(&signed)
}

fn check_shape(place: &str, name: &str, own: &Tensor, given: &Tensor) -> Result<(), ModelError> {
    let (expected, found) = (own.size(), given.size());
    if expected == found {
        return Ok(());
    }
    Err(ModelError::Shape { place: place.to_owned(), tensor: name.to_owned(), expected, found })
}

fn refuse_strangers(
    place: &str,
    missing: Vec<String>,
    extra: Vec<String>,
) -> Result<(), ModelError> {
    if !missing.is_empty() {
        return Err(ModelError::MissingTensors { place: place.to_owned(), names: missing });
    }
    if !extra.is_empty() {
        return Err(ModelError::ExtraTensors { place: place.to_owned(), names: extra });
    }
    Ok(())
}
