//! The computations on one micro-batch, on one thread.

use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::config::{OldLogprobs, TrainerConfig};
use rollpacker_stages::train::{Inferred, Sequence, TrainError};
use tch::{Kind, TchError, Tensor};

use super::held::{HeldSequence, HeldStep};
use super::models::TrainerModels;
use crate::train::accumulation::Accumulation;
use crate::train::head::{Head, TokenScores};
use crate::train::micro_batch::{MicroBatch, PromptResponse};
use crate::train::mismatch;
use crate::train::objective::{Columns, Objective, column, denominator, factors, tokens};
use crate::train::tally::{StepSums, Unit};

/// The models of a thread, with the settings of its trainer.
#[derive(Clone, Copy)]
pub(super) struct Pass<'a> {
    pub(super) config: &'a TrainerConfig,
    pub(super) objective: &'a Objective,
    pub(super) head: Head,
    pub(super) models: &'a TrainerModels,
}

/// The sums of a micro-batch besides its gradients, of each model that was trained.
pub(super) struct MicroBatchSums {
    /// `None` during the warm-up of the critic.
    pub(super) policy: Option<StepSums>,
    /// `None` without a critic.
    pub(super) critic: Option<StepSums>,
}

pub(super) struct Sums<'a> {
    pub(super) policy: &'a mut Accumulation,
    pub(super) critic: Option<&'a mut Accumulation>,
}

impl Sums<'_> {
    /// Adds a micro-batch whose gradients have been added to the gradients of `models`.
    pub(super) fn add(
        &mut self,
        models: &TrainerModels,
        unit: Unit,
        sums: &MicroBatchSums,
    ) -> Result<(), TrainError> {
        if let Some(sums) = &sums.policy {
            self.policy.add(models.policy.parameters(), unit, sums)?;
        }
        match (&mut self.critic, &models.critic, &sums.critic) {
            (Some(critic), Some(model), Some(sums)) => critic.add(model.parameters(), unit, sums),
            _ => Ok(()),
        }
    }
}

