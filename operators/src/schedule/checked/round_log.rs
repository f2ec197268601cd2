//! The facts about a run by which the decisions of a schedule are judged.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::FinishReason;

use super::Violation;
use crate::schedule::{Decision, Event, Schedule};

/// The state of a response of the open round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SampleState {
    /// The response was launched, and its end is not reported yet.
    Running,
    /// The schedule decided to abort the response, and its end is not reported yet.
    Aborted,
    /// The schedule decided to pause the response, and its end is not reported yet.
    Paused,
    /// The response ended by itself. `is_scored` is `true` once its reward was reported.
    Whole { is_scored: bool },
    /// The response ended after the schedule aborted it, or with another reason than `stop` or `length`.
    Dropped,
}

impl SampleState {
    /// Returns `true` if another event will concern the response.
    fn expects_event(self, wants_scores: bool) -> bool {
        match self {
            Self::Running | Self::Aborted | Self::Paused => true,
            Self::Whole { is_scored } => wants_scores && !is_scored,
            Self::Dropped => false,
        }
    }
}

#[derive(Debug, Default)]
struct CheckedPrompt {
    samples: BTreeMap<u32, SampleState>,
    is_decided: bool,
}

#[derive(Debug)]
struct CheckedRound {
    step: Step,
    prompts: BTreeMap<PromptId, CheckedPrompt>,
    /// The number of responses for which another event follows. Kept as a counter, because it is read after every event.
    expected: usize,
}

/// The facts about a run against which decisions are checked. A prompt is removed when it is admitted or rejected. A round is removed when
/// it closes.
#[derive(Debug)]
pub(super) struct RoundLog {
    wants_scores: bool,
    pauses: bool,
    /// Prompts that were offered and neither admitted nor rejected, each with `true` if a round has launched it.
    held: BTreeMap<PromptId, bool>,
    has_all_prompts: bool,
    /// Steps whose policy is published and whose round has not opened.
    published: BTreeSet<Step>,
    /// The step of the last round that opened.
    last: Option<Step>,
    open: Option<CheckedRound>,
    is_finished: bool,
}

impl RoundLog {
    pub(super) fn new(schedule: &dyn Schedule, held: BTreeMap<PromptId, bool>) -> Self {
        Self {
            wants_scores: schedule.wants_scores(),
            pauses: schedule.pauses(),
            held,
            has_all_prompts: false,
            published: BTreeSet::new(),
            last: None,
            open: None,
            is_finished: false,
        }
    }

    pub(super) fn on(&mut self, event: &Event) {
        match event {
            Event::Prompt(offer) => drop(self.held.insert(offer.prompt, false)),
            Event::EndOfPrompts => self.has_all_prompts = true,
            Event::Policy { step } => drop(self.published.insert(*step)),
            Event::Response { id, finish_reason, .. } => self.on_response(*id, *finish_reason),
            Event::Scored { id, .. } => {
                if let Some(SampleState::Whole { is_scored: false }) = self.sample(*id) {
                    self.replace(*id, SampleState::Whole { is_scored: true });
                }
            }
        }
    }

    fn on_response(&mut self, id: SampleId, reason: FinishReason) {
        if let Some(sample) = self.sample(id) {
            let is_kept = *sample != SampleState::Aborted && reason.is_whole();
            let ended = if is_kept {
                SampleState::Whole { is_scored: false }
            } else {
                SampleState::Dropped
            };
            self.replace(id, ended);
        }
    }

    /// Replaces the state of a response of the open round after an event.
    fn replace(&mut self, id: SampleId, state: SampleState) {
        let wants_scores = self.wants_scores;
        let Some(sample) = self.sample(id) else { return };
        let before = std::mem::replace(sample, state);
        let counted = |state: SampleState| usize::from(state.expects_event(wants_scores));
        if let Some(open) = &mut self.open {
            open.expected = open.expected + counted(state) - counted(before);
        }
    }

    /// Returns the state of a response; `None` if the open round did not launch it.
    fn sample(&mut self, id: SampleId) -> Option<&mut SampleState> {
        let open = self.open.as_mut().filter(|open| open.step == id.step)?;
        open.prompts.get_mut(&id.prompt)?.samples.get_mut(&id.sample)
    }

