//! An advantage estimator, in a pipeline with a custom engine and a custom trainer.
//!
//! The policy is a bandit of ten arms (`bandit/mod.rs`): a table of ten logits, shared between engine and trainer. A response is the digit
//! of an arm. The bandit needs no libtorch, so the examples 5, 6 and 8 use it, too.
//! `cargo run --no-default-features --example 3_advantage`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "bandit/mod.rs"]
mod bandit;

use std::rc::Rc;

use rollpacker::prelude::*;

/// An estimator whose advantage is the rank of a response in its group, minus the mean rank. The rank is the share of the group's responses
/// that have a lower score, so the advantage is from -1 to 1 for any scale of the reward.
struct Ranked;

impl Advantage for Ranked {
    fn advantages(&self, group: &[ScoredResponse]) -> Vec<f64> {
        let below = |one: &ScoredResponse| {
            group.iter().filter(|other| other.score < one.score).count() as f64
        };
        let ranks: Vec<f64> = group.iter().map(|one| below(one) / group.len() as f64).collect();
        let mean = ranks.iter().sum::<f64>() / group.len() as f64;
        ranks.iter().map(|rank| rank - mean).collect()
    }
}

/// A reward that is the digit itself.
struct Digit;

impl Reward for Digit {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(sample.response.parse::<f64>().map_err(RewardError::fatal)?.into())
    }
}

struct Print;

impl Observer for Print {
    fn step(&mut self, report: StepReport) {
        println!("step {:2}: mean digit {:.2}", report.step, measure(&report)["critic/score/mean"]);
    }
}

fn main() -> anyhow::Result<()> {
    let logits = bandit::Logits::default();
    let trainer = bandit::trainer(logits.clone())?;
    let rounds = sync::Config { prompts: 4, responses: 8, total_steps: None };
    let pipeline = Pipeline::builder(
        PromptSource::Thread(Box::new(bandit::prompts(25 * 4))),
        Synchronous::new(rounds)?,
        bandit::Arms::new(logits),
        Router::default().route("bandit", Digit),
        Rc::new(trainer),
        1,
    );
    Ok(pipeline.advantage(Ranked).build()?.run(Print)?)
}
