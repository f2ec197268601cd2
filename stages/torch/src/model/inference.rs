//! The decoder of engines: a policy whose weights are packed for inference.

use std::sync::Arc;

use rollpacker_stages::train::config::Precision;
use tch::{Device, Kind, TchError, Tensor};

use super::allocator::return_free_memory;
use super::layer::{Heads, Norm, Rotation};
use super::matrix::{PackedForm, PackedMatrices, PackedMatrix};
use super::network::{Attend, LARGE_PASS, Network};
use super::outer_layers::OuterLayers;
use super::rows::{HeadColumns, RowOperations};
use super::weights::{Parameters, Weights};
use super::{Decoder, ModelConfig, TorchError, kernel_threads, layout};

/// Maximum number of tokens of a prefill pass for each kernel thread. Larger passes are slower with packed weights, because their
/// intermediate results do not fit into the caches of a core.
const PASS_TOKENS_PER_THREAD: usize = 256;

/// A decoder with [packed](super::matrix) matrices, for inference.
///
/// It holds the matrices of the layers and the output head only in packed form; a tied head is packed in addition to the embedding. Tensors
/// that need no conversion are handles to the parameters from which the decoder was created, so nothing may write to these parameters.
/// [`share`](Self::share) returns another handle to the same weights.
#[derive(Debug)]
pub(crate) struct InferenceDecoder {
    config: ModelConfig,
    device: Device,
    precision: Precision,
    /// The embedding and the final norm. The output head is in `head`, whether it is tied or not.
    outer: OuterLayers,
    head: Arc<PackedMatrix>,
    layers: Vec<InferenceLayer>,
    /// All packed matrices. Decoders of the same weights share this list.
    matrices: Arc<PackedMatrices>,
}

#[derive(Debug)]
struct InferenceLayer {
    heads: Heads,
    input_norm: Norm,
    qkv: PackedLinear,
    /// The norms of the query heads and of the key heads; `None` if the model has no such norms.
    qk_norm: Option<(Norm, Norm)>,
    output: PackedLinear,
    post_norm: Norm,
    gate_up: PackedLinear,
    down: PackedLinear,
    /// The CPU kernels for the operations between the matrix products; `None` if libtorch computes them.
    rows: Option<RowOperations>,
}

/// A linear map `[n, inputs] -> [n, outputs]`.
#[derive(Debug)]
struct PackedLinear {
    weight: Arc<PackedMatrix>,
    /// `[outputs]`
    bias: Option<Tensor>,
}

impl InferenceDecoder {
    /// Packs the weights of `decoder`. The matrices of the layers are rounded to `precision`. Drops a matrix when it is packed, so that the
    /// weights are not in memory twice.
    ///
    /// # Errors
    /// Returns an error if a weight cannot be read or memory cannot be allocated.
    pub(crate) fn new(decoder: Decoder, precision: Precision) -> Result<Self, TchError> {
        let (config, device) = (decoder.config().clone(), decoder.device());
        let parameters = Parameters::of(decoder);
        let source = ParameterSource::new(parameters, device, precision, None);
        let packed = Self::build(config, source);
        return_free_memory();
        packed
    }

    /// Returns a decoder of the same model, device and precision that has the weights `weights`. It shares the packed matrices of other
    /// decoders that have the same weights, device and precision. If there are none, it packs the weights, and other callers wait.
    ///
    /// # Errors
    /// Returns an error if `weights` belong to another model, or memory cannot be allocated.
    pub(crate) fn with_weights(&self, weights: &Weights) -> Result<Self, TorchError> {
        let Self { device, precision, .. } = *self;
        let parameters = weights.parameters(&self.config)?;
        let mut forms = weights.packed_forms().lock();
        let same = |form: &&PackedForm| (form.device, form.precision) == (device, precision);
        let shared = forms.iter().find(same).and_then(|form| form.matrices.upgrade());
        let source = ParameterSource::new(parameters, device, precision, shared);
        let decoder = Self::build(self.config.clone(), source)?;
        forms.retain(|form| !same(&form));
        forms.push(PackedForm { device, precision, matrices: Arc::downgrade(&decoder.matrices) });
        Ok(decoder)
    }