    /// Checks a decision other than [`Decision::Finish`], which [`finish`](Self::finish) checks.
    pub(super) fn decide(&mut self, decision: &Decision) -> Result<(), Violation> {
        self.check_running(decision)?;
        match decision {
            Decision::Open { step, .. } => self.open(*step),
            Decision::Launch { prompt, samples, .. } => {
                self.launch(decision, *prompt, samples.clone())
            }
            Decision::Abort { id, .. } => self.abort(decision, *id),
            Decision::Pause { id, .. } => self.pause(decision, *id),
            Decision::Admit { prompt, samples, weights, .. } => {
                self.admit(decision, *prompt, samples, weights)
            }
            Decision::Defer { prompt, .. } => self.settle(decision, *prompt).map(drop),
            Decision::Reject { prompt, .. } => self.reject(decision, *prompt),
            Decision::Close { step, .. } => self.close(decision, *step),
            Decision::Finish | Decision::Fail { .. } => Ok(()),
        }
    }

    fn open(&mut self, step: Step) -> Result<(), Violation> {
        if let Some(open) = &self.open {
            return Err(Violation::SecondRound { step, open: open.step });
        }
        if !self.published.remove(&step) || self.last.is_some_and(|last| step <= last) {
            return Err(Violation::NoPolicy { step });
        }
        self.last = Some(step);
        self.open = Some(CheckedRound { step, prompts: BTreeMap::new(), expected: 0 });
        Ok(())
    }

    fn launch(
        &mut self,
        decision: &Decision,
        prompt: PromptId,
        samples: Range<u32>,
    ) -> Result<(), Violation> {
        let open = self.open.as_mut().ok_or_else(|| not_open(decision))?;
        let launched_before =
            self.held.get_mut(&prompt).ok_or_else(|| unknown(decision, prompt))?;
        *launched_before = true;
        let launched = open.prompts.entry(prompt).or_default();
        if launched.is_decided {
            return Err(Violation::DecidedTwice { decision: decision.to_string(), prompt });
        }
        if samples.is_empty() {
            return Err(Violation::NoSamples { prompt, samples });
        }
        for sample in samples {
            if launched.samples.insert(sample, SampleState::Running).is_some() {
                let id = SampleId { step: open.step, prompt, sample };
                return Err(Violation::LaunchedTwice { id });
            }
            open.expected += 1;
        }
        Ok(())
    }

    fn abort(&mut self, decision: &Decision, id: SampleId) -> Result<(), Violation> {
        self.check_open(decision, id.step)?;
        match self.sample(id) {
            Some(sample @ SampleState::Running) => {
                *sample = SampleState::Aborted;
                Ok(())
            }
            _ => Err(Violation::NotRunning { id }),
        }
    }

    /// Records a pause. A response that has already ended may be paused, too: it is then kept whole for a later round.
    fn pause(&mut self, decision: &Decision, id: SampleId) -> Result<(), Violation> {
        self.check_open(decision, id.step)?;
        if !self.pauses {
            return Err(Violation::Pause { id });
        }
        match self.sample(id) {
            Some(sample @ SampleState::Running) => {
                *sample = SampleState::Paused;
                Ok(())
            }
            Some(SampleState::Whole { .. }) => Ok(()),
            _ => Err(Violation::NotRunning { id }),
        }
    }

    fn admit(
        &mut self,
        decision: &Decision,
        prompt: PromptId,
        samples: &[u32],
        weights: &[f32],
    ) -> Result<(), Violation> {
        let step = self.open.as_ref().map(|open| open.step).ok_or_else(|| not_open(decision))?;
        let launched = self.settle(decision, prompt)?;
        let is_whole =
            |sample: &u32| matches!(launched.samples.get(sample), Some(SampleState::Whole { .. }));
        if let Some(&sample) = samples.iter().find(|sample| !is_whole(sample)) {
            return Err(Violation::NotWhole { id: SampleId { step, prompt, sample } });
        }
        let has_weights = weights.is_empty() || weights.len() == samples.len();
        let is_finite = weights.iter().all(|weight| weight.is_finite() && *weight >= 0.0);
        let ascends = samples.windows(2).all(|pair| pair[0] < pair[1]);
        if samples.is_empty() || !ascends || !has_weights || !is_finite {
            return Err(Violation::Group { prompt });
        }
        self.held.remove(&prompt);
        Ok(())
    }

