//! A custom advantage estimator in a pipeline with a custom engine and trainer: the bandit of `custom_pipeline`.
//!
//! `cargo run --no-default-features --example custom_advantage`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "bandit/mod.rs"]
mod bandit;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker::prelude::*;

/// The rank of a response in its group, minus the mean rank. Its absolute value is at most 1 for any scale of the reward.
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
    let rewards = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let clock: Arc<dyn Clock> = Arc::new(WallClock::start());
    let logits = bandit::Logits::default();
    let learner = bandit::Learner::new(logits.clone());
    let trainer = TrainerThread::spawn(clock.clone(), || {
        Ok::<_, Infallible>(Box::new(learner) as Box<dyn Trainer>)
    })?;
    let pipeline = Pipeline {
        prompts: PromptSource::Thread(Box::new(bandit::prompts(25 * 4))),
        prompts_ahead: 16,
        curriculum: None,
        schedule: Box::new(Synchronous::new(sync::Config {
            prompts: 4,
            responses: 8,
            total_steps: None,
        })?),
        engine: Box::new(bandit::Arms::new(logits)),
        max_response_length: 1,
        warmup_steps: 0,
        placement: None,
        router: Router::default().route("bandit", Digit),
        limit: Box::new(Limits::default()),
        scoring: Scoring::Streamed,
        advantage: Ranked.into(),
        reward_kl: None,
        begin: RunStart::Initial(trainer.publish_initial().map_err(anyhow::Error::msg)?),
        snapshots: None,
        trainer: Rc::new(trainer),
        fetch: GroupDelivery::default(),
        validator: None,
        staleness: 0,
        deterministic: false,
        rewards: Executor::Tokio(rewards.handle().clone()),
        time: RunTime::Wall(clock),
        stop: Stop::default(),
        watchdog: None,
    };
    Ok(pipeline.run(Print)?)
}