    fn build(config: ModelConfig, mut source: ParameterSource) -> Result<Self, TchError> {
        let layers = (0..config.layers)
            .map(|index| {
                source.prefix = layout::layer_prefix(index);
                InferenceLayer::new(&config, &mut source)
            })
            .collect::<Result<_, _>>()?;
        source.prefix.clear();
        let embedding = source.take("model.embed_tokens.weight")?;
        let head = source.packed(Precision::Float32, |source| {
            Ok(vec![if config.tie_word_embeddings {
                embedding.shallow_clone()
            } else {
                source.take("lm_head.weight")?
            }])
        })?;
        let norm = source.norm("model.norm", config.rms_norm_eps)?;
        Ok(Self {
            device: source.device,
            precision: source.precision,
            outer: OuterLayers::new(&config, embedding, norm, None)?,
            head,
            layers,
            matrices: source.shared.unwrap_or_else(|| Arc::new(source.matrices)),
            config,
        })
    }

    /// Returns another handle to the same weights, for use on another thread.
    pub(crate) fn share(&self) -> Self {
        Self {
            config: self.config.clone(),
            device: self.device,
            precision: self.precision,
            outer: self.outer.share(Tensor::shallow_clone),
            head: Arc::clone(&self.head),
            layers: self.layers.iter().map(InferenceLayer::share).collect(),
            matrices: Arc::clone(&self.matrices),
        }
    }
}

impl Network for InferenceDecoder {
    fn config(&self) -> &ModelConfig {
        &self.config
    }

    fn device(&self) -> Device {
        self.device
    }

    fn max_pass_tokens(&self) -> usize {
        if self.head.is_on_host() {
            (PASS_TOKENS_PER_THREAD * kernel_threads::count()).min(LARGE_PASS)
        } else {
            LARGE_PASS
        }
    }

    fn forward(
        &mut self,
        ids: &Tensor,
        positions: &Tensor,
        attend: &mut Attend<'_>,
    ) -> Result<Tensor, TchError> {
        let (mut x, rotation) = self.outer.embed(ids, positions)?;
        for (index, layer) in self.layers.iter().enumerate() {
            x = layer.forward(&x, &rotation, &mut |q, k, v| attend(index, q, k, v))?;
        }
        self.outer.apply_norm(&x)
    }

    fn logits(&mut self, hidden: &Tensor) -> Result<Tensor, TchError> {
        self.head.product(None, hidden)
    }
}

/// The parameters of a decoder under construction.
struct ParameterSource {
    parameters: Parameters,
    /// The beginning of the names of the parameters. The methods expect names without it.
    prefix: String,
    device: Device,
    precision: Precision,
    /// The packed matrices, if another decoder of these weights has them.
    shared: Option<Arc<PackedMatrices>>,
    /// The matrices that were returned so far, packed or shared.
    matrices: PackedMatrices,
}

impl ParameterSource {
    fn new(
        parameters: Parameters,
        device: Device,
        precision: Precision,
        shared: Option<Arc<PackedMatrices>>,
    ) -> Self {
        let (prefix, matrices) = (String::new(), Vec::new());
        Self { parameters, prefix, device, precision, shared, matrices }
    }

    /// Removes a parameter and returns it as float32 on the device, without gradient. Its memory is copied only if type or device differ.
    fn take(&mut self, name: &str) -> Result<Tensor, TchError> {
        let parameter = self.parameters.take(&format!("{}{name}", self.prefix));
        parameter.f_detach()?.f_to_device(self.device)?.f_to_kind(Kind::Float)
    }

    /// Removes the linear maps `names` and returns one map with their outputs, concatenated in this order.
    fn stacked(&mut self, names: &[&str], bias: bool) -> Result<PackedLinear, TchError> {
        let take = |source: &mut Self, kind: &str| -> Result<Vec<Tensor>, TchError> {
            names.iter().map(|name| source.take(&format!("{name}.{kind}"))).collect()
        };
        let bias = if bias { Some(Tensor::f_cat(&take(self, "bias")?, 0)?) } else { None };
        let weight = self.packed(self.precision, |source| take(source, "weight"))?;
        Ok(PackedLinear { weight, bias })
    }

    /// Returns the next matrix: the shared one, or the parts that `take` returns, packed in `precision`.
    fn packed(
        &mut self,
        precision: Precision,
        take: impl FnOnce(&mut Self) -> Result<Vec<Tensor>, TchError>,
    ) -> Result<Arc<PackedMatrix>, TchError> {
        let matrix = match &self.shared {
            Some(shared) => Arc::clone(&shared[self.matrices.len()]),
            None => Arc::new(PackedMatrix::new(&take(self)?, precision)?),
        };
        self.matrices.push(Arc::clone(&matrix));
        Ok(matrix)
    }

    fn norm(&mut self, name: &str, eps: f64) -> Result<Norm, TchError> {
        Ok(Norm::new(self.take(&format!("{name}.weight"))?, eps))
    }
}

