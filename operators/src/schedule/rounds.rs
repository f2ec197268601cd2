//! The rounds of a run: which are due, which one is open, and the decisions taken.

use std::collections::{BTreeSet, VecDeque};

use rollpacker_dataflow::step::{SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, PlannedPrompt};
use super::round::{OpenRound, Vacancy};
use super::{Decision, Queue, RoundKind};

/// The next action of a schedule between two rounds, assuming that the policy of the next round is published, or its action for a rejected
/// prompt.
#[derive(Clone, Debug, PartialEq)]
pub enum NextAction<T> {
    /// Wait: the action depends on further prompts.
    Prompts,
    /// Open a round, or launch a prompt as a replacement.
    Round(T),
    /// Finish: no round follows, or no prompt is left as a replacement.
    Finish,
}

impl<T> NextAction<T> {
    /// Applies `f` to the value of [`Round`](Self::Round). Other actions stay the same.
    #[must_use]
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> NextAction<U> {
        match self {
            Self::Prompts => NextAction::Prompts,
            Self::Round(round) => NextAction::Round(f(round)),
            Self::Finish => NextAction::Finish,
        }
    }
}

/// The rounds of a run. At most one round is open at a time, and rounds open in the order of their steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rounds {
    total_steps: Option<u64>,
    /// The step after the step of the last opened round, or 0 before the first round.
    next: Step,
    /// Steps whose policy is published and whose round is not open yet.
    due: BTreeSet<Step>,
    open: Option<OpenRound>,
    out: VecDeque<Decision>,
    finished: bool,
}

impl Rounds {
    /// Creates the rounds of a run that ends before step `total_steps`, or that has no last step if `None`. No round is open.
    #[must_use]
    pub fn new(total_steps: Option<u64>) -> Self {
        Self {
            total_steps,
            next: Step(0),
            due: BTreeSet::new(),
            open: None,
            out: VecDeque::new(),
            finished: false,
        }
    }

    /// Continues restored rounds with the number of steps of `fresh`, which may differ. Clears the finished state, the due steps and the
    /// undrained decisions of the earlier run.
    pub(super) fn reopen(&mut self, fresh: &Self) {
        self.total_steps = fresh.total_steps;
        self.finished = false;
        self.due.clear();
        self.out.clear();
    }

    /// Returns the step of the round that opens next.
    #[must_use]
    pub fn upcoming(&self) -> Step {
        self.due.first().copied().unwrap_or(self.next)
    }

    /// Returns the number of rounds that the run has left, including the upcoming round; `u64::MAX` if the run has no last step.
    #[must_use]
    pub fn remaining(&self) -> u64 {
        self.total_steps.map_or(u64::MAX, |total| total.saturating_sub(self.upcoming().0))
    }

    /// Returns `true` if a policy waits for its round.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Returns `true` if no round is open and another round may follow.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && !self.finished
    }

    /// Returns `true` if the round of `step` is open and has a prompt.
    pub(super) fn has_opened(&self, step: Step) -> bool {
        self.open.as_ref().is_some_and(|open| open.step() == step && !open.is_empty())
    }

    /// Returns `true` if no round follows, so that events no longer have an effect.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Records that the policy of `step` is published. Ignores a step that is not after the last opened round.
    pub(super) fn on_policy(&mut self, step: Step) {
        if step >= self.next {
            self.due.insert(step);
        }
    }

    /// Passes the end of a response to the open round, if there is one.
    pub(super) fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        if let Some(open) = &mut self.open {
            open.on_response(id, tokens, reason, &mut self.out);
        }
    }

    /// Passes a reward to the open round, if there is one.
    pub(super) fn on_score(&mut self, id: SampleId, score: f64) {
        if let Some(open) = &mut self.open {
            open.on_score(id, score, &mut self.out);
        }
    }

    /// Returns the kind of the open round; `None` if no round is open.
    #[must_use]
    pub fn kind(&self) -> Option<RoundKind> {
        self.open.as_ref().map(OpenRound::kind)
    }

    /// Returns a prompt of the open round that was rejected and may be replaced; `None` if there is none, or if the run has failed.
    pub(super) fn vacancy(&self) -> Option<Vacancy> {
        self.open.as_ref().filter(|_| !self.finished)?.vacancy()
    }

    /// Launches `planned` in place of a rejected prompt of the open round.
    pub(super) fn replace(&mut self, planned: PlannedPrompt) {
        if let Some(open) = &mut self.open {
            open.replace(planned, &mut self.out);
        }
    }

    /// Leaves a rejected prompt of `lane` in the open round without replacement.
    pub(super) fn skip_replacement(&mut self, lane: &str) {
        if let Some(open) = &mut self.open {
            open.skip_replacement(lane, &mut self.out);
        }
    }

    /// Returns the step of the open round; `None` if no round is open.
    #[must_use]
    pub fn open_step(&self) -> Option<Step> {
        self.open.as_ref().map(OpenRound::step)
    }

    /// Returns the epoch of the open round; `None` if no round is open.
    #[must_use]
    pub fn open_epoch(&self) -> Option<u32> {
        self.open.as_ref().map(OpenRound::epoch)
    }

    /// Returns the decisions that were not drained yet.
    pub(super) fn decided(&mut self) -> impl Iterator<Item = &mut Decision> {
        self.out.iter_mut()
    }

    /// Opens the upcoming round, and launches the requests of `plan` as far as slots are free. Call this once in
    /// [`RoundPolicy::open`](super::round_policy::RoundPolicy::open).
    pub fn open(&mut self, plan: Plan) {
        let step = self.upcoming();
        self.due.remove(&step);
        self.next = step.next();
        self.open = Some(OpenRound::open(step, plan, &mut self.out));
    }

    /// Removes and returns the open round if it admits no further group and all its paused responses have ended. Otherwise, and if no round
    /// is open, returns `None`. The caller must keep the [undecided prompts](OpenRound::into_undecided) for later rounds, and close the
    /// round.
    pub(super) fn take_decided(&mut self) -> Option<OpenRound> {
        self.open.take_if(|open| open.is_decided())
    }

    /// Decides that the round of `step` closes. `queue` describes the deferred prompts that the schedule holds for later rounds.
    pub fn close(&mut self, step: Step, queue: Queue) {
        self.out.push_back(Decision::Close { step, queue });
    }

    /// Decides that no round follows.
    pub(super) fn finish(&mut self) {
        self.finished = true;
        self.out.push_back(Decision::Finish);
    }

    /// Decides that the run ends with `failure`, a [`Decision::Fail`].
    pub(super) fn fail(&mut self, failure: Decision) {
        self.finished = true;
        self.out.push_back(failure);
    }

    /// Appends a decision that the open round does not take itself, such as a deferral or a rejection between rounds.
    pub fn decide(&mut self, decision: Decision) {
        self.out.push_back(decision);
    }

    pub(super) fn poll(&mut self) -> Option<Decision> {
        self.out.pop_front()
    }
}

/// Returns `rounds * quota`, saturating.
pub(super) fn times(rounds: u64, quota: usize) -> usize {
    usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(quota)
}
