//! One transformer block: attention and feed-forward, each on the residual stream.

use tch::{Device, Kind, TchError, Tensor};

use super::ModelConfig;
use super::host;
use super::rows::RmsNorm;

const NO_BIAS: Option<&Tensor> = None;

/// The function that computes the attention of a layer; see [`Decoder::forward`](super::Decoder::forward).
pub(crate) type Attend<'a> =
    dyn FnMut(usize, &Tensor, &Tensor, &Tensor) -> Result<Tensor, TchError> + 'a;

/// A function that returns a tensor over the memory of its argument: either another handle to the argument, or a leaf of the autograd graph
/// with its own gradient.
pub(crate) type Handle = fn(&Tensor) -> Tensor;

/// A transformer block: attention and feed-forward, each with a norm before it and a residual connection around both.
#[derive(Debug)]
pub(crate) struct Layer {
    heads: Heads,
    input_norm: Norm,
    qkv: Stacked<3>,
    /// The norms of the query heads and of the key heads; `None` if the model has no such norms.
    qk_norm: Option<(Norm, Norm)>,
    output: Linear,
    post_norm: Norm,
    gate_up: Stacked<2>,
    down: Linear,
}

/// The cosines and sines of the rotary embedding at the positions of the tokens of a forward pass, `[n, 1, head_dim]` each.
pub(crate) struct Rotation {
    pub(super) cos: Tensor,
    /// The sine, negated in the first half.
    pub(super) sin: Tensor,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Heads {
    pub(super) query: i64,
    pub(super) key: i64,
    pub(super) dim: i64,
}

/// A linear map `[n, inputs] -> [n, outputs]`.
#[derive(Debug)]
struct Linear {
    /// `[outputs, inputs]`
    weight: Tensor,
    /// `[outputs]`
    bias: Option<Tensor>,
    /// The type to which input and weight are rounded before the product; `None` to keep float32.
    factors: Option<Kind>,
}

/// Linear maps of one input whose weights are stacked row-wise in memory.
///
/// A forward pass without gradients uses `whole`, with one matrix product. `parts` are the parameters: views of the same memory, each a
/// leaf of the autograd graph under its own name. An update of one is visible in the other.
#[derive(Debug)]
struct Stacked<const N: usize> {
    whole: Linear,
    parts: [Linear; N],
    outputs: [i64; N],
}

/// RMS norm over the last dimension (Zhang and Sennrich 2019).
#[derive(Debug)]
pub(crate) struct Norm {
    weight: Tensor,
    eps: f64,
}

impl Layer {
    /// Allocates a layer with uninitialized weights.
    pub(crate) fn allocate(config: &ModelConfig, device: Device) -> Result<Self, TchError> {
        let heads = Heads::of(config);
        let (hidden, inner) = (config.hidden_size, config.intermediate_size);
        let (q, kv) = (heads.query * heads.dim, heads.key * heads.dim);
        let head_norm = || Norm::allocate(heads.dim, config.rms_norm_eps, device);
        Ok(Self {
            heads,
            input_norm: Norm::allocate(hidden, config.rms_norm_eps, device)?,
            qkv: Stacked::allocate([q, kv, kv], hidden, config.attention_bias, device)?,
            qk_norm: if config.qk_norm() { Some((head_norm()?, head_norm()?)) } else { None },
            output: Linear::allocate(hidden, q, config.output_bias(), device)?,
            post_norm: Norm::allocate(hidden, config.rms_norm_eps, device)?,
            gate_up: Stacked::allocate([inner, inner], hidden, false, device)?,
            down: Linear::allocate(hidden, inner, false, device)?,
        })
    }

    /// Returns the parameters by their names within the layer.
    pub(crate) fn parameters(&self) -> Vec<(String, &Tensor)> {
        let [query, key, value] = &self.qkv.parts;
        let [gate, up] = &self.gate_up.parts;
        let mut all = vec![("input_layernorm.weight".to_owned(), &self.input_norm.weight)];
        for (name, linear) in [("q", query), ("k", key), ("v", value)] {
            linear.parameters(&format!("self_attn.{name}_proj"), &mut all);
        }
        if let Some((query, key)) = &self.qk_norm {
            all.push(("self_attn.q_norm.weight".to_owned(), &query.weight));
            all.push(("self_attn.k_norm.weight".to_owned(), &key.weight));
        }
        self.output.parameters("self_attn.o_proj", &mut all);
        all.push(("post_attention_layernorm.weight".to_owned(), &self.post_norm.weight));
        for (name, linear) in [("gate", gate), ("up", up), ("down", &self.down)] {
            linear.parameters(&format!("mlp.{name}_proj"), &mut all);
        }
        all
    }

