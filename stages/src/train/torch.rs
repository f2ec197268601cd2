//! The trainer on libtorch: accumulates the gradient of a step response by response, then divides once.

use rollpacker_dataflow::step::{PolicyVersion, Step};
use std::path::Path;
use tch::{TchError, Tensor};

use super::config::TrainerConfig;
use super::head::{Head, TokenScores};
use super::micro_batch::{MicroBatch, Turn, plan};
use super::optimizer::{AdamW, clear_gradients};
use super::tally::{Tally, Terms};
use super::{Metrics, Sequence, TrainError, Trainer};
use crate::model::device::set_threads_of_this_thread;
use crate::model::{Decoder, WeightStore};
use crate::rollout::Policy;

/// Policy-gradient training of a decoder.
///
/// The loss of a step is a sum over responses divided by a sum over responses ([`Aggregation`](super::config::Aggregation)). The
/// gradient of the numerator is added up as responses arrive, the denominator beside it in float64, and the division is left to
/// [`update`](Trainer::update): neither the order of arrival nor the micro-batches show in the result.
///
/// Log-probabilities of the engine are taken as those of the old policy. With one update a step they differ from the trainer's only
/// by floating point, which `training/rollout_probs_diff_*` watches.
#[derive(Debug)]
pub struct TorchTrainer {
    config: TrainerConfig,
    decoder: Decoder,
    /// The initial weights; held only if the loss has a KL term.
    reference: Option<Decoder>,
    optimizer: AdamW,
    head: Head,
    store: WeightStore,
    tally: Tally,
}

impl TorchTrainer {
    /// A trainer of `decoder`, on its device, that publishes to `store`.
    ///
    /// # Errors
    /// If the device has no room for the optimizer or the reference model.
    pub fn new(
        mut decoder: Decoder,
        config: TrainerConfig,
        store: WeightStore,
    ) -> Result<Self, TrainError> {
        let failed = || TrainError::backend("setting up");
        let reference = if config.kl_loss_coef > 0.0 { Some(frozen_copy(&decoder)?) } else { None };
        decoder.set_requires_grad(true);
        let optimizer = AdamW::new(config.optimizer, decoder.parameters()).map_err(failed())?;
        let head =
            Head::new(decoder.config().vocab_size, config.temperature, config.entropy_coeff > 0.0);
        Ok(Self { config, decoder, reference, optimizer, head, store, tally: Tally::default() })
    }

    /// The model as it stands.
    #[must_use]
    pub fn decoder(&self) -> &Decoder {
        &self.decoder
    }

    fn publish(&self, version: PolicyVersion) -> Result<Policy, TrainError> {
        let weights = self.decoder.snapshot().map_err(TrainError::backend("publishing weights"))?;
        Ok(self.store.publish(version, weights))
    }

    fn accumulate_micro_batch(&self, sequences: &[Sequence<'_>]) -> Result<Tally, TchError> {
        let turns: Vec<_> = sequences.iter().map(turn).collect();
        let batch = MicroBatch::pack(&turns, self.decoder.device())?;
        let reference =
            self.reference.as_ref().map(|model| self.head.score(model, &batch)).transpose()?;
        let columns = self.columns(sequences, reference)?;
        let reduced =
            self.head.backward(&self.decoder, &batch, |scores| self.numerator(scores, &columns))?;
        let measure = |s: &Sequence<'_>| {
            f64::from(s.weight) * self.config.loss_agg_mode.measure(s.response_ids.len())
        };
        let tokens = sequences.iter().map(|s| s.response_ids.len()).sum();
        Tally::of(sequences.iter().map(measure).sum(), tokens, &reduced)
    }

