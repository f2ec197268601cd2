//! Several updates per step.
//!
//! The second update needs the weights of the first, so gradients cannot be accumulated while the round still runs. What can be computed
//! then is everything that depends on the policy at the start of the step: the log-probabilities against which ratios are computed, and
//! those of the reference.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::config::MiniBatches;
use rollpacker_stages::train::{PartialError, Sequence, TrainError};
use tch::{Device, TchError, Tensor};

use super::{TorchTrainer, unit};
use crate::train::tally::Unit;

/// The responses of a step, held until its updates.
#[derive(Debug, Default)]
pub(super) struct HeldStep(BTreeMap<Unit, HeldSequence>);

/// A [`Sequence`] with its data, and with its log-probabilities under the policy at the start of the step.
#[derive(Debug)]
pub(super) struct HeldSequence {
    prompt_ids: Vec<i32>,
    response_ids: Vec<i32>,
    logprobs: Vec<f32>,
    advantages: Vec<f32>,
    weight: f32,
    ref_logprobs: Vec<f32>,
    values: Vec<f32>,
    returns: Vec<f32>,
    start_logprobs: Vec<f32>,
}

impl HeldStep {
    fn add(&mut self, unit: Unit, sequence: HeldSequence) -> Result<(), PartialError> {
        match self.0.entry(unit) {
            Entry::Vacant(entry) => {
                entry.insert(sequence);
                Ok(())
            }
            Entry::Occupied(_) => {
                Err(PartialError::Repeated { prompt: unit.prompt, sample: unit.sample })
            }
        }
    }

    /// Divides the step into mini-batches of `prompts` prompts each; the last may have fewer.
    fn mini_batches(&self, prompts: usize) -> Vec<Vec<Sequence<'_>>> {
        let all: Vec<_> = self.0.iter().map(|(unit, held)| held.as_sequence(*unit)).collect();
        let groups: Vec<_> = all.chunk_by(|a, b| a.prompt == b.prompt).collect();
        groups.chunks(prompts).map(<[&[Sequence<'_>]]>::concat).collect()
    }

    /// Returns the log-probabilities of `sequences` of this step under the policy at its start, in nats; `[response tokens]`.
    pub(super) fn start_logprobs(
        &self,
        sequences: &[Sequence<'_>],
        device: Device,
    ) -> Result<Tensor, TchError> {
        let held = |sequence: &Sequence<'_>| self.0.get(&unit(sequence));
        let values: Vec<f32> = sequences
            .iter()
            .filter_map(held)
            .flat_map(|held| &held.start_logprobs)
            .copied()
            .collect();
        Tensor::f_from_slice(&values)?.f_to_device(device)
    }
}

impl HeldSequence {
    pub(super) fn of(
        sequence: &Sequence<'_>,
        start_logprobs: Vec<f32>,
        ref_logprobs: Vec<f32>,
    ) -> Self {
        Self {
            prompt_ids: sequence.prompt_ids.to_vec(),
            response_ids: sequence.response_ids.to_vec(),
            logprobs: sequence.logprobs.to_vec(),
            advantages: sequence.advantages.to_vec(),
            weight: sequence.weight,
            ref_logprobs,
            values: sequence.values.to_vec(),
            returns: sequence.returns.to_vec(),
            start_logprobs,
        }
    }

    fn is_finite(&self) -> bool {
        self.start_logprobs.iter().all(|logprob| logprob.is_finite())
    }

    fn as_sequence(&self, unit: Unit) -> Sequence<'_> {
        Sequence {
            prompt: unit.prompt,
            sample: unit.sample,
            prompt_ids: &self.prompt_ids,
            response_length: self.response_ids.len() as u32,
            response_ids: &self.response_ids,
            logprobs: &self.logprobs,
            advantages: &self.advantages,
            weight: self.weight,
            ref_logprobs: &self.ref_logprobs,
            values: &self.values,
            returns: &self.returns,
        }
    }
}

impl TorchTrainer {
    /// Holds sequences until the update of their step. Responses without tokens carry no loss and are dropped.
    pub(super) fn hold(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<(), TrainError> {
        let pulse = self.pulse.clone();
        let held = self.on_threads(self.micro_batches(sequences), |pass, (_, sequences)| {
            pulse.record();
            let held = pass
                .score_at_start(&sequences)
                .map_err(TrainError::backend("scoring responses"))?;
            if held.iter().all(HeldSequence::is_finite) {
                return Ok(sequences.iter().map(unit).zip(held).collect::<Vec<_>>());
            }
            Err(TrainError::NotFinite { step, quantity: "log-probability" })
        })?;
        let mut held = held.into_iter().flatten();
        Ok(held.try_for_each(|(unit, sequence)| self.held.add(unit, sequence))?)
    }

    /// Trains on the responses of the step: one update per mini-batch, `epochs` times over the step.
    pub(super) fn update_by_mini_batches(
        &mut self,
        step: Step,
        MiniBatches { prompts, epochs }: MiniBatches,
    ) -> Result<(), TrainError> {
        let held = std::mem::take(&mut self.held);
        for _ in 0..epochs {
            for sequences in held.mini_batches(prompts) {
                self.accumulate_all(&sequences, step, Some(&held))?;
                self.apply(step)?;
            }
        }
        Ok(())
    }
}
