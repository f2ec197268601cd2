//! Several updates per step.
//!
//! The second update needs the weights of the first, so gradients cannot be accumulated while the round still runs. Meanwhile, the trainer
//! computes only the values that do not change between the updates. These are the log-probabilities under the reference, and under the
//! policy at the start of the step. Ratios are computed against the latter.

use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::config::MiniBatches;
use rollpacker_stages::train::{Sequence, TrainError};

use super::TorchTrainer;
use super::held::HeldSequence;
use crate::train::tally::Unit;

impl TorchTrainer {
    /// Holds sequences until the update of their step. Responses without tokens carry no loss and are dropped.
    pub(super) fn hold(
        &mut self,
        step: Step,
        sequences: &[Sequence<'_>],
    ) -> Result<(), TrainError> {
        let progress = self.progress.clone();
        let held = self.on_threads(self.micro_batches(sequences), |pass, (_, sequences)| {
            progress.record();
            let held = pass
                .score_at_start(&sequences)
                .map_err(TrainError::backend("scoring responses"))?;
            if held.iter().all(HeldSequence::is_finite) {
                return Ok(sequences.iter().map(Unit::of).zip(held).collect::<Vec<_>>());
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
