//! The curriculum of a driver: judges prompts before the schedule receives them, and records the outcomes of groups.

use rollpacker_dataflow::fault::{Fault, Origin};
use rollpacker_dataflow::step::{PromptId, Step};
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::train::Metrics;

use super::ScheduleDriver;
use crate::curriculum::{Curriculum, SkippedPrompts};
use crate::schedule::prompt_gate::{GateOutput, PromptGate};
use crate::schedule::{Decision, Event, Reason};

impl ScheduleDriver {
    /// Sets the curriculum that judges prompts before the schedule receives them.
    pub(in crate::schedule) fn with_curriculum(
        self,
        curriculum: Curriculum,
        skipped: SkippedPrompts,
    ) -> Self {
        let driver = Self { gate: Some(PromptGate::new(curriculum)), skipped, ..self };
        driver.publish_skipped();
        driver
    }

    /// Has the curriculum judge prompts until the schedule receives a prompt or the end of the prompts, needs no prompt, or no prompt is
    /// left to judge. Returns `true` if the schedule received an event. An error of the curriculum becomes the failure of the run.
    ///
    /// Prompts are judged only once the policy of a step is delivered. The results of earlier steps that the curriculum uses are then
    /// complete, however early the prompts were read.
    pub(super) fn draw_prompt(&mut self) -> bool {
        while let Some(step) = self.drawing_step()
            && let Some(gate) = &mut self.gate
        {
            let event = match gate.next(step) {
                Ok(None) => return false,
                Ok(Some(GateOutput::Skipped(offer))) => {
                    self.skip(offer.prompt);
                    continue;
                }
                Ok(Some(GateOutput::Drawn(offer))) => Event::Prompt(offer),
                Ok(Some(GateOutput::End)) => Event::EndOfPrompts,
                Err(skipped) => {
                    self.failure = Some(Fault::new("schedule", Origin::User, skipped.to_string()));
                    return false;
                }
            };
            self.deliver(event);
            return true;
        }
        false
    }

    /// Returns the step for which the curriculum judges the next prompt: the first step whose policy was delivered and whose round is not
    /// closed. Returns `None` if there is no such step or no curriculum, or if the schedule needs no prompt or the run has ended.
    fn drawing_step(&self) -> Option<Step> {
        let is_over = self.finished || self.failure.is_some();
        let draws = self.gate.is_some() && !is_over && self.schedule.wants_prompts();
        self.open.keys().next().copied().filter(|_| draws)
    }

    /// Drops a prompt that the curriculum skipped, and lets the reader deliver another prompt.
    pub(super) fn skip(&mut self, prompt: PromptId) {
        if let Some((last, _)) = self.arrived.remove(&prompt) {
            self.prompts.last = Some(last);
        }
        self.release(1);
        self.publish_skipped();
    }

    fn publish_skipped(&self) {
        if let Some(gate) = &self.gate {
            self.skipped.set(gate.curriculum.totals());
        }
    }

    /// Returns `true` if nothing can be decided until another prompt is read.
    pub(super) fn wants_prompts(&self) -> bool {
        let is_judged = |gate: &PromptGate| gate.is_empty() && !self.open.is_empty();
        self.schedule.wants_prompts() && self.gate.as_ref().is_none_or(is_judged)
    }

    /// Informs the curriculum that the open round has opened or closed, has admitted a group, or has rejected a group without reward
    /// variance. When the round closes, the metrics of the curriculum are stored for [`take_metrics`](Self::take_metrics). Does nothing
    /// without a curriculum or an open round.
    pub(super) fn record(&mut self, decision: &Decision) {
        let (Some(gate), Some((step, _))) = (&mut self.gate, self.round) else { return };
        let row_of = |prompt: &PromptId| self.prompts.held[prompt].row.dataset_row();
        let curriculum = &mut gate.curriculum;
        match decision {
            Decision::Open { .. } => curriculum.on_open(step),
            Decision::Admit { prompt, samples, .. } => {
                curriculum.on_admit(step, *prompt, row_of(prompt), samples.clone());
            }
            Decision::Reject { prompt, reason: Reason::ZeroVariance } => {
                curriculum.on_reject(step, *prompt, row_of(prompt));
            }
            Decision::Close { .. } => {
                curriculum.on_close(step);
                let capability = self.open.get(&step).and_then(|open| open.metrics.clone());
                let metrics = curriculum.take_metrics();
                self.unsent_metrics.extend(capability.map(|capability| (capability, metrics)));
            }
            _ => {}
        }
    }

    /// Removes and returns the metrics of the curriculum for the rounds that closed since the last call.
    pub(in crate::schedule) fn take_metrics(&mut self) -> Vec<(Capability<Step>, Metrics)> {
        std::mem::take(&mut self.unsent_metrics)
    }

    /// Returns the last step whose scores must have arrived before the policy of `step` is delivered, because the curriculum judges prompts
    /// by them; `None` if there is none.
    pub(in crate::schedule) fn last_judged_by(&self, step: Step) -> Option<Step> {
        self.gate.as_ref()?.curriculum.last_used(step)
    }
}
