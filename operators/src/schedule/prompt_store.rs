//! The prompts of a schedule with one quota for all: fresh ones, and those left by earlier rounds.

use std::sync::Arc;

use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};

use super::plan::LeftoverPrompt;
use super::pool::Pool;
use super::round::OpenRound;
use super::rounds::{NextAction, Rounds, times};
use super::{Decision, Queue, Reason};

/// Fresh prompts, and prompts left by earlier rounds. All leftover prompts belong to one epoch and go into the next round.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptStore {
    pub(super) pool: Pool,
    epoch: u32,
    left: Vec<LeftoverPrompt>,
}

/// The prompts of an upcoming round: all that are left, and `fresh` fresh ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundShare {
    /// The epoch of the prompts.
    pub epoch: u32,
    /// The number of fresh prompts.
    pub fresh: usize,
}

impl PromptStore {
    /// Returns the prompts that were offered and not taken.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Returns the next round, for rounds that launch `launched` prompts and admit `quota`. It is smaller at the end of an epoch, and
    /// launches no more prompts than the rest of the run can admit.
    #[must_use]
    pub fn next(&self, rounds: &Rounds, launched: usize, quota: usize) -> NextAction<RoundShare> {
        if rounds.left() == 0 {
            return NextAction::Finish;
        }
        let epoch = if self.left.is_empty() { self.pool.first_epoch() } else { Some(self.epoch) };
        let Some(epoch) = epoch else {
            return if self.pool.is_over() { NextAction::Finish } else { NextAction::Prompts };
        };
        let wanted = launched.min(times(rounds.left(), quota)).saturating_sub(self.left.len());
        let fresh = self.pool.fresh(epoch, "", wanted);
        fresh.map_or(NextAction::Prompts, |fresh| NextAction::Round(RoundShare { epoch, fresh }))
    }

    /// Removes the prompts of a round, in the order in which they were read.
    pub fn take(&mut self, RoundShare { epoch, fresh }: RoundShare) -> Vec<LeftoverPrompt> {
        let mut taken = std::mem::take(&mut self.left);
        taken.extend(self.pool.take(epoch, "", fresh).into_iter().map(LeftoverPrompt::fresh));
        taken
    }

    /// Returns the prompts left by earlier rounds, in the order in which they were read.
    pub(super) fn left(&self) -> &[LeftoverPrompt] {
        &self.left
    }

    /// Closes a round; the prompts that it left go into the next one.
    pub fn close(&mut self, round: OpenRound, rounds: &mut Rounds) {
        let step = round.step();
        self.epoch = round.epoch();
        self.left.extend(defer_rest(round, rounds).map(|(_, left)| left));
        rounds.close(step, queue(&self.left, step));
    }
}

/// Defers the prompts that a round launched and did not admit, and returns all prompts that it did not admit.
pub(super) fn defer_rest(
    round: OpenRound,
    rounds: &mut Rounds,
) -> impl Iterator<Item = (Arc<str>, LeftoverPrompt)> {
    round.into_rest().map(|(lane, left, is_deferred)| {
        if is_deferred {
            rounds.decide(Decision::Defer { prompt: left.prompt, reason: Reason::RoundFull });
        }
        (lane, left)
    })
}

/// Returns the queue as reported when the round of `step` closes: the prompts that were launched before.
pub(super) fn queue<'a>(left: impl IntoIterator<Item = &'a LeftoverPrompt>, step: Step) -> Queue {
    let deferred = left.into_iter().filter_map(|left| left.since);
    let (length, oldest) =
        deferred.fold((0, step), |(length, oldest), since| (length + 1, oldest.min(since)));
    Queue { length, age: step.0 - oldest.0 }
}
