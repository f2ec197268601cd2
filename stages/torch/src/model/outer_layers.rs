//! The parts of a decoder before its first layer and after its last.

use tch::{Device, Kind, TchError, Tensor};

use super::ModelConfig;
use super::layer::{Handle, Norm, Rotation};

/// Embedding, final norm and output head of a decoder, and the frequencies of its rotary embedding.
#[derive(Debug)]
pub(crate) struct OuterLayers {
    /// `[vocab, hidden]`
    embedding: Tensor,
    norm: Norm,
    /// `[vocab, hidden]`; `None` if the head is tied to the embedding, or the decoder holds the head itself.
    head: Option<Tensor>,
    /// The id of the padding token, whose lookups contribute no gradient to the embedding; -1 if there is none. PyTorch calls it
    /// `padding_idx`.
    padding: i64,
    /// Frequencies of the rotary embedding, `[head_dim]`, in radians per position; negative in the first half.
    frequencies: Tensor,
}

impl OuterLayers {
    /// Allocates the parameters without initializing them.
    pub(crate) fn allocate(config: &ModelConfig, device: Device) -> Result<Self, TchError> {
        let matrix =
            || Tensor::f_empty([config.vocab_size, config.hidden_size], (Kind::Float, device));
        let norm = Norm::allocate(config.hidden_size, config.rms_norm_eps, device)?;
        let head = if config.tie_word_embeddings { None } else { Some(matrix()?) };
        Self::new(config, matrix()?, norm, head)
    }

    /// Creates the layers over the memory of existing parameters: `embedding` and `head` are `[vocab, hidden]`. Without `head`,
    /// [`logits`](Self::logits) uses the embedding.
    pub(crate) fn new(
        config: &ModelConfig,
        embedding: Tensor,
        norm: Norm,
        head: Option<Tensor>,
    ) -> Result<Self, TchError> {
        let frequencies = signed_frequencies(config)?.f_to_device(embedding.device())?;
        let padding = config.pad_token_id.map_or(-1, i64::from);
        Ok(Self { embedding, norm, head, padding, frequencies })
    }

    /// Returns the same parts over the same memory; `handle` creates their tensors.
    pub(crate) fn share(&self, handle: Handle) -> Self {
        Self {
            embedding: handle(&self.embedding),
            norm: self.norm.share(handle),
            head: self.head.as_ref().map(handle),
            padding: self.padding,
            frequencies: handle(&self.frequencies),
        }
    }

    /// Returns the parameters before the layers, by name.
    pub(crate) fn input_parameters(&self) -> [(&'static str, &Tensor); 1] {
        [("model.embed_tokens.weight", &self.embedding)]
    }

    /// Returns the parameters after the layers, by name.
    pub(crate) fn output_parameters(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let head = self.head.as_ref().map(|head| ("lm_head.weight", head));
        std::iter::once(("model.norm.weight", self.norm.weight())).chain(head)
    }

    /// Maps ids `[n]` and positions `[n]` to the inputs of the layers: embeddings `[n, hidden]` and the rotation of each token.
    ///
    /// As in transformers, the lookup of the padding token has no gradient. A tied head still trains the row of the padding token.
    pub(crate) fn embed(
        &self,
        ids: &Tensor,
        positions: &Tensor,
    ) -> Result<(Tensor, Rotation), TchError> {
        let rotation = Rotation::new(&self.frequencies, positions)?;
        Ok((Tensor::f_embedding(&self.embedding, ids, self.padding, false, false)?, rotation))
    }

    /// Applies the final norm to the output of the layers. Input and output are `[n, hidden]`.
    pub(crate) fn apply_norm(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.norm.forward(x)
    }

    /// Maps hidden states `[n, hidden]` to logits `[n, vocab]`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        hidden.f_linear::<&Tensor>(self.head(), None)
    }

    /// Returns the weight of the head, `[vocab, hidden]`; the embedding if there is no separate head.
    fn head(&self) -> &Tensor {
        self.head.as_ref().unwrap_or(&self.embedding)
    }
}