impl Pass<'_> {
    /// Adds the gradients of a micro-batch to the gradients of the models. `held` has the responses of a step with several updates; `None`
    /// in a step with one update.
    pub(super) fn accumulate(
        self,
        step: Step,
        sequences: &[Sequence<'_>],
        held: Option<&HeldStep>,
    ) -> Result<MicroBatchSums, TrainError> {
        let failed = || TrainError::backend("accumulating gradients");
        let batch = self.pack(sequences).map_err(failed())?;
        let policy = if trains_policy(self.config, step) {
            let sums = self.accumulate_policy(sequences, &batch, held).map_err(failed())?;
            if !sums.is_finite() {
                return Err(TrainError::NotFinite { step, quantity: "loss" });
            }
            Some(sums)
        } else {
            None
        };
        let critic = match (&self.models.critic, &self.config.critic) {
            (Some(model), Some(config)) => {
                let failed = TrainError::backend("accumulating gradients of the critic");
                let scale = self.config.loss_scale_factor;
                Some(model.backward(config, sequences, &batch, scale).map_err(failed)?)
            }
            _ => None,
        };
        Ok(MicroBatchSums { policy, critic })
    }

    fn accumulate_policy(
        self,
        sequences: &[Sequence<'_>],
        batch: &MicroBatch,
        held: Option<&HeldStep>,
    ) -> Result<StepSums, TchError> {
        let (config, device) = (self.config, self.models.policy.device());
        let mode = self.objective.aggregation(config);
        let factors = factors(sequences, mode, config.loss_scale_factor, device)?;
        let reference = self.reference_logprobs(sequences, batch)?;
        let start = held.map(|held| held.start_logprobs(sequences, device)).transpose()?;
        let columns = Columns::new(sequences, factors, reference, start, device)?;
        let numerator =
            |scores: &TokenScores| self.objective.numerator(config, scores, &columns, sequences);
        let outcome = self.head.backward(&self.models.policy, batch, numerator)?;
        let denominator = match &outcome.kept {
            Some(kept) => kept.denominator(sequences, mode),
            None => denominator(sequences, mode),
        };
        let mut sums = StepSums::of(denominator, tokens(sequences), &outcome.terms)?;
        sums.add(&mismatch::sums(config, sequences, &outcome)?);
        Ok(sums)
    }

    /// Returns the log-probabilities under the reference: the log-probabilities from inference if all sequences have them, otherwise newly
    /// computed. `None` if the loss has no KL term.
    fn reference_logprobs(
        self,
        sequences: &[Sequence<'_>],
        batch: &MicroBatch,
    ) -> Result<Option<Tensor>, TchError> {
        match &self.models.reference {
            Some(model) if self.config.kl_loss_coef > 0.0 => {
                let known = sequences.iter().all(|s| s.ref_logprobs.len() == s.response_ids.len());
                let logprobs = if known {
                    column(sequences, |s| s.ref_logprobs, self.models.policy.device())?
                } else {
                    self.head.score(model, batch)?.logprobs
                };
                Ok(Some(logprobs))
            }
            _ => Ok(None),
        }
    }

    /// Returns the values that are needed before advantages are estimated: KL divergences for the reward, log-probabilities of the
    /// reference, and values of the critic. A list is empty if the configuration does not need it.
    pub(super) fn infer(self, sequences: &[Sequence<'_>]) -> Result<Vec<Inferred>, TchError> {
        let batch = self.pack(sequences)?;
        let mut reward_kl = None;
        let mut ref_logprobs = None;
        if let Some(reference) = &self.models.reference {
            let reference = self.head.score(reference, &batch)?.logprobs;
            if let Some(estimator) = &self.objective.reward_kl {
                let old = match self.config.old_logprobs {
                    OldLogprobs::Engine => {
                        column(sequences, |s| s.logprobs, self.models.policy.device())?
                    }
                    OldLogprobs::Trainer => self.policy_logprobs(&batch)?,
                };
                reward_kl = Some(tch::no_grad(|| estimator.tokens(&old, &reference))?);
            }
            ref_logprobs = Some(reference).filter(|_| self.config.kl_loss_coef > 0.0);
        }
        let critic = self.models.critic.as_ref();
        let values = critic.map(|critic| critic.values(&batch)).transpose()?;
        let columns = [reward_kl, ref_logprobs, values];
        let [reward_kl, ref_logprobs, values] = columns.map(|column| split(column, sequences));
        let columns = reward_kl?.into_iter().zip(ref_logprobs?).zip(values?);
        Ok(columns
            .map(|((reward_kl, ref_logprobs), values)| Inferred { reward_kl, ref_logprobs, values })
            .collect())
    }

    /// Returns the sequences with their log-probabilities under the current policy, and under the reference if the loss has a KL term.
    pub(super) fn score_at_start(
        self,
        sequences: &[Sequence<'_>],
    ) -> Result<Vec<HeldSequence>, TchError> {
        let batch = self.pack(sequences)?;
        let start = split(Some(self.policy_logprobs(&batch)?), sequences)?;
        let reference = split(self.reference_logprobs(sequences, &batch)?, sequences)?;
        let columns = start.into_iter().zip(reference);
        let held = |(sequence, (start, reference))| HeldSequence::of(sequence, start, reference);
        Ok(sequences.iter().zip(columns).map(held).collect())
    }

    fn policy_logprobs(self, batch: &MicroBatch) -> Result<Tensor, TchError> {
        Ok(self.head.score(&self.models.policy, batch)?.logprobs)
    }

    fn pack(self, sequences: &[Sequence<'_>]) -> Result<MicroBatch, TchError> {
        let pairs: Vec<_> = sequences.iter().map(PromptResponse::of).collect();
        MicroBatch::pack(&pairs, self.models.policy.device())
    }
}

/// Returns `true` if the warm-up of the critic is over, or there is no critic.
fn trains_policy(config: &TrainerConfig, step: Step) -> bool {
    config.critic.is_none_or(|critic| step.0 >= critic.warmup_steps)
}

/// Splits a tensor `[tokens]` into one list per sequence. Returns empty lists if there is no tensor.
fn split(column: Option<Tensor>, sequences: &[Sequence<'_>]) -> Result<Vec<Vec<f32>>, TchError> {
    let Some(column) = column else { return Ok(vec![Vec::new(); sequences.len()]) };
    let values = Vec::<f32>::try_from(column.f_to_kind(Kind::Float)?)?;
    let mut rest = values.as_slice();
    let mut next = |sequence: &Sequence<'_>| {
        let (one, later) = rest.split_at(sequence.response_ids.len());
        rest = later;
        one.to_vec()
    };
    Ok(sequences.iter().map(&mut next).collect())
}
