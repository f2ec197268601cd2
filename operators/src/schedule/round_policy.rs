//! The common part of the built-in schedules: a pool of fresh prompts, one round at a time, and replacement of rejected prompts.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::plan::PlannedPrompt;
use super::pool::Pool;
use super::round::{OpenRound, Vacancy};
use super::rounds::{NextAction, Rounds};
use super::variance::ZeroVarianceFilter;
use super::{Decision, Event, Offer, Schedule};

/// The decisions of a schedule between two rounds; the provided methods turn it into a [`Schedule`].
pub(super) trait RoundPolicy {
    /// The plan of the next round, as far as it is known.
    type Upcoming: PartialEq;

    /// Returns the rounds of the schedule.
    fn rounds(&mut self) -> &mut Rounds;

    /// Returns a shared reference to the rounds of the schedule.
    fn rounds_ref(&self) -> &Rounds;

    /// Returns the prompts that were offered and not taken.
    fn pool(&mut self) -> &mut Pool;

    /// Returns the next round.
    fn next(&self) -> NextAction<Self::Upcoming>;

    /// Opens the next round.
    fn open(&mut self, upcoming: Self::Upcoming);

    /// Closes a round whose places are all taken.
    fn close(&mut self, round: OpenRound);

    /// Stores an offered prompt.
    fn offer(&mut self, Offer { prompt, epoch, .. }: Offer) {
        self.pool().put(epoch, &Default::default(), prompt);
    }

    /// Records that a response ended.
    fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        self.rounds().on_response(id, tokens, reason);
    }

    /// Records a reward.
    fn on_score(&mut self, id: SampleId, score: f64) {
        self.rounds().on_score(id, score);
    }

    /// Returns the treatment of groups without reward variance. `None` if the schedule does not use rewards.
    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        None
    }

    /// Returns the number of groups of a lane that a round admits.
    fn quota(&self, lane: &str) -> usize {
        let _ = lane;
        0
    }

    /// Returns a prompt to replace a rejected one.
    fn replacement(&mut self, vacancy: &Vacancy) -> NextAction<PlannedPrompt> {
        let _ = vacancy;
        NextAction::Finish
    }

    /// Returns `true` if the schedule pauses responses.
    fn pauses(&self) -> bool {
        false
    }

    /// Returns the number of prompts that a round of fresh prompts launches, and the number of responses to each, if they are not those
    /// that the round trains on.
    fn round_size(&self) -> Option<(usize, u32)> {
        None
    }

    /// Processes an event, and then takes every decision that has become possible.
    fn tell(&mut self, event: Event) {
        if self.rounds().is_finished() {
            return;
        }
        match event {
            Event::Prompt(offer) => self.offer(offer),
            Event::EndOfPrompts => self.pool().end(),
            Event::Policy { step } => self.rounds().on_policy(step),
            Event::Response { id, tokens, finish_reason } => {
                self.on_response(id, tokens, finish_reason);
            }
            Event::Scored { id, score } => self.on_score(id, score),
        }
        self.settle();
    }

    /// Returns `true` if the schedule cannot continue without a prompt.
    fn asks(&self) -> bool {
        let rounds = self.rounds_ref();
        rounds.vacancy().is_some() || (rounds.is_idle() && self.next() == NextAction::Prompts)
    }

    /// Takes every decision that is possible now.
    ///
    /// The order matters: rejected prompts are replaced before the round is tested for completion, because a replacement that is given up
    /// may complete it. A completed round is closed before the next one is considered, since the next round depends on the prompts that
    /// this one deferred.
    fn settle(&mut self) {
        self.refill();
        if let Some(round) = self.rounds().take_decided() {
            self.close(round);
        }
        if !self.rounds().is_idle() {
            return;
        }
        match self.next() {
            NextAction::Finish => self.rounds().finish(),
            NextAction::Round(upcoming) if self.rounds().is_due() => self.open(upcoming),
            NextAction::Round(_) | NextAction::Prompts => {}
        }
    }

    /// Replaces rejected prompts, as far as the bound and the prompts allow.
    fn refill(&mut self) {
        while let Some(vacancy) = self.rounds().vacancy() {
            let quota = self.quota(&vacancy.lane);
            let bound = self.filter().filter(|filter| !filter.allows(vacancy.prompts, quota));
            if let Some(failure) = bound.and_then(|filter| filter.failure(&vacancy)) {
                return self.rounds().fail(failure);
            }
            let next = match bound {
                Some(_) => NextAction::Finish,
                None => self.replacement(&vacancy),
            };
            match next {
                NextAction::Prompts => return,
                NextAction::Round(planned) => self.rounds().replace(planned),
                NextAction::Finish => self.rounds().give_up(&vacancy.lane),
            }
        }
    }
}

impl<P: RoundPolicy + Serialize + DeserializeOwned> Schedule for P {
    fn on(&mut self, _now: Nanos, event: Event) {
        self.tell(event);
    }

    fn poll(&mut self) -> Option<Decision> {
        self.rounds().poll()
    }

    fn wants_prompts(&self) -> bool {
        self.asks()
    }

    fn wants_scores(&self) -> bool {
        self.filter().is_some()
    }

    fn pauses(&self) -> bool {
        RoundPolicy::pauses(self)
    }

    fn round_size(&self) -> Option<(usize, u32)> {
        RoundPolicy::round_size(self)
    }

    fn save(&self) -> Option<Vec<u8>> {
        Some(
            serde_json::to_vec(self).expect("invariant: the keys of every map are numbers or text"),
        )
    }

    fn restore(&mut self, saved: &[u8]) -> Result<(), String> {
        let mut saved: P = serde_json::from_slice(saved).map_err(|error| error.to_string())?;
        saved.rounds().reopen(self.rounds_ref());
        saved.pool().reopen();
        *self = saved;
        Ok(())
    }
}