impl InferenceLayer {
    fn new(config: &ModelConfig, source: &mut ParameterSource) -> Result<Self, TchError> {
        let eps = config.rms_norm_eps;
        let qkv = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        let layer = Self {
            heads: Heads::of(config),
            input_norm: source.norm("input_layernorm", eps)?,
            qkv: source.stacked(&qkv, config.attention_bias)?,
            qk_norm: if config.qk_norm() {
                Some((source.norm("self_attn.q_norm", eps)?, source.norm("self_attn.k_norm", eps)?))
            } else {
                None
            },
            output: source.stacked(&["self_attn.o_proj"], config.output_bias())?,
            post_norm: source.norm("post_attention_layernorm", eps)?,
            gate_up: source.stacked(&["mlp.gate_proj", "mlp.up_proj"], false)?,
            down: source.stacked(&["mlp.down_proj"], false)?,
            rows: None,
        };
        let maps = [&layer.qkv, &layer.output, &layer.gate_up, &layer.down];
        let on_host = maps.iter().all(|map| map.weight.is_on_host());
        Ok(Self { rows: if on_host { RowOperations::detect() } else { None }, ..layer })
    }

    fn share(&self) -> Self {
        let norm = |norm: &Norm| norm.share(Tensor::shallow_clone);
        Self {
            heads: self.heads,
            input_norm: norm(&self.input_norm),
            qkv: self.qkv.share(),
            qk_norm: self.qk_norm.as_ref().map(|(query, key)| (norm(query), norm(key))),
            output: self.output.share(),
            post_norm: norm(&self.post_norm),
            gate_up: self.gate_up.share(),
            down: self.down.share(),
            rows: self.rows,
        }
    }

    /// Maps `x [n, hidden]` to `[n, hidden]`. `attend(q, k, v)` computes the attention, as in [`Decoder::forward`].
    fn forward(
        &self,
        x: &Tensor,
        rotation: &Rotation,
        attend: &mut dyn FnMut(&Tensor, &Tensor, &Tensor) -> Result<Tensor, TchError>,
    ) -> Result<Tensor, TchError> {
        let Heads { query, key, dim } = self.heads;
        let qkv = self.qkv.forward(&self.normalize(x, &self.input_norm)?)?;
        let norms = self.qk_norm.as_ref();
        let q = self.rotate(&qkv, 0, query, norms.map(|(norm, _)| norm), rotation)?;
        let k = self.rotate(&qkv, query, key, norms.map(|(_, norm)| norm), rotation)?;
        let v = self.heads.split(&qkv.f_narrow(-1, (query + key) * dim, key * dim)?)?;
        let attended = attend(&q, &k, &v)?;
        let x = self.output.add_to(x, &attended)?;
        let gate_up = self.gate_up.forward(&self.normalize(&x, &self.post_norm)?)?;
        self.down.add_to(&x, &self.gate(&gate_up)?)
    }

    fn normalize(&self, x: &Tensor, norm: &Norm) -> Result<Tensor, TchError> {
        match self.rows {
            Some(rows) => rows.normalize(x, &norm.rms()?),
            None => norm.forward(x),
        }
    }

    /// Returns `heads` heads of the columns of `qkv` from head `start`, normalized by `norm` and rotated, as `[n, heads, dim]`.
    fn rotate(
        &self,
        qkv: &Tensor,
        start: i64,
        heads: i64,
        norm: Option<&Norm>,
        rotation: &Rotation,
    ) -> Result<Tensor, TchError> {
        let dim = self.heads.dim;
        if let Some(rows) = self.rows {
            let [start, heads, dim] = [start * dim, heads, dim].map(|size| size as usize);
            let norm = norm.map(Norm::rms).transpose()?;
            let columns = HeadColumns { start, heads, dim, norm };
            return rows.rotate(qkv, &columns, &rotation.cos, &rotation.sin);
        }
        let columns = self.heads.split(&qkv.f_narrow(-1, start * dim, heads * dim)?)?;
        match norm {
            Some(norm) => rotation.apply(&norm.forward(&columns)?),
            None => rotation.apply(&columns),
        }
    }

    /// Returns `silu(gate) * up` for `gate_up [n, 2 * inner]`, as `[n, inner]`.
    fn gate(&self, gate_up: &Tensor) -> Result<Tensor, TchError> {
        if let Some(rows) = self.rows {
            return rows.gate(gate_up);
        }
        let inner = gate_up.size2()?.1 / 2;
        gate_up.f_narrow(-1, 0, inner)?.f_silu()?.f_mul(&gate_up.f_narrow(-1, inner, inner)?)
    }
}

