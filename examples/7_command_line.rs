//! The command line with a reward, a schedule, a placement, an engine and a trainer of its own, which recipes
//! and simulated jobs name like the built-in ones.
//!
//! ```sh
//! cargo run --example 7_command_line -- score --reward terse --option max=20 --input rows.jsonl
//! cargo run --example 7_command_line -- simulate --config configs/sim/7b.toml schedule.name=surplus schedule.share=0.25 sim.steps=2
//! cargo run --example 7_command_line -- train --config configs/chain.toml schedule.name=surplus schedule.share=0.25 --dry-run
//! cargo run --example 7_command_line -- train --config configs/chain.toml placement.kind=early placement.options.groups=2 --dry-run
//! cargo run --example 7_command_line -- simulate --config configs/sim/7b.toml sim.steps=2 pipeline.placement=early \
//!     pipeline.placement_options.groups=16
//! cargo run --example 7_command_line -- train --config configs/chain.toml rollout.engine=uniform rollout.engine_options.tokens=8 --dry-run
//! cargo run --example 7_command_line -- train --config configs/chain.toml actor.strategy=sgd actor.strategy_options.momentum=0.5 --dry-run
//! ```

#[path = "early/mod.rs"]
mod early;
#[path = "sgd/mod.rs"]
mod sgd;
#[path = "uniform/mod.rs"]
mod uniform;

use std::process::ExitCode;

use early::Early;
use rollpacker::App;
use rollpacker::operators::schedule::ScheduleError;
use rollpacker::prelude::*;
use serde::Deserialize;
use sgd::Sgd;
use uniform::Uniform;

/// Rewards responses of at most `max` characters.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Terse {
    max: usize,
}

impl Reward for Terse {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(Score::from(f64::from(sample.response.chars().count() <= self.max)))
    }
}

/// The options of the schedule `surplus`. The command line sets all but `share` from other sections of the recipe.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Surplus {
    prompts: usize,
    responses: u32,
    total_steps: Option<u64>,
    /// Number of prompts that a short round launches in addition to those that it trains on, as a share of the latter, from 0 to 1.
    share: f64,
}

/// Returns a schedule whose short rounds launch more prompts than they keep, each with as many responses as a group has.
fn surplus(options: Surplus) -> Result<TailBatching, ScheduleError> {
    let Surplus { prompts, responses, total_steps, share } = options;
    if !(0.0..=1.0).contains(&share) {
        return Err(ScheduleError::bound("share", "a number from 0 to 1", share));
    }
    TailBatching::new(tail_batching::Config {
        eta_prompts: 1.0 + share,
        eta_responses: 1.0,
        total_steps,
        ..tail_batching::Config::new(prompts, responses)
    })
}

fn main() -> ExitCode {
    App::new()
        .reward("terse", |terse: Terse| Ok(terse))
        .schedule("surplus", surplus)
        .placement("early", Early::new)
        .engine("uniform", Uniform::start)
        .trainer("sgd", Sgd::start)
        .main()
}
