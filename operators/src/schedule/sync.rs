//! Synchronous rounds (veRL): as many as wanted are launched, and all are waited for.
//!
//! A round launches `prompts` fresh prompts with `responses` responses each. A prompt is admitted as soon as its responses have ended,
//! so that reward and gradient work while others still generate; the round closes with its last response. The last round of an epoch
//! takes what is left.

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use serde::{Deserialize, Serialize};

use super::error::positive;
use super::pool::Pool;
use super::round::{Plan, Planned};
use super::rounds::{Next, Rounds};
use super::{Decision, Event, Offer, Queue, Reason, Round, Schedule, ScheduleError};

/// What [`Synchronous`] is told at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// Prompts of a round.
    pub prompts: usize,
    /// Responses to each prompt.
    pub responses: u32,
    /// Steps of the run, counted from step 0; none: as many as the prompts give.
    #[serde(default)]
    pub total_steps: Option<u64>,
}

/// The synchronous schedule.
///
/// Not named `Sync`, which would shadow the marker trait wherever it is imported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Synchronous {
    config: Config,
    lane: Arc<str>,
    pool: Pool,
    rounds: Rounds,
}

/// An upcoming round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Share {
    epoch: u32,
    prompts: usize,
}

impl Synchronous {
    /// A schedule at its start.
    ///
    /// # Errors
    /// If a count of the configuration is 0.
    pub fn new(config: Config) -> Result<Self, ScheduleError> {
        positive("prompts", config.prompts as u64)?;
        positive("responses", config.responses.into())?;
        positive("total_steps", config.total_steps.unwrap_or(1))?;
        let rounds = Rounds::new(config.total_steps);
        Ok(Self { config, lane: "".into(), pool: Pool::default(), rounds })
    }

    fn next(&self) -> Next<Share> {
        if self.rounds.left() == 0 || self.pool.is_over() {
            return Next::Finish;
        }
        let Some(epoch) = self.pool.first_epoch() else { return Next::Prompts };
        let fresh = self.pool.len(epoch, &self.lane);
        if fresh < self.config.prompts && !self.pool.has_all_of(epoch) {
            return Next::Prompts;
        }
        Next::Round(Share { epoch, prompts: fresh.min(self.config.prompts) })
    }

    fn settle(&mut self) {
        if let Some(round) = self.rounds.take_decided() {
            self.rounds.close(round.step(), Queue::default());
        }
        if !self.rounds.is_idle() {
            return;
        }
        match self.next() {
            Next::Finish => self.rounds.finish(),
            Next::Round(share) if self.rounds.is_due() => self.open(share),
            Next::Round(_) | Next::Prompts => {}
        }
    }

    fn open(&mut self, Share { epoch, prompts }: Share) {
        let taken = self.pool.take(epoch, &self.lane, prompts);
        let planned =
            |prompt| Planned { prompt, lane: Arc::clone(&self.lane), reason: Reason::Fresh };
        self.rounds.open(Plan {
            round: Round::Full,
            reason: if prompts < self.config.prompts { Reason::EpochEnd } else { Reason::Fresh },
            epoch,
            samples: self.config.responses,
            responses: self.config.responses,
            prompts: taken.into_iter().map(planned).collect(),
            places: BTreeMap::from([(Arc::clone(&self.lane), prompts)]),
        });
    }
}

impl Schedule for Synchronous {
    fn on(&mut self, _now: Nanos, event: Event) {
        if self.rounds.is_finished() {
            return;
        }
        match event {
            Event::Prompt(Offer { prompt, epoch, .. }) => self.pool.put(epoch, &self.lane, prompt),
            Event::EndOfPrompts => self.pool.end(),
            Event::Policy { step } => self.rounds.on_policy(step),
            Event::Response { id, finish_reason, .. } => self.rounds.on_response(id, finish_reason),
            Event::Scored { .. } => {}
        }
        self.settle();
    }

    fn poll(&mut self) -> Option<Decision> {
        self.rounds.poll()
    }

    fn wants_prompts(&self) -> bool {
        self.rounds.is_idle() && self.next() == Next::Prompts
    }
}
