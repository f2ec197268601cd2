//! The inputs of a driver as events of its schedule: prompts, notices, responses and scores.

use arrow_array::types::{Float64Type, UInt32Type, UInt64Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::fault::{Fault, Origin};
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};

use super::ScheduleDriver;
use crate::schedule::snapshot::LastPrompt;
use crate::schedule::{Event, Offer};
use crate::wire::finish_reason::finish_reason;
use crate::wire::notice;
use crate::wire::rows::{Row, ids};

impl ScheduleDriver {
    pub(in crate::schedule) fn on_prompts(&mut self, batch: &Batch) {
        // Drop late prompts: the schedule has finished. A run that resumes from here reads them again.
        if self.finished {
            return;
        }
        let (ids, epochs, rows) = (
            batch.values::<UInt64Type>(column::PROMPT_ID),
            batch.values::<UInt32Type>(column::EPOCH),
            batch.values::<UInt64Type>(column::ROW),
        );
        for row in Row::all(batch) {
            let prompt = PromptId(ids.value(row.index));
            if let Some(before) = self.read.replace(prompt).filter(|before| prompt <= *before) {
                let message = format!(
                    "the source of the prompts emits this prompt after {before}: expected ascending ids, which count all prompts of a run"
                );
                let fault = Fault::new("schedule", Origin::User, message);
                self.failure.get_or_insert(Fault { prompt: Some(prompt), ..fault });
                return;
            }
            let last =
                LastPrompt { prompt, epoch: epochs.value(row.index), row: rows.value(row.index) };
            // On resume, a reader that starts over delivers prompts that the schedule has already received.
            if self.prompts.last.is_some_and(|last| prompt <= last.prompt) {
                self.budget.release(1);
                continue;
            }
            let domain = row.text(column::DOMAIN).unwrap_or_default().into();
            self.arrived.insert(prompt, (last, row));
            let LastPrompt { epoch, row, .. } = last;
            self.enqueue(Event::Prompt(Offer { prompt, epoch, row, domain }));
        }
    }

    /// Reports the end of prompts, unless the schedule has finished. A reader that stops because the run ends has not reached the end of
    /// its prompts: a run that resumes from here reads further.
    pub(in crate::schedule) fn on_end_of_prompts(&mut self) {
        if !self.ended && !self.finished && self.failure.is_none() {
            self.ended = true;
            self.enqueue(Event::EndOfPrompts);
        }
    }

    pub(in crate::schedule) fn on_notice(&mut self, batch: &Batch) {
        if let Some(sequencer) = &mut self.sequencer {
            sequencer.on_notice(notice::read(batch));
        }
    }

    /// Reports ended responses to the schedule. In lockstep they arrive as notices instead.
    pub(in crate::schedule) fn on_responses(&mut self, step: Step, batch: &Batch) {
        if self.sequencer.is_some() {
            return;
        }
        let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH);
        let reasons = batch.text(column::FINISH_REASON);
        for (row, id) in sample_ids(step, batch).enumerate() {
            let finish_reason = finish_reason(reasons.value(row));
            self.enqueue(Event::Response { id, tokens: tokens.value(row), finish_reason });
            if let Some(score) = self.scores.as_mut().and_then(|scores| scores.on_end(id)) {
                self.enqueue(Event::Scored { id, score });
            }
        }
    }

    pub(in crate::schedule) fn on_scores(&mut self, step: Step, batch: &Batch) {
        let wants_scores = self.schedule.wants_scores();
        if !wants_scores && self.gate.is_none() {
            return;
        }
        let scores = batch.values::<Float64Type>(column::SCORE);
        for (row, id) in sample_ids(step, batch).enumerate() {
            let score = scores.value(row);
            // If the schedule wants scores, the curriculum receives them with it, in the same order in every run.
            if let Some(gate) = self.gate.as_mut().filter(|_| !wants_scores) {
                gate.curriculum.on_score(id, score);
                continue;
            }
            let ready = match &mut self.scores {
                Some(scores) => scores.on_score(id, score),
                None => Some(score),
            };
            if let Some(score) = ready {
                self.enqueue(Event::Scored { id, score });
            }
        }
    }
}

fn sample_ids(step: Step, batch: &Batch) -> impl Iterator<Item = SampleId> {
    let id = move |(prompt, sample)| SampleId { step, prompt: PromptId(prompt), sample };
    ids(batch).map(id)
}
