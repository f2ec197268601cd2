//! The gate between the prompt reader and a schedule: holds prompts until the schedule needs one, and has the curriculum judge the prompts
//! one at a time.

use std::collections::VecDeque;

use rollpacker_dataflow::step::Step;

use super::Offer;
use crate::curriculum::{Curriculum, SkippedEpoch};

/// An output of the gate: a judged prompt, or the end of the prompts.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum GateOutput {
    /// The schedule receives the prompt.
    Drawn(Offer),
    Skipped(Offer),
    /// No further prompt follows.
    End,
}

/// The curriculum, and the prompts that were read and not judged. Snapshots do not contain these prompts: a resumed run reads them again.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PromptGate {
    pub(super) curriculum: Curriculum,
    waiting: VecDeque<Offer>,
    ended: bool,
    end_delivered: bool,
    failed: bool,
}

impl PromptGate {
    pub(super) fn new(curriculum: Curriculum) -> Self {
        Self {
            curriculum,
            waiting: VecDeque::new(),
            ended: false,
            end_delivered: false,
            failed: false,
        }
    }

    pub(super) fn hold(&mut self, offer: Offer) {
        self.waiting.push_back(offer);
    }

    /// Records that no further prompt will be read.
    pub(super) fn end(&mut self) {
        self.ended = true;
    }

    /// Returns `true` if [`next`](Self::next) has nothing to return until a prompt is read, or until the reader reports the end of the
    /// prompts.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty() && (!self.ended || self.end_delivered)
    }

    /// Judges the next prompt for a round of `step`, or returns the end of the prompts. Returns `None` if there is nothing to return yet,
    /// or if an earlier call failed. Returns an error if the curriculum skipped too many whole epochs.
    pub(super) fn next(&mut self, step: Step) -> Result<Option<GateOutput>, SkippedEpoch> {
        if self.failed {
            return Ok(None);
        }
        let next = self.judge(step);
        self.failed = next.is_err();
        next
    }

    fn judge(&mut self, step: Step) -> Result<Option<GateOutput>, SkippedEpoch> {
        let Some(offer) = self.waiting.pop_front() else { return self.next_end() };
        let judgement = self.curriculum.judge(step, offer.epoch, offer.row)?;
        let output = if judgement.is_drawn() { GateOutput::Drawn } else { GateOutput::Skipped };
        Ok(Some(output(offer)))
    }

    fn next_end(&mut self) -> Result<Option<GateOutput>, SkippedEpoch> {
        if self.is_empty() {
            return Ok(None);
        }
        self.end_delivered = true;
        self.curriculum.end_of_epoch()?;
        Ok(Some(GateOutput::End))
    }
}
