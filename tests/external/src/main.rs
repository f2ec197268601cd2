//! The command line of `rollpacker` with a schedule, an engine and a reward of its own.

mod engine;
mod schedule;

use std::process::ExitCode;

use rollpacker::App;
use rollpacker::prelude::*;
use rollpacker::stages::catalog::NoOptions;

/// A reward: the share of digits among the characters of a response.
struct Digits;

impl Reward for Digits {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        let digits = sample.response.chars().filter(char::is_ascii_digit).count();
        Ok(Score::from(digits as f64 / sample.response.chars().count().max(1) as f64))
    }
}

fn main() -> ExitCode {
    App::new()
        .reward("digits", |_: NoOptions| Ok(Digits))
        .schedule("first", |options| Ok(schedule::first(options)))
        .engine("prefix", engine::Prefix::start)
        .main()
}