    /// Returns a layer over the same memory; `handle` creates its tensors.
    pub(crate) fn share(&self, handle: Handle) -> Self {
        let norm = |norm: &Norm| norm.share(handle);
        Self {
            heads: self.heads,
            input_norm: norm(&self.input_norm),
            qkv: self.qkv.share(handle),
            qk_norm: self.qk_norm.as_ref().map(|(query, key)| (norm(query), norm(key))),
            output: self.output.share(handle),
            post_norm: norm(&self.post_norm),
            gate_up: self.gate_up.share(handle),
            down: self.down.share(handle),
        }
    }

    /// Sets the type to which the linear maps round their input and weight before each product; `None` keeps float32. Attention and norms
    /// are not affected.
    pub(crate) fn set_factors(&mut self, kind: Option<Kind>) {
        let stacked = [&mut self.qkv.whole, &mut self.gate_up.whole];
        let parts = self.qkv.parts.iter_mut().chain(&mut self.gate_up.parts);
        for map in stacked.into_iter().chain(parts).chain([&mut self.output, &mut self.down]) {
            map.factors = kind;
        }
    }

    /// Maps `x [n, hidden]` to `[n, hidden]`. `attend(q, k, v)` computes the attention, as in
    /// [`Decoder::forward`](super::Decoder::forward). `trainable` must be `true` if gradients of the parameters are needed.
    pub(crate) fn forward(
        &self,
        x: &Tensor,
        rotation: &Rotation,
        trainable: bool,
        attend: &mut dyn FnMut(&Tensor, &Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let [q, k, v] = self.qkv.forward(&self.input_norm.forward(x)?, trainable)?;
        let (mut q, mut k) = (self.heads.split(&q)?, self.heads.split(&k)?);
        if let Some((query, key)) = &self.qk_norm {
            (q, k) = (query.forward(&q)?, key.forward(&k)?);
        }
        let attended = attend(&rotation.apply(&q)?, &rotation.apply(&k)?, &self.heads.split(&v)?)?;
        let x = self.output.add_to(x, &attended)?;
        let [gate, up] = self.gate_up.forward(&self.post_norm.forward(&x)?, trainable)?;
        self.down.add_to(&x, &gate.f_silu()?.f_mul(&up)?)
    }
}

impl Heads {
    pub(super) fn of(config: &ModelConfig) -> Self {
        Self { query: config.heads, key: config.kv_heads, dim: config.head_dim }
    }

    /// Splits `[n, heads * dim]` into `[n, heads, dim]`, as a view.
    pub(super) fn split(self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_unflatten(-1, [-1, self.dim])
    }
}

impl Rotation {
    /// Computes the rotation of `positions [n]`. `frequencies [head_dim]` must be negative in their first half.
    pub(crate) fn new(frequencies: &Tensor, positions: &Tensor) -> Result<Self, TchError> {
        let angles = positions.f_to_kind(Kind::Float)?.f_outer(frequencies)?.f_unsqueeze(1)?;
        Ok(Self { cos: angles.f_cos()?, sin: angles.f_sin()? })
    }

    /// Rotates each pair `(x[i], x[i + dim / 2])` of `x [n, heads, dim]` by its angle.
    pub(super) fn apply(&self, x: &Tensor) -> Result<Tensor, TchError> {
        let half = self.cos.size().last().map_or(0, |dim| dim / 2);
        x.f_mul(&self.cos)?.f_addcmul(&x.f_roll(half, -1)?, &self.sin)
    }
}

impl Linear {
    fn allocate(outputs: i64, inputs: i64, bias: bool, device: Device) -> Result<Self, TchError> {
        let empty = |shape: &[i64]| Tensor::f_empty(shape, (Kind::Float, device));
        Ok(Self {
            weight: empty(&[outputs, inputs])?,
            bias: if bias { Some(empty(&[outputs])?) } else { None },
            factors: None,
        })
    }

