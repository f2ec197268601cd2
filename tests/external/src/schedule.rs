//! A schedule that is defined outside of the library.

use rollpacker::operators::schedule::round_policy::*;
use serde::{Deserialize, Serialize};

/// The options of [`First`]. The command line sets all but `extra` from other sections of the recipe.
#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Options {
    prompts: usize,
    responses: u32,
    total_steps: Option<u64>,
    /// Number of prompts that a round launches in addition to those that it trains on.
    extra: usize,
}

/// A schedule that trains on the prompts that complete first, and takes the others into the next round.
#[derive(Deserialize, Serialize)]
pub struct First {
    options: Options,
    store: PromptStore,
    rounds: Rounds,
}

impl RoundPolicy for First {
    type Upcoming = RoundShare;

    fn rounds(&mut self) -> &mut Rounds {
        &mut self.rounds
    }

    fn rounds_ref(&self) -> &Rounds {
        &self.rounds
    }

    fn pool(&mut self) -> &mut Pool {
        self.store.pool()
    }

    fn next(&self) -> NextAction<RoundShare> {
        let Options { prompts, extra, .. } = self.options;
        self.store.next(&self.rounds, prompts + extra, prompts)
    }

    fn open(&mut self, share: RoundShare) {
        let (taken, Options { prompts, responses, .. }) = (self.store.take(share), self.options);
        self.rounds.open(Plan::new(share.epoch, taken, prompts, responses));
    }

    fn close(&mut self, round: OpenRound) {
        self.store.close(round, &mut self.rounds);
    }
}

/// Returns the schedule in its initial state.
pub fn first(options: Options) -> First {
    First { rounds: Rounds::new(options.total_steps), store: PromptStore::default(), options }
}
