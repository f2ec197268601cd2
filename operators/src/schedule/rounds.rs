//! The rounds of a run: which are due, which one is open, what was decided.

use std::collections::{BTreeSet, VecDeque};

use rollpacker_dataflow::step::{SampleId, Step};
use rollpacker_stages::rollout::FinishReason;
use serde::{Deserialize, Serialize};

use super::plan::{Plan, Planned};
use super::round::{OpenRound, Vacancy};
use super::{Decision, Queue, Round};

/// What a schedule would do next, were its policy published.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Next<T> {
    /// It cannot say without further prompts.
    Prompts,
    /// A round.
    Round(T),
    /// Nothing, ever.
    Finish,
}

impl<T> Next<T> {
    /// The same about something else.
    pub(super) fn map<U>(self, f: impl FnOnce(T) -> U) -> Next<U> {
        match self {
            Self::Prompts => Next::Prompts,
            Self::Round(round) => Next::Round(f(round)),
            Self::Finish => Next::Finish,
        }
    }
}

/// The rounds of a run, open one at a time, in the order of their steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rounds {
    total_steps: Option<u64>,
    /// The step after the last that was opened.
    next: Step,
    /// Steps whose policy is published and whose round is not open yet.
    due: BTreeSet<Step>,
    open: Option<OpenRound>,
    out: VecDeque<Decision>,
    finished: bool,
}

impl Rounds {
    /// No round so far, and none at `total_steps` or later.
    pub(super) fn new(total_steps: Option<u64>) -> Self {
        Self {
            total_steps,
            next: Step(0),
            due: BTreeSet::new(),
            open: None,
            out: VecDeque::new(),
            finished: false,
        }
    }

    /// Goes on as part of the run of `anew`, which may be longer: that the run before had ended does not count.
    pub(super) fn reopen(&mut self, anew: &Self) {
        self.total_steps = anew.total_steps;
        self.finished = false;
        self.due.clear();
        self.out.clear();
    }

    /// The step of the round that opens next.
    pub(super) fn upcoming(&self) -> Step {
        self.due.first().copied().unwrap_or(self.next)
    }

    /// Rounds that the run still has, the upcoming one included.
    pub(super) fn left(&self) -> u64 {
        self.total_steps.map_or(u64::MAX, |total| total.saturating_sub(self.upcoming().0))
    }

    /// Whether a policy waits for its round.
    pub(super) fn is_due(&self) -> bool {
        !self.due.is_empty()
    }

    /// Whether no round is open and one may still come.
    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none() && !self.finished
    }

    /// Whether no round will follow, so that nothing told matters any more.
    pub(super) fn is_finished(&self) -> bool {
        self.finished
    }

    /// Takes in that the policy of `step` is published.
    pub(super) fn on_policy(&mut self, step: Step) {
        if step >= self.next {
            self.due.insert(step);
        }
    }

    /// Takes in that a response ended.
    pub(super) fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        if let Some(open) = &mut self.open {
            open.on_response(id, tokens, reason, &mut self.out);
        }
    }

    /// Takes in a reward.
    pub(super) fn on_score(&mut self, id: SampleId, score: f64) {
        if let Some(open) = &mut self.open {
            open.on_score(id, score, &mut self.out);
        }
    }

    /// What kind the open round is.
    pub(super) fn kind(&self) -> Option<Round> {
        self.open.as_ref().map(OpenRound::kind)
    }

    /// A prompt of the open round that was rejected and may be replaced.
    pub(super) fn vacancy(&self) -> Option<Vacancy> {
        self.open.as_ref().filter(|_| !self.finished)?.vacancy()
    }

    /// Replaces a rejected prompt of the open round.
    pub(super) fn replace(&mut self, planned: Planned) {
        if let Some(open) = &mut self.open {
            open.replace(planned, &mut self.out);
        }
    }

    /// Does not replace a rejected prompt of the open round.
    pub(super) fn give_up(&mut self, lane: &str) {
        if let Some(open) = &mut self.open {
            open.give_up(lane, &mut self.out);
        }
    }

    /// The step of the round that is open.
    pub(super) fn open_step(&self) -> Option<Step> {
        self.open.as_ref().map(OpenRound::step)
    }

    /// The epoch of the round that is open.
    pub(super) fn open_epoch(&self) -> Option<u32> {
        self.open.as_ref().map(OpenRound::epoch)
    }

    /// What was decided and not drained yet.
    pub(super) fn decided(&mut self) -> impl Iterator<Item = &mut Decision> {
        self.out.iter_mut()
    }

    /// Opens the upcoming round.
    pub(super) fn open(&mut self, plan: Plan) {
        let step = self.upcoming();
        self.due.remove(&step);
        self.next = step.next();
        self.open = Some(OpenRound::open(step, plan, &mut self.out));
    }

    /// Takes the open round out once it is decided; the caller defers what it left and closes it.
    pub(super) fn take_decided(&mut self) -> Option<OpenRound> {
        self.open.take_if(|open| open.is_decided())
    }

    /// Closes the round that was taken out.
    pub(super) fn close(&mut self, step: Step, queue: Queue) {
        self.out.push_back(Decision::Close { step, queue });
    }

    /// Decides that no round follows.
    pub(super) fn finish(&mut self) {
        self.finished = true;
        self.out.push_back(Decision::Finish);
    }

    /// Decides that the run cannot go on.
    pub(super) fn fail(&mut self, message: String) {
        self.finished = true;
        self.out.push_back(Decision::Fail { message });
    }

    /// Notes a decision beside those of the open round.
    pub(super) fn decide(&mut self, decision: Decision) {
        self.out.push_back(decision);
    }

    /// The next decision, until there is none.
    pub(super) fn poll(&mut self) -> Option<Decision> {
        self.out.pop_front()
    }
}

/// `rounds * quota`, at most what can be counted.
pub(super) fn times(rounds: u64, quota: usize) -> usize {
    usize::try_from(rounds).unwrap_or(usize::MAX).saturating_mul(quota)
}
