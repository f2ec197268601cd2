//! The output head: log-probabilities of target tokens and entropies from hidden states, and their gradients.

use tch::{Device, TchError, Tensor};

use super::loss::log_probs;
use super::micro_batch::MicroBatch;
use crate::model::Decoder;

/// The maximum number of logits held at once on a CPU: 64 MiB of float32, plus a few times as much for values computed from them.
const HOST_LOGITS: i64 = 1 << 24;

/// The maximum number of logits held at once on other devices: 1 GiB of float32. Each chunk adds a gradient of the size of the head, so few
/// chunks are fast.
const DEVICE_LOGITS: i64 = 1 << 28;

/// The model's scores of the response tokens of a micro-batch; both `[response tokens]`.
#[derive(Debug)]
pub(crate) struct TokenScores {
    /// Log-probability of each token, in nats.
    pub(crate) logprobs: Tensor,
    /// Entropy of the predicted distribution of the token, in nats.
    pub(crate) entropy: Tensor,
}

impl TokenScores {
    /// Returns the scores of the tokens at the indices `at`.
    pub(crate) fn select(&self, at: &Tensor) -> Result<Self, TchError> {
        let select = |scores: &Tensor| scores.f_index_select(0, at);
        Ok(Self { logprobs: select(&self.logprobs)?, entropy: select(&self.entropy)? })
    }
}

/// The output head of a decoder, evaluated only at positions that predict a response token.
///
/// If a micro-batch has more logits than may be held at once, they are computed in chunks and discarded, and the backward pass computes
/// them again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    temperature: f64,
    entropy_grad: bool,
    /// The maximum number of rows of logits held at once.
    pub(crate) rows: i64,
}

impl Head {
    /// Creates the head of `decoder`. Logits are divided by `temperature`; `entropy_grad` must be `true` if the objective depends on the
    /// entropy.
    pub(crate) fn new(decoder: &Decoder, temperature: f64, entropy_grad: bool) -> Self {
        let max = if decoder.device() == Device::Cpu { HOST_LOGITS } else { DEVICE_LOGITS };
        let rows = (max / decoder.config().vocab_size.max(1)).max(1);
        Self { temperature, entropy_grad, rows }
    }

    /// Computes the scores without gradient.
    pub(crate) fn score(
        &self,
        decoder: &Decoder,
        batch: &MicroBatch,
    ) -> Result<TokenScores, TchError> {
        tch::no_grad(|| self.score_in_chunks(decoder, &batch.hidden(decoder)?, &batch.targets))
    }

    /// Adds the gradient of the loss that `objective` returns to the gradients of the decoder's parameters. Returns the second value of
    /// `objective`.
    pub(crate) fn backward<T>(
        &self,
        decoder: &Decoder,
        batch: &MicroBatch,
        objective: impl FnOnce(&TokenScores) -> Result<(Tensor, T), TchError>,
    ) -> Result<T, TchError> {
        let hidden = batch.hidden(decoder)?;
        if batch.targets.size1()? > self.rows {
            return self.backward_in_chunks(decoder, &hidden, &batch.targets, objective);
        }
        let (loss, rest) = objective(&self.score_rows(decoder, &hidden, &batch.targets)?)?;
        loss.f_backward()?;
        Ok(rest)
    }

    /// Computes the gradient without holding all logits at once, in four passes.
    ///
    /// The first pass computes the scores of all rows without a graph. The second computes the gradient of the objective with respect to
    /// these scores. The third goes through the rows in chunks. For each chunk, it builds the graph from the hidden states to the scores
    /// again, and backpropagates the dot product of the scores and their gradient. This accumulates the gradient of the head's parameters,
    /// and in `cut` the gradient of the hidden states. The last pass backpropagates the gradient of the hidden states into the layers.
    fn backward_in_chunks<T>(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        targets: &Tensor,
        objective: impl FnOnce(&TokenScores) -> Result<(Tensor, T), TchError>,
    ) -> Result<T, TchError> {
        let cut = leaf(hidden)?;
        let scores = tch::no_grad(|| self.score_in_chunks(decoder, &cut, targets))?;
        let scores =
            TokenScores { logprobs: leaf(&scores.logprobs)?, entropy: leaf(&scores.entropy)? };
        let (loss, rest) = objective(&scores)?;
        loss.f_backward()?;
        let (by_logprobs, by_entropy) = (scores.logprobs.f_grad()?, scores.entropy.f_grad()?);
        for (start, rows) in self.chunks(targets)? {
            let part = |tensor: &Tensor| tensor.f_narrow(0, start, rows);
            let scores = self.score_rows(decoder, &part(&cut)?, &part(targets)?)?;
            let mut inner = scores.logprobs.f_dot(&part(&by_logprobs)?)?;
            if self.entropy_grad && by_entropy.defined() {
                inner = inner.f_add(&scores.entropy.f_dot(&part(&by_entropy)?)?)?;
            }
            inner.f_backward()?;
        }
        hidden.f_flatten(0, -1)?.f_dot(&cut.f_grad()?.f_flatten(0, -1)?)?.f_backward()?;
        Ok(rest)
    }

    fn score_in_chunks(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        targets: &Tensor,
    ) -> Result<TokenScores, TchError> {
        let (mut logprobs, mut entropy) = (Vec::new(), Vec::new());
        for (start, rows) in self.chunks(targets)? {
            let scores = self.score_rows(
                decoder,
                &hidden.f_narrow(0, start, rows)?,
                &targets.f_narrow(0, start, rows)?,
            )?;
            logprobs.push(scores.logprobs);
            entropy.push(scores.entropy);
        }
        Ok(TokenScores {
            logprobs: Tensor::f_cat(&logprobs, 0)?,
            entropy: Tensor::f_cat(&entropy, 0)?,
        })
    }

    fn score_rows(
        &self,
        decoder: &Decoder,
        hidden: &Tensor,
        targets: &Tensor,
    ) -> Result<TokenScores, TchError> {
        let mut logits = decoder.logits(hidden)?;
        if self.temperature != 1.0 {
            logits = logits.f_div_scalar(self.temperature)?;
        }
        let (logprobs, entropy) = log_probs(&logits, targets, self.entropy_grad)?;
        Ok(TokenScores { logprobs, entropy })
    }

    /// Returns start and length of each chunk of the rows of `targets`.
    fn chunks(
        &self,
        targets: &Tensor,
    ) -> Result<impl Iterator<Item = (i64, i64)> + use<>, TchError> {
        let (total, rows) = (targets.size1()?, self.rows);
        Ok((0..total)
            .step_by(usize::try_from(rows).unwrap_or(1))
            .map(move |start| (start, rows.min(total - start))))
    }
}

/// Returns the values of `tensor` as a leaf of a new graph.
fn leaf(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_set_requires_grad(true)
}
