//! A schedule in its short form, a `RoundPolicy`, which decides between rounds. It trains on the prompts that complete first, and takes the
//! others into the next round. The command line adds it under a name, live and simulated.
//!
//! `cargo run --example 4_round_policy -- simulate --config configs/sim/7b.toml schedule.name=first schedule.extra=32 sim.steps=2`

use std::process::ExitCode;

use rollpacker::operators::schedule::round_policy::*;
use serde::{Deserialize, Serialize};

/// The options of the schedule. The command line sets all but `extra` from other sections of the recipe.
#[derive(Clone, Copy, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Options {
    prompts: usize,
    responses: u32,
    total_steps: Option<u64>,
    /// Number of prompts that a round launches in addition to those that it trains on.
    extra: usize,
}

#[derive(Deserialize, Serialize)]
struct First {
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

fn first(options: Options) -> First {
    First { rounds: Rounds::new(options.total_steps), store: PromptStore::default(), options }
}

fn main() -> ExitCode {
    rollpacker::App::new().schedule("first", |options| Ok(first(options))).main()
}
