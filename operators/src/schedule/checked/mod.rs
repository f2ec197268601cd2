//! Schedules whose decisions are checked against their contract during a run.

mod round_log;
mod violation;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use rollpacker_dataflow::BoxError;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::PromptId;

use self::round_log::RoundLog;
use super::{Decision, Event, Schedule};

pub use self::violation::Violation;

/// A schedule whose decisions are checked against the [contract](Schedule).
///
/// The first violation becomes [`Decision::Fail`]: the run ends with an error that states the violated rule, and the decision, step, prompt
/// or response that violates it. Without the check a violation would surface later, as a stall or as a step that trains on the wrong
/// responses. The operator checks every schedule, built in or not; a test of a schedule can do the same without a graph.
pub struct Checked {
    schedule: Box<dyn Schedule>,
    log: RoundLog,
    /// Checked decisions that the caller has not taken yet.
    decided: VecDeque<Decision>,
    has_failed: bool,
}

impl Checked {
    /// Checks a new schedule, which was offered no prompts yet.
    #[must_use]
    pub fn new(schedule: Box<dyn Schedule>) -> Self {
        Self::with_held(schedule, [])
    }

    /// Checks a schedule that was restored from a snapshot. `held` has the prompts that were offered and are neither admitted nor rejected,
    /// each with `true` if the prompt was launched before. Restore the schedule before this call: [`restore`](Schedule::restore) of the
    /// checked schedule does not change the prompts that the check considers as held.
    #[must_use]
    pub fn with_held(
        schedule: Box<dyn Schedule>,
        held: impl IntoIterator<Item = (PromptId, bool)>,
    ) -> Self {
        let log = RoundLog::new(&*schedule, held.into_iter().collect());
        Self { schedule, log, decided: VecDeque::new(), has_failed: false }
    }

    /// Takes and checks the decisions of the schedule, up to a failure. The run ends with the first failure, so later decisions and the
    /// state of the open round no longer matter.
    fn drain(&mut self) {
        while !self.has_failed
            && let Some(decision) = self.schedule.poll()
        {
            let checked = match &decision {
                Decision::Finish => self.log.finish(self.schedule.is_out_of_steps()),
                other => self.log.decide(other),
            };
            if let Err(violation) = checked {
                return self.fail(&violation);
            }
            self.has_failed = matches!(decision, Decision::Fail { .. });
            self.decided.push_back(decision);
        }
    }

    fn fail(&mut self, violation: &Violation) {
        self.has_failed = true;
        self.decided.push_back(violation.failure());
    }
}

impl Schedule for Checked {
    /// Drains and checks the decisions after every event. If a caller delivers several events before it polls, a decision that answers
    /// the first event must not be checked against the state after the second.
    fn on(&mut self, now: Nanos, event: Event) {
        if !self.has_failed {
            self.log.on(&event);
            self.schedule.on(now, event);
            self.drain();
        }
    }

    fn poll(&mut self) -> Option<Decision> {
        if self.decided.is_empty() && !self.has_failed {
            self.drain();
        }
        if self.decided.is_empty() && !self.has_failed {
            let violation = self.log.stall(self.schedule.wants_prompts())?;
            self.fail(&violation);
        }
        self.decided.pop_front()
    }

    fn wants_prompts(&self) -> bool {
        self.schedule.wants_prompts()
    }

    fn wants_scores(&self) -> bool {
        self.schedule.wants_scores()
    }

    fn pauses(&self) -> bool {
        self.schedule.pauses()
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        self.schedule.round_size()
    }

    fn is_out_of_steps(&self) -> bool {
        self.schedule.is_out_of_steps()
    }

    fn save(&self) -> Option<Vec<u8>> {
        self.schedule.save()
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), BoxError> {
        self.schedule.restore(saved)
    }
}
