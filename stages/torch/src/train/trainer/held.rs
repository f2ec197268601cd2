//! The responses of a step that is updated by mini-batches.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use rollpacker_stages::train::{PartialError, Sequence};
use tch::{Device, TchError, Tensor};

use crate::train::tally::Unit;

/// The responses of a step, held until its updates.
#[derive(Debug, Default)]
pub(super) struct HeldStep(BTreeMap<Unit, HeldSequence>);

/// An owned copy of a [`Sequence`], with its log-probabilities under the policy at the start of the step.
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
    pub(super) fn add(&mut self, unit: Unit, sequence: HeldSequence) -> Result<(), PartialError> {
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

    /// Divides the step into mini-batches of `prompts` prompts each, in the order of their ids; the last may have fewer. `prompts` must not
    /// be 0.
    pub(super) fn mini_batches(&self, prompts: usize) -> Vec<Vec<Sequence<'_>>> {
        let all: Vec<_> = self.0.iter().map(|(unit, held)| held.as_sequence(*unit)).collect();
        let groups: Vec<_> = all.chunk_by(|a, b| a.prompt == b.prompt).collect();
        groups.chunks(prompts).map(<[&[Sequence<'_>]]>::concat).collect()
    }

    /// Returns the log-probabilities of `sequences` of this step under the policy at the start of the step, in nats; `[response tokens]`.
    pub(super) fn start_logprobs(
        &self,
        sequences: &[Sequence<'_>],
        device: Device,
    ) -> Result<Tensor, TchError> {
        let held = |sequence: &Sequence<'_>| self.0.get(&Unit::of(sequence));
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

    pub(super) fn is_finite(&self) -> bool {
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