    fn columns(
        &self,
        sequences: &[Sequence<'_>],
        reference: Option<TokenScores>,
    ) -> Result<Columns, TchError> {
        let device = self.decoder.device();
        let tensor = |values: Vec<f32>| Tensor::f_from_slice(&values)?.f_to_device(device);
        let (mode, scale) = (self.config.loss_agg_mode, self.config.loss_scale_factor);
        let factors = sequences.iter().flat_map(|s| {
            let factor = f64::from(s.weight) * mode.coefficient(s.response_ids.len(), scale);
            std::iter::repeat_n(factor as f32, s.response_ids.len())
        });
        Ok(Columns {
            old: tensor(sequences.iter().flat_map(|s| s.logprobs).copied().collect())?,
            advantages: tensor(sequences.iter().flat_map(|s| s.advantages).copied().collect())?,
            factors: tensor(factors.collect())?,
            reference: reference.map(|scores| scores.logprobs),
        })
    }

    /// The numerator of the loss, and the reduced terms.
    fn numerator(
        &self,
        scores: &TokenScores,
        columns: &Columns,
    ) -> Result<(Tensor, Tensor), TchError> {
        let policy =
            self.config.policy_loss.tokens(&scores.logprobs, &columns.old, &columns.advantages)?;
        let weighted = |loss: &Tensor| loss.f_mul(&columns.factors);
        let pg_loss = weighted(&policy.loss)?;
        let entropy = weighted(&scores.entropy)?;
        let kl_loss = match &columns.reference {
            Some(reference) => {
                weighted(&self.config.kl_loss_type.tokens(&scores.logprobs, reference)?)?
            }
            None => pg_loss.f_zeros_like()?,
        };
        let mut total = pg_loss.f_sum(pg_loss.kind())?;
        if columns.reference.is_some() {
            total = total
                .f_add(&kl_loss.f_sum(kl_loss.kind())?.f_mul_scalar(self.config.kl_loss_coef)?)?;
        }
        if self.config.entropy_coeff > 0.0 {
            total = total
                .f_sub(&entropy.f_sum(entropy.kind())?.f_mul_scalar(self.config.entropy_coeff)?)?;
        }
        let reduced = Terms {
            pg_loss: &pg_loss,
            kl_loss: &kl_loss,
            entropy: &entropy,
            clipped: &policy.clipped,
            clipped_lower: &policy.clipped_lower,
            log_ratio: &policy.log_ratio,
            probs_diff: &scores
                .logprobs
                .f_detach()?
                .f_exp()?
                .f_sub(&columns.old.f_exp()?)?
                .f_abs()?,
        };
        Ok((total, reduced.reduce()?))
    }

    /// Applies the accumulated gradient.
    fn apply(&mut self, step: Step) -> Result<Metrics, TrainError> {
        let failed = || TrainError::backend("updating weights");
        let tally = std::mem::take(&mut self.tally);
        if tally.denominator <= 0.0 {
            return Ok(Metrics::new());
        }
        let update =
            self.optimizer.update(self.decoder.parameters(), tally.denominator).map_err(failed())?;
        clear_gradients(self.decoder.parameters()).map_err(failed())?;
        if !update.grad_norm.is_finite() {
            return Err(TrainError::NotFinite { step, quantity: "gradient" });
        }
        Ok(tally.metrics(update, (self.config.kl_loss_coef, self.config.entropy_coeff)))
    }
}

impl Trainer for TorchTrainer {
    fn publish_initial(&mut self) -> Result<Policy, TrainError> {
        self.publish(PolicyVersion(0))
    }

    fn accumulate(&mut self, step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        set_threads_of_this_thread(self.config.threads);
        sequences.iter().enumerate().try_for_each(|(at, sequence)| check(at, sequence))?;
        let turns: Vec<_> = sequences.iter().map(turn).collect();
        for members in plan(&turns, self.config.micro_batch_tokens) {
            let members: Vec<_> = members.into_iter().map(|at| sequences[at]).collect();
            let tally = self
                .accumulate_micro_batch(&members)
                .map_err(TrainError::backend("accumulating gradients"))?;
            if !tally.is_finite() {
                return Err(TrainError::NotFinite { step, quantity: "loss" });
            }
            self.tally.add(&tally);
        }
        Ok(())
    }

    fn update(&mut self, step: Step) -> Result<(Policy, Metrics), TrainError> {
        set_threads_of_this_thread(self.config.threads);
        let metrics = self.apply(step)?;
        Ok((self.publish(PolicyVersion(step.next().0))?, metrics))
    }

    fn save(&mut self, folder: &Path) -> Result<(), TrainError> {
        self.decoder.save(folder).map_err(TrainError::from)
    }
}

/// What the loss needs beside the model; all `[response tokens]`.
struct Columns {
    old: Tensor,
    advantages: Tensor,
    factors: Tensor,
    reference: Option<Tensor>,
}

fn turn<'a>(sequence: &Sequence<'a>) -> Turn<'a> {
    Turn { prompt: sequence.prompt_ids, response: sequence.response_ids }
}

fn check(at: usize, sequence: &Sequence<'_>) -> Result<(), TrainError> {
    let refuse =
        |field, expected: String, found| Err(TrainError::Sequence { at, field, expected, found });
    let tokens = sequence.response_ids.len();
    match sequence {
        s if s.prompt_ids.is_empty() => refuse("prompt_ids", "at least 1".to_owned(), 0),
        s if s.response_length as usize != tokens => {
            refuse("response_ids", s.response_length.to_string(), tokens)
        }
        s if s.logprobs.len() != tokens => refuse("logprobs", tokens.to_string(), s.logprobs.len()),
        s if s.advantages.len() != tokens => {
            refuse("advantages", tokens.to_string(), s.advantages.len())
        }
        _ => Ok(()),
    }
}

fn frozen_copy(decoder: &Decoder) -> Result<Decoder, TrainError> {
    let failed = || TrainError::backend("copying the reference model");
    let mut copy = Decoder::init(decoder.config().clone(), 0, decoder.device()).map_err(failed())?;
    copy.copy_from(&decoder.snapshot().map_err(failed())?).map_err(failed())?;
    Ok(copy)
}

#[cfg(test)]
mod tests;
