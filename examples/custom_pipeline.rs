//! The RL step assembled from its operators, with a custom engine and trainer: a bandit that learns to say 7.
//!
//! Nothing here needs libtorch: the policy is a table of ten logits, shared between engine and trainer.
//! `cargo run --no-default-features --example custom_pipeline`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "bandit/mod.rs"]
mod bandit;

use std::convert::Infallible;
use std::rc::Rc;
use std::sync::Arc;

use rollpacker::dataflow::bridge::produce;
use rollpacker::dataflow::budget::Budget;
use rollpacker::operators::policy::policy_batch;
use rollpacker::prelude::*;

/// A reward of 1 for a 7, and 0 otherwise.
struct Sevens;

impl Reward for Sevens {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(f64::from(sample.response == "7").into())
    }
}

struct Print;

impl Observer for Print {
    fn step(&mut self, report: StepReport) {
        println!("step {:2}: {:.2} sevens", report.step, measure(&report)["critic/score/mean"]);
    }
}

fn main() -> anyhow::Result<()> {
    let rewards = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let clock: Arc<dyn Clock> = Arc::new(WallClock::start());
    let logits = bandit::Logits::default();
    let learner = bandit::Learner::new(logits.clone());
    let trainer = Rc::new(TrainerThread::spawn(clock.clone(), || {
        Ok::<_, Infallible>(Box::new(learner) as Box<dyn Trainer>)
    })?);
    let initial = trainer.publish_initial().map_err(anyhow::Error::msg)?;

    runtime::run(|scope, faults| {
        let budget = Budget::new(64);
        let (rows, errors) =
            produce(scope, "prompts", &schema::PROMPTS, budget.clone(), bandit::prompts(30 * 4));
        let (policies, weights) = feedback::policies(scope, 0, policy_batch(&initial));
        let rounds = sync::Config { prompts: 4, responses: 8, total_steps: None };

        let rollouts = Prompts { rows, errors, budget }
            .schedule(Synchronous::new(rounds).expect("4 prompts and 8 responses are a round"))
            .rollout(bandit::Arms::new(logits), &policies, clock.clone());
        let (responses, decisions) = (rollouts.responses.clone(), rollouts.decisions.clone());
        let texts = rollouts.texts.clone();
        let gradients = rollouts
            .reward(
                Router::default().route("bandit", Sevens),
                Limits::default(),
                Executor::Tokio(rewards.handle().clone()),
                clock.clone(),
            )
            .group()
            .advantage(Grpo::default())
            .gradient(trainer.clone());
        let groups = gradients.accumulated.clone();
        let updates = gradients.update();

        raise(updates.errors, faults);
        observe(
            ReportInputs {
                responses,
                groups,
                decisions,
                texts,
                metrics: updates.metrics,
                resumable: Resumable::default(),
            },
            clock.clone(),
            Print,
        );
        weights.connect(updates.policies);
    })?;
    Ok(())
}
