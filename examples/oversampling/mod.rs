//! A schedule that launches more prompts than a step trains on, and defers the slowest ones to the next step.
//!
//! It receives events and queues decisions. It has no clock, no thread and no channel.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use rollpacker::operators::schedule::{Decision, Event, Queue, Reason, RoundKind};
use rollpacker::prelude::*;
use serde::{Deserialize, Serialize};

/// The state in a snapshot: the part that outlives a round.
#[derive(Serialize, Deserialize)]
struct Saved {
    waiting: BTreeMap<PromptId, Option<Step>>,
}

/// Launches `launched` prompts per step and trains on the first `prompts` complete groups of `responses` responses. The data must have a
/// single epoch.
pub(crate) struct Oversampling {
    prompts: usize,
    launched: usize,
    responses: u32,
    /// The prompts to launch, with the step that deferred them, if any.
    waiting: BTreeMap<PromptId, Option<Step>>,
    /// The steps whose policy is published but whose round is not open yet.
    due: VecDeque<Step>,
    open: Option<OpenRound>,
    /// `true` once all prompts of the dataset were received.
    complete: bool,
    finished: bool,
    decisions: VecDeque<Decision>,
}

struct OpenRound {
    step: Step,
    /// The number of groups still to be admitted.
    open_groups: usize,
    /// The samples that have ended, by launched prompt that is not admitted yet.
    groups: BTreeMap<PromptId, BTreeSet<u32>>,
}

impl Oversampling {
    /// Creates the schedule in its initial state.
    pub(crate) fn new(prompts: usize, launched: usize, responses: u32) -> Self {
        Self {
            prompts,
            launched,
            responses,
            waiting: BTreeMap::new(),
            due: VecDeque::new(),
            open: None,
            complete: false,
            finished: false,
            decisions: VecDeque::new(),
        }
    }

    /// Records a response that ended by itself, and admits its prompt if all its responses have ended.
    fn on_response(&mut self, id: SampleId) {
        let Some(round) = self.open.as_mut().filter(|round| round.step == id.step) else { return };
        let Some(ended) = round.groups.get_mut(&id.prompt) else { return };
        ended.insert(id.sample);
        if ended.len() == self.responses as usize {
            let samples = ended.iter().copied().collect();
            round.groups.remove(&id.prompt);
            round.open_groups -= 1;
            let (weights, reason) = (Vec::new(), Reason::Finished);
            self.decisions.push_back(Decision::Admit {
                prompt: id.prompt,
                samples,
                weights,
                reason,
            });
        }
    }

    /// Aborts the running responses of a full round, defers their prompts, and closes the round.
    fn close(&mut self, OpenRound { step, groups, .. }: OpenRound) {
        let reason = Reason::RoundFull;
        for (&prompt, ended) in &groups {
            let running = (0..self.responses).filter(|sample| !ended.contains(sample));
            let abort = |sample| Decision::Abort { id: SampleId { step, prompt, sample }, reason };
            self.decisions.extend(running.map(abort));
        }
        for prompt in groups.into_keys() {
            self.decisions.push_back(Decision::Defer { prompt, reason });
            self.waiting.insert(prompt, Some(step));
        }
        let deferred: Vec<Step> = self.waiting.values().copied().flatten().collect();
        let age = deferred.iter().map(|since| step.0 - since.0).max().unwrap_or(0);
        let queue = Queue { length: deferred.len(), age };
        self.decisions.push_back(Decision::Close { step, queue });
    }

    /// Launches the prompts with the smallest ids. Deferred prompts have smaller ids than fresh ones.
    fn open(&mut self, step: Step) {
        let taken: Vec<PromptId> = self.waiting.keys().copied().take(self.launched).collect();
        let open_groups = self.prompts.min(taken.len());
        let (round, reason) = (RoundKind::Short, Reason::Fresh);
        self.decisions.push_back(Decision::Open { step, round, reason });
        for &prompt in &taken {
            let deferred = self.waiting.remove(&prompt).flatten();
            let reason = if deferred.is_some() { Reason::Queued } else { Reason::Fresh };
            let samples = 0..self.responses;
            self.decisions.push_back(Decision::Launch { prompt, samples, reason });
        }
        let groups = taken.into_iter().map(|prompt| (prompt, BTreeSet::new())).collect();
        self.open = Some(OpenRound { step, open_groups, groups });
    }

    /// Closes the open round if it is full, and opens the next one if that is possible.
    fn advance(&mut self) {
        if let Some(round) = self.open.take_if(|round| round.open_groups == 0) {
            self.close(round);
        }
        if self.open.is_some() || self.finished || self.wants_prompts() {
            return;
        }
        if self.waiting.is_empty() {
            self.finished = true;
            self.decisions.push_back(Decision::Finish);
        } else if let Some(step) = self.due.pop_front() {
            self.open(step);
        }
    }
}

impl Schedule for Oversampling {
    fn on(&mut self, _now: Nanos, event: Event) {
        match event {
            Event::Prompt(offer) => drop(self.waiting.insert(offer.prompt, None)),
            Event::EndOfPrompts => self.complete = true,
            Event::Policy { step } => self.due.push_back(step),
            // Engines do not abort responses on their own, and this schedule does not wait for the responses that it aborts.
            Event::Response { id, finish_reason, .. } if finish_reason.is_whole() => {
                self.on_response(id);
            }
            Event::Response { .. } | Event::Scored { .. } => {}
        }
        self.advance();
    }

    fn poll(&mut self) -> Option<Decision> {
        self.decisions.pop_front()
    }

    fn wants_prompts(&self) -> bool {
        self.open.is_none() && !self.complete && self.waiting.len() < self.launched
    }

    fn save(&self) -> Option<Vec<u8>> {
        serde_json::to_vec(&Saved { waiting: self.waiting.clone() }).ok()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        let saved: Saved = serde_json::from_slice(saved)?;
        self.waiting = saved.waiting;
        Ok(())
    }
}
