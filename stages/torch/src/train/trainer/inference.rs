//! Inference: outputs of the models for responses before their advantages are estimated.

use rollpacker_stages::train::config::OldLogprobs;
use rollpacker_stages::train::{Inferred, Sequence};
use tch::{Kind, TchError, Tensor};

use super::TorchTrainer;
use crate::train::objective::column;

impl TorchTrainer {
    /// Returns the outputs of the models for a micro-batch.
    pub(super) fn infer_micro_batch(
        &self,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<Inferred>, TchError> {
        let batch = self.pack(sequences)?;
        let mut reward_kl = None;
        let mut ref_logprobs = None;
        if let Some(reference) = &self.reference {
            let reference = self.head.score(reference, &batch)?.logprobs;
            if let Some(estimator) = &self.objective.reward_kl {
                let old = match self.config.old_logprobs {
                    OldLogprobs::Engine => {
                        column(sequences, |s| s.logprobs, self.decoder.device())?
                    }
                    OldLogprobs::Trainer => self.head.score(&self.decoder, &batch)?.logprobs,
                };
                reward_kl = Some(tch::no_grad(|| estimator.tokens(&old, &reference))?);
            }
            ref_logprobs = Some(reference).filter(|_| self.config.kl_loss_coef > 0.0);
        }
        let values = self.critic.as_ref().map(|critic| critic.values(&batch)).transpose()?;
        let lengths: Vec<usize> = sequences.iter().map(|s| s.response_ids.len()).collect();
        let [reward_kl, ref_logprobs, values] =
            [reward_kl, ref_logprobs, values].map(|column| split(column, &lengths));
        let columns = reward_kl?.into_iter().zip(ref_logprobs?).zip(values?);
        Ok(columns
            .map(|((reward_kl, ref_logprobs), values)| Inferred { reward_kl, ref_logprobs, values })
            .collect())
    }
}

/// Splits a tensor `[tokens]` into one list per sequence. Returns empty lists if there is no tensor.
pub(super) fn split(column: Option<Tensor>, lengths: &[usize]) -> Result<Vec<Vec<f32>>, TchError> {
    let Some(column) = column else { return Ok(vec![Vec::new(); lengths.len()]) };
    let values = Vec::<f32>::try_from(column.f_to_kind(Kind::Float)?)?;
    let mut rest = values.as_slice();
    Ok(lengths
        .iter()
        .map(|&length| {
            let (one, later) = rest.split_at(length);
            rest = later;
            one.to_vec()
        })
        .collect())
}
