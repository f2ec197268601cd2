//! From hidden states to the log-probabilities of targets, and the gradient back.

use tch::{TchError, Tensor};

use super::loss::log_probs;
use super::micro_batch::MicroBatch;
use crate::model::Decoder;

/// Logits held at once, in numbers; 64 MiB of float32, a few times over with what is computed from them.
const LOGITS: i64 = 1 << 24;

/// What the model says of the response tokens of a micro-batch; both `[response tokens]`.
#[derive(Debug)]
pub(crate) struct TokenScores {
    /// Log-probability of each token, in nats.
    pub(crate) logprobs: Tensor,
    /// Entropy of the distribution that it was predicted from, in nats.
    pub(crate) entropy: Tensor,
}

/// The output head of a decoder, over those positions only that predict a response token.
///
/// Where the vocabulary is large, logits are computed in chunks and thrown away; the backward pass computes them again.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    temperature: f64,
    entropy_grad: bool,
    /// Rows of logits held at once.
    pub(crate) rows: i64,
}

impl Head {
    /// Logits are divided by `temperature`; `entropy_grad` says whether an objective depends on the entropy.
    pub(crate) fn new(vocab_size: i64, temperature: f64, entropy_grad: bool) -> Self {
        Self { temperature, entropy_grad, rows: (LOGITS / vocab_size.max(1)).max(1) }
    }

    /// Scores without gradient.
    pub(crate) fn score(
        &self,
        decoder: &Decoder,
        batch: &MicroBatch,
    ) -> Result<TokenScores, TchError> {
        tch::no_grad(|| self.score_in_chunks(decoder, &batch.hidden(decoder)?, &batch.targets))
    }

    /// Adds the gradient of an objective to the decoder's parameters, and returns what else the objective has to say.
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

    /// Three passes: the scores of all rows without graph, the gradient of the objective by these scores, then chunk by chunk the
    /// graph from the hidden states to the scores. Last the gradient by the hidden states goes on into the layers.
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

    /// Start and length of each chunk of the rows of `targets`.
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

/// The values of `tensor` as the start of a graph.
fn leaf(tensor: &Tensor) -> Result<Tensor, TchError> {
    tensor.f_detach()?.f_set_requires_grad(true)
}