    fn reject(&mut self, decision: &Decision, prompt: PromptId) -> Result<(), Violation> {
        let is_launched = self.open.as_ref().is_some_and(|open| open.prompts.contains_key(&prompt));
        if is_launched {
            self.settle(decision, prompt)?;
        }
        self.held.remove(&prompt).map(drop).ok_or_else(|| unknown(decision, prompt))
    }

    /// Marks a prompt of the open round as decided.
    fn settle(
        &mut self,
        decision: &Decision,
        prompt: PromptId,
    ) -> Result<&CheckedPrompt, Violation> {
        let open = self.open.as_mut().ok_or_else(|| not_open(decision))?;
        if !self.held.contains_key(&prompt) {
            return Err(unknown(decision, prompt));
        }
        let Some(launched) = open.prompts.get_mut(&prompt) else {
            return Err(Violation::NotLaunched { decision: decision.to_string(), prompt });
        };
        if std::mem::replace(&mut launched.is_decided, true) {
            return Err(Violation::DecidedTwice { decision: decision.to_string(), prompt });
        }
        Ok(launched)
    }

    fn close(&mut self, decision: &Decision, step: Step) -> Result<(), Violation> {
        self.check_open(decision, step)?;
        let Some(open) = self.open.take() else { return Ok(()) };
        for (prompt, launched) in open.prompts {
            if !launched.is_decided {
                return Err(Violation::Undecided { step, prompt });
            }
            let is_in_flight =
                |state: &SampleState| matches!(state, SampleState::Running | SampleState::Paused);
            let left = launched.samples.into_iter().find(|(_, state)| is_in_flight(state));
            if let Some((sample, _)) = left {
                return Err(Violation::InFlight { id: SampleId { step, prompt, sample } });
            }
        }
        Ok(())
    }

    /// Records that the schedule finished. Prompts that were never launched may remain, because the run may have reached its last step.
    pub(super) fn finish(&mut self, is_out_of_steps: bool) -> Result<(), Violation> {
        self.check_running(&Decision::Finish)?;
        if let Some(open) = &self.open {
            return Err(Violation::OpenAtFinish { step: open.step });
        }
        self.is_finished = true;
        // A resumed run without a step left opens no round. The snapshot keeps the deferred prompts.
        if self.last.is_none() && is_out_of_steps {
            return Ok(());
        }
        let lost = self.held.iter().find(|(_, launched)| **launched);
        lost.map_or(Ok(()), |(&prompt, _)| Err(Violation::Lost { prompt }))
    }

    fn check_running(&self, decision: &Decision) -> Result<(), Violation> {
        let after_finish = || Violation::AfterFinish { decision: decision.to_string() };
        if self.is_finished { Err(after_finish()) } else { Ok(()) }
    }

    fn check_open(&self, decision: &Decision, step: Step) -> Result<(), Violation> {
        let is_open = self.open.as_ref().is_some_and(|open| open.step == step);
        if is_open { Ok(()) } else { Err(not_open(decision)) }
    }

    /// Returns the violation of a schedule that has no decision although its open round expects no further event. A schedule that
    /// `wants_prompts` may wait until it has received all prompts.
    pub(super) fn stall(&self, wants_prompts: bool) -> Option<Violation> {
        let open = self.open.as_ref().filter(|_| !wants_prompts || self.has_all_prompts)?;
        (open.expected == 0).then_some(Violation::NeverCloses { step: open.step })
    }
}

fn not_open(decision: &Decision) -> Violation {
    Violation::NotOpen { decision: decision.to_string() }
}

fn unknown(decision: &Decision, prompt: PromptId) -> Violation {
    Violation::UnknownPrompt { decision: decision.to_string(), prompt }
}