    /// Returns the linear map to the outputs `start..start + length`. Its tensors are leaves in the memory of `self`.
    fn rows(&self, start: i64, length: i64) -> Result<Self, TchError> {
        let rows = |tensor: &Tensor| tensor.f_narrow(0, start, length)?.f_detach();
        let (weight, bias) = (rows(&self.weight)?, self.bias.as_ref().map(rows).transpose()?);
        Ok(Self { weight, bias, factors: self.factors })
    }

    fn share(&self, handle: Handle) -> Self {
        let (weight, bias) = (handle(&self.weight), self.bias.as_ref().map(handle));
        Self { weight, bias, factors: self.factors }
    }

    fn parameters<'a>(&'a self, name: &str, into: &mut Vec<(String, &'a Tensor)>) {
        into.push((format!("{name}.weight"), &self.weight));
        into.extend(self.bias.as_ref().map(|bias| (format!("{name}.bias"), bias)));
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        if self.factors.is_none() {
            return x.f_linear(&self.weight, self.bias.as_ref());
        }
        let product = self.rounded(x)?.f_linear(&self.rounded(&self.weight)?, NO_BIAS)?;
        let product = product.f_to_kind(Kind::Float)?;
        match &self.bias {
            Some(bias) => product.f_add(bias),
            None => Ok(product),
        }
    }

    /// Rounds a factor of a product if a type is set. A factor that has this type already is returned as the same tensor.
    fn rounded(&self, factor: &Tensor) -> Result<Tensor, TchError> {
        self.factors.map_or_else(|| Ok(factor.shallow_clone()), |kind| factor.f_to_kind(kind))
    }

    /// Returns `residual + self(x)`. Product and sum are a single kernel if there is no bias and the factors are not rounded.
    fn add_to(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor, TchError> {
        if self.bias.is_none() && self.factors.is_none() {
            return residual.f_addmm(x, &self.weight.f_transpose(0, 1)?);
        }
        residual.f_add(&self.forward(x)?)
    }
}

impl<const N: usize> Stacked<N> {
    fn allocate(
        outputs: [i64; N],
        inputs: i64,
        bias: bool,
        device: Device,
    ) -> Result<Self, TchError> {
        let whole = Linear::allocate(outputs.iter().sum(), inputs, bias, device)?;
        let mut start = 0;
        let parts = try_array(outputs.iter().map(|&length| {
            let part = whole.rows(start, length);
            start += length;
            part
        }))?;
        Ok(Self { whole, parts, outputs })
    }

    fn share(&self, handle: Handle) -> Self {
        let parts = self.parts.each_ref().map(|part| part.share(handle));
        Self { whole: self.whole.share(handle), parts, outputs: self.outputs }
    }

    fn forward(&self, x: &Tensor, trainable: bool) -> Result<[Tensor; N], TchError> {
        if trainable {
            // Rounded once for all parts.
            let x = self.whole.rounded(x)?;
            return try_array(self.parts.iter().map(|part| part.forward(&x)));
        }
        try_array(self.whole.forward(x)?.f_split_with_sizes(self.outputs, -1)?.into_iter().map(Ok))
    }
}

impl Norm {
    pub(crate) fn allocate(size: i64, eps: f64, device: Device) -> Result<Self, TchError> {
        Ok(Self::new(Tensor::f_empty([size], (Kind::Float, device))?, eps))
    }

    /// Creates a norm with a weight `[size]`.
    pub(super) fn new(weight: Tensor, eps: f64) -> Self {
        Self { weight, eps }
    }

    pub(crate) fn share(&self, handle: Handle) -> Self {
        Self { weight: handle(&self.weight), eps: self.eps }
    }

    pub(crate) fn weight(&self) -> &Tensor {
        &self.weight
    }

    pub(crate) fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        x.f_rms_norm(self.weight.size(), Some(&self.weight), self.eps)
    }

    /// Returns the norm in the form that the CPU kernels use.
    pub(super) fn rms(&self) -> Result<RmsNorm<'_>, TchError> {
        Ok(RmsNorm { weight: host::floats(&self.weight)?, eps: self.eps as f32 })
    }
}

fn try_array<T, const N: usize>(
    items: impl Iterator<Item = Result<T, TchError>>,
) -> Result<[T; N], TchError> {
    let items = items.collect::<Result<Vec<_>, _>>()?;
    let found = items.len();
    items.try_into().map_err(|_| TchError::Shape(format!("expected {N} tensors, found {found}")))
}
