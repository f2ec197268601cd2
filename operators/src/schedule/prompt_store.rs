//! The prompts of a schedule with one quota for all prompts: fresh prompts, and prompts that earlier rounds left.

use std::sync::Arc;

use rollpacker_dataflow::step::Step;
use serde::{Deserialize, Serialize};

use super::plan::LeftoverPrompt;
use super::pool::Pool;
use super::round::OpenRound;
use super::rounds::{NextAction, Rounds, times};
use super::{Decision, Queue, Reason};

/// Fresh prompts, and prompts left by earlier rounds. All leftover prompts belong to one epoch and go into the next round. Rounds take
/// fresh prompts from the lane `""` of the pool only.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PromptStore {
    pub(super) pool: Pool,
    epoch: u32,
    left: Vec<LeftoverPrompt>,
}

/// The prompts of an upcoming round: all prompts that earlier rounds left, and `fresh` fresh prompts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoundShare {
    /// The epoch of the prompts.
    pub epoch: u32,
    /// The number of fresh prompts.
    pub fresh: usize,
}

impl PromptStore {
    /// Returns the fresh prompts: prompts that were offered and not taken.
    pub fn pool(&mut self) -> &mut Pool {
        &mut self.pool
    }

    /// Returns the next action, for rounds that launch `launched` prompts and admit `quota` prompts. The action is `Prompts` while the
    /// round lacks prompts that may still be offered. The action is `Finish` if no step is left, or no prompt is left and none may be
    /// offered. A round at the end of an epoch may be smaller. No round launches more prompts than the rest of the run can admit.
    #[must_use]
    pub fn next(&self, rounds: &Rounds, launched: usize, quota: usize) -> NextAction<RoundShare> {
        if rounds.remaining() == 0 {
            return NextAction::Finish;
        }
        let epoch = if self.left.is_empty() { self.pool.first_epoch() } else { Some(self.epoch) };
        let Some(epoch) = epoch else {
            return if self.pool.is_over() { NextAction::Finish } else { NextAction::Prompts };
        };
        let wanted = launched.min(times(rounds.remaining(), quota)).saturating_sub(self.left.len());
        let fresh = self.pool.available(epoch, "", wanted);
        fresh.map_or(NextAction::Prompts, |fresh| NextAction::Round(RoundShare { epoch, fresh }))
    }

    /// Removes and returns the prompts of a round, in the order in which they were read.
    pub fn take(&mut self, RoundShare { epoch, fresh }: RoundShare) -> Vec<LeftoverPrompt> {
        let mut taken = std::mem::take(&mut self.left);
        taken.extend(self.pool.take(epoch, "", fresh).into_iter().map(LeftoverPrompt::fresh));
        taken
    }

    /// Returns the prompts left by earlier rounds, in the order in which they were read.
    pub(super) fn leftover(&self) -> &[LeftoverPrompt] {
        &self.left
    }

    /// Closes a round. Stores the prompts that the round left, which go into the next round, and decides [`Defer`](Decision::Defer) for
    /// each of them that the round launched. After the last round, it instead [rejects](Decision::Reject) each prompt that any round
    /// launched. Then decides [`Close`](Decision::Close).
    pub fn close(&mut self, round: OpenRound, rounds: &mut Rounds) {
        let step = round.step();
        self.epoch = round.epoch();
        self.left.extend(defer_rest(round, rounds).map(|(_, left)| left));
        rounds.close(step, queue(&self.left, step));
    }
}

/// Returns the prompts that a round neither admitted nor rejected, each with its lane, and decides `Defer` for each of them that the round
/// launched. After the last round of the run, rejects those that any round launched and does not return them: no round is left for them.
/// The built-in schedules have such prompts only in a resumed run with fewer steps than the run that took the snapshot.
pub(super) fn defer_rest(
    round: OpenRound,
    rounds: &mut Rounds,
) -> impl Iterator<Item = (Arc<str>, LeftoverPrompt)> {
    let is_last = rounds.remaining() == 0;
    round.into_undecided().filter_map(move |(lane, left, is_deferred)| {
        let prompt = left.prompt;
        if is_last && left.since.is_some() {
            rounds.decide(Decision::Reject { prompt, reason: Reason::RunEnd });
            return None;
        }
        if is_deferred {
            rounds.decide(Decision::Defer { prompt, reason: Reason::RoundFull });
        }
        Some((lane, left))
    })
}

/// Returns the number of prompts in `left` that were launched before and the age of the oldest, as reported when the round of `step`
/// closes.
pub(super) fn queue<'a>(left: impl IntoIterator<Item = &'a LeftoverPrompt>, step: Step) -> Queue {
    let deferred = left.into_iter().filter_map(|left| left.since);
    let (length, oldest) =
        deferred.fold((0, step), |(length, oldest), since| (length + 1, oldest.min(since)));
    Queue { length, age: step.0 - oldest.0 }
}
