//! What the built-in schedules have in common: fresh prompts in a pool, rounds one at a time, rejected prompts replaced.

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::plan::Planned;
use super::pool::Pool;
use super::round::{OpenRound, Vacancy};
use super::rounds::{Next, Rounds};
use super::variance::ZeroVarianceFilter;
use super::{Decision, Event, Offer, Schedule};

/// A schedule as what it does between two rounds; the provided methods make it one.
pub(super) trait RoundPolicy {
    /// What it knows of the round that comes next.
    type Upcoming: PartialEq;

    /// Its rounds.
    fn rounds(&mut self) -> &mut Rounds;

    /// The same, to ask.
    fn rounds_ref(&self) -> &Rounds;

    /// Prompts that were offered and not taken.
    fn pool(&mut self) -> &mut Pool;

    /// The round that comes next.
    fn next(&self) -> Next<Self::Upcoming>;

    /// Opens the round that comes next.
    fn open(&mut self, upcoming: Self::Upcoming);

    /// Closes a round of which each place is taken.
    fn close(&mut self, round: OpenRound);

    /// Takes a prompt in.
    fn offer(&mut self, Offer { prompt, epoch, .. }: Offer) {
        self.pool().put(epoch, &Default::default(), prompt);
    }

    /// Takes in that a response ended.
    fn on_response(&mut self, id: SampleId, tokens: u32, reason: FinishReason) {
        self.rounds().on_response(id, tokens, reason);
    }

    /// Takes in a reward.
    fn on_score(&mut self, id: SampleId, score: f64) {
        self.rounds().on_score(id, score);
    }

    /// How it goes about groups without variance of reward; none: it does not look at rewards.
    fn filter(&self) -> Option<&ZeroVarianceFilter> {
        None
    }

    /// Groups that a round admits of a lane.
    fn quota(&self, lane: &str) -> usize {
        let _ = lane;
        0
    }

    /// A prompt in place of a rejected one.
    fn replacement(&mut self, vacancy: &Vacancy) -> Next<Planned> {
        let _ = vacancy;
        Next::Finish
    }

    /// Whether it pauses responses.
    fn pauses(&self) -> bool {
        false
    }

    /// Does what an event asks for.
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

    /// Whether it cannot go on without a prompt.
    fn asks(&self) -> bool {
        let rounds = self.rounds_ref();
        rounds.vacancy().is_some() || (rounds.is_idle() && self.next() == Next::Prompts)
    }

    /// Does all that can be done now.
    fn settle(&mut self) {
        self.refill();
        if let Some(round) = self.rounds().take_decided() {
            self.close(round);
        }
        if !self.rounds().is_idle() {
            return;
        }
        match self.next() {
            Next::Finish => self.rounds().finish(),
            Next::Round(upcoming) if self.rounds().is_due() => self.open(upcoming),
            Next::Round(_) | Next::Prompts => {}
        }
    }

    /// Replaces what was rejected, as far as the bound and the prompts allow.
    fn refill(&mut self) {
        while let Some(vacancy) = self.rounds().vacancy() {
            let quota = self.quota(&vacancy.lane);
            let bound = self.filter().filter(|filter| !filter.allows(vacancy.prompts, quota));
            if let Some(failure) = bound.and_then(|filter| filter.failure(&vacancy)) {
                return self.rounds().fail(failure);
            }
            let next = match bound {
                Some(_) => Next::Finish,
                None => self.replacement(&vacancy),
            };
            match next {
                Next::Prompts => return,
                Next::Round(planned) => self.rounds().replace(planned),
                Next::Finish => self.rounds().give_up(&vacancy.lane),
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
