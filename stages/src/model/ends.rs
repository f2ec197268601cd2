//! What a decoder has before its first layer and after its last.

use tch::{Device, Kind, TchError, Tensor};

use super::ModelConfig;
use super::layer::{Norm, Rotation};

/// Embedding, final norm and output head of a decoder, and the frequencies of its rotation.
#[derive(Debug)]
pub(crate) struct Ends {
    /// `[vocab, hidden]`
    embedding: Tensor,
    norm: Norm,
    /// `[vocab, hidden]`; absent if tied to the embedding.
    head: Option<Tensor>,
    /// `[head_dim]`, radians per position, negative in the first half.
    frequencies: Tensor,
}

impl Ends {
    /// Ends whose weights hold whatever the memory held.
    pub(crate) fn allocate(config: &ModelConfig, device: Device) -> Result<Self, TchError> {
        let matrix =
            || Tensor::f_empty([config.vocab_size, config.hidden_size], (Kind::Float, device));
        Ok(Self {
            embedding: matrix()?,
            norm: Norm::allocate(config.hidden_size, config.rms_norm_eps, device)?,
            head: if config.tie_word_embeddings { None } else { Some(matrix()?) },
            frequencies: signed_frequencies(config)?.f_to_device(device)?,
        })
    }

    /// Another handle of the same memory.
    pub(crate) fn share(&self) -> Self {
        Self {
            embedding: self.embedding.shallow_clone(),
            norm: self.norm.share(),
            head: self.head.as_ref().map(Tensor::shallow_clone),
            frequencies: self.frequencies.shallow_clone(),
        }
    }

    /// The parameters before the layers, by their names.
    pub(crate) fn before(&self) -> [(&'static str, &Tensor); 1] {
        [("model.embed_tokens.weight", &self.embedding)]
    }

    /// The parameters after the layers, by their names.
    pub(crate) fn after(&self) -> impl Iterator<Item = (&'static str, &Tensor)> {
        let head = self.head.as_ref().map(|head| ("lm_head.weight", head));
        std::iter::once(("model.norm.weight", self.norm.weight())).chain(head)
    }

    /// Ids `[n]` and positions `[n]` to what the layers take: embeddings `[n, hidden]`, and where the tokens stand.
    pub(crate) fn enter(
        &self,
        ids: &Tensor,
        positions: &Tensor,
    ) -> Result<(Tensor, Rotation), TchError> {
        let rotation = Rotation::new(&self.frequencies, positions)?;
        Ok((Tensor::f_embedding(&self.embedding, ids, -1, false, false)?, rotation))
    }

    /// What the layers return to the hidden states after the last norm, `[n, hidden]` both.
    pub(crate) fn leave(&self, x: &Tensor) -> Result<Tensor, TchError> {
        self.norm.forward(x)
    }

    /// Hidden states `[n, hidden]` to logits `[n, vocab]`.
    pub(crate) fn logits(&self, hidden: &Tensor) -> Result<Tensor, TchError> {
        hidden.f_linear::<&Tensor>(self.head.as_ref().unwrap_or(&self.embedding), None)
    }
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