/// Returns the frequencies of the rotary embedding twice, negated in the first half. This keeps the cosines and negates the sines, as a
/// rotation requires for the first half.
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

#[cfg(test)]
mod tests {
    use rollpacker_model::{Family, Rope};

    use super::super::Decoder;
    use super::*;

    const PADDING: i64 = 2;

    fn decoder(family: Family, tied: bool, pad_token_id: Option<i32>) -> Decoder {
        let config = ModelConfig {
            family,
            vocab_size: 6,
            hidden_size: 8,
            intermediate_size: 16,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 4,
            rms_norm_eps: 1e-6,
            rope: Rope::Default { theta: 10_000.0 },
            tie_word_embeddings: tied,
            attention_bias: family == Family::Qwen2,
            max_position_embeddings: 16,
            initializer_range: 0.5,
            eos_token_ids: vec![1],
            bos_token_id: None,
            pad_token_id,
        };
        let mut decoder = Decoder::init(config, 7, Device::Cpu).unwrap();
        decoder.set_requires_grad(true);
        decoder
    }

    /// Returns the gradient of the log-probabilities of a text with respect to a parameter. The text has the padding token as input and as
    /// target.
    fn gradient(decoder: &Decoder, name: &str) -> Tensor {
        let ids = Tensor::from_slice(&[0i64, PADDING, 3, PADDING, 4]);
        let hidden = decoder.forward_packed(&ids, &[5]).unwrap().narrow(0, 0, 4);
        let logprobs = decoder.logits(&hidden).unwrap().log_softmax(-1, Kind::Float);
        logprobs.gather(-1, &ids.narrow(0, 1, 4).unsqueeze(-1), false).sum(Kind::Float).backward();
        let found = decoder.parameters().iter().find(|(found, _)| found == name);
        found.unwrap().1.grad().copy()
    }

    fn norm_of_row(gradient: &Tensor, row: i64) -> f64 {
        gradient.get(row).norm().double_value(&[])
    }

    const EMBEDDING: &str = "model.embed_tokens.weight";

    #[test]
    fn the_lookup_of_the_padding_token_is_not_trained() {
        for family in [Family::Qwen2, Family::Qwen3, Family::Llama] {
            let padded = gradient(&decoder(family, false, Some(PADDING as i32)), EMBEDDING);
            let unpadded = gradient(&decoder(family, false, None), EMBEDDING);
            assert_eq!(norm_of_row(&padded, PADDING), 0.0, "{family:?}");
            assert!(norm_of_row(&unpadded, PADDING) > 0.0, "{family:?}");
            let others = |gradient: &Tensor| {
                gradient.index_select(0, &Tensor::from_slice(&[0i64, 1, 3, 4, 5]))
            };
            assert!(others(&padded).allclose(&others(&unpadded), 1e-6, 1e-7, false), "{family:?}");
        }
    }

    #[test]
    fn a_tied_head_trains_the_row_of_the_padding_token() {
        let tied = decoder(Family::Llama, true, Some(PADDING as i32));
        let untied = decoder(Family::Llama, false, Some(PADDING as i32));
        let weights = untied.parameters().iter().map(|(name, tensor)| (name, tensor));
        for (name, untied) in weights.filter(|(name, _)| *name != "lm_head.weight") {
            let own = &tied.parameters().iter().find(|(own, _)| own == name).unwrap().1;
            tch::no_grad(|| untied.shallow_clone().copy_(own));
        }
        let head =
            &untied.parameters().iter().find(|(name, _)| name == "lm_head.weight").unwrap().1;
        tch::no_grad(|| head.shallow_clone().copy_(&tied.parameters()[0].1));
        let by_head = gradient(&untied, "lm_head.weight");
        assert!(norm_of_row(&by_head, PADDING) > 0.0);
        let found = gradient(&tied, EMBEDDING).get(PADDING);
        assert!(found.allclose(&by_head.get(PADDING), 1e-5, 1e-6, false));
    }
}