impl PackedLinear {
    fn share(&self) -> Self {
        let bias = self.bias.as_ref().map(Tensor::shallow_clone);
        Self { weight: Arc::clone(&self.weight), bias }
    }

    fn forward(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.weight.product(self.bias.as_ref(), x)
    }

    /// Returns `residual + self(x)`.
    fn add_to(&self, residual: &Tensor, x: &Tensor) -> Result<Tensor, TchError> {
        match &self.bias {
            Some(_) => residual.f_add(&self.forward(x)?),
            None => self.weight.product(Some(residual), x),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::super::kernel_threads::tests::on_threads;
    use super::super::vectorized::Instructions;
    use super::*;

    fn models() -> impl Iterator<Item = PathBuf> {
        let models = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/fixtures/models");
        std::fs::read_dir(models).unwrap().map(|entry| entry.unwrap().path())
    }

    fn decoder(model: &str, seed: u64) -> Decoder {
        let folder = models().find(|path| path.ends_with(model)).unwrap();
        Decoder::init(ModelConfig::from_folder(&folder).unwrap(), seed, Device::Cpu).unwrap()
    }

    fn logits(network: &mut impl Network) -> Tensor {
        let ids = Tensor::from_slice(&[3i64, 1, 4, 1, 5, 9, 2, 6]);
        let hidden = network.forward_packed(&ids, &[5, 3]).unwrap();
        network.logits(&hidden).unwrap()
    }

    fn assert_close(found: &Tensor, expected: &Tensor, context: impl std::fmt::Display) {
        let difference = (found - expected).abs().max().double_value(&[]);
        let largest = expected.abs().max().double_value(&[]);
        assert!(difference < 1e-5 * largest, "{context}: {difference} of {largest}");
    }

    #[test]
    fn all_families_compute_the_same_as_a_decoder() {
        let _no_grad = tch::no_grad_guard();
        for model in models() {
            let mut decoder = Decoder::load(&model, Device::Cpu).unwrap();
            let expected = logits(&mut decoder);
            let mut packed = InferenceDecoder::new(decoder, Precision::Float32).unwrap();
            assert_close(&logits(&mut packed), &expected, model.display());
            packed.layers.iter_mut().for_each(|layer| layer.rows = None);
            assert_close(
                &logits(&mut packed),
                &expected,
                format!("{} without kernels", model.display()),
            );
        }
    }

    #[test]
    fn passes_are_small_where_the_kernels_multiply() {
        assert_eq!(decoder("qwen2_tied", 1).max_pass_tokens(), LARGE_PASS);
        on_threads(2, || {
            let packed = InferenceDecoder::new(decoder("qwen2_tied", 1), Precision::Float32);
            let packed: Box<dyn Network> = Box::new(packed.unwrap());
            let expected = if Instructions::detect().is_some() {
                2 * PASS_TOKENS_PER_THREAD
            } else {
                LARGE_PASS
            };
            assert_eq!(packed.max_pass_tokens(), expected);
        });
    }

    #[test]
    fn decoders_share_packed_matrices_while_one_of_them_lives() {
        let _no_grad = tch::no_grad_guard();
        let (old, mut new) = (decoder("llama_untied", 1), decoder("llama_untied", 2));
        let weights = new.snapshot().unwrap();
        let of = |precision| {
            let like = InferenceDecoder::new(old.share(), precision).unwrap();
            like.with_weights(&weights.share()).unwrap()
        };
        let [mut first, second, rounded] =
            [Precision::Float32, Precision::Float32, Precision::Bfloat16].map(of);
        assert_close(&logits(&mut first), &logits(&mut new), "new weights");
        let same = |a: &InferenceDecoder, b: &InferenceDecoder| Arc::ptr_eq(&a.head, &b.head);
        assert!(same(&first, &second) && same(&first, &first.share()));
        assert!(!same(&first, &rounded));
        let held = Arc::downgrade(&first.matrices);
        drop(first);
        assert!(held.upgrade().is_some() && same(&second, &of(Precision::Float32)));
        drop(second);
        assert!(held.upgrade().is_none(), "the published weights keep no matrix");
    }

    #[test]
    fn weights_of_another_model_are_refused() {
        let like = InferenceDecoder::new(decoder("qwen2_tied", 1), Precision::Float32).unwrap();
        let other = decoder("llama_untied", 1).snapshot().unwrap();
        let error = like.with_weights(&other).unwrap_err().to_string();
        assert!(error.contains("published weights"), "{error}");
    }
}
