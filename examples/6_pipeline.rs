//! The graph of the RL step, assembled from its operators, as `Pipeline` assembles it in the examples 3 and 5. A bandit learns to draw 7.
//!
//! `cargo run --no-default-features --example 6_pipeline`

#[path = "bandit/mod.rs"]
mod bandit;

use std::rc::Rc;
use std::sync::Arc;

use rollpacker::dataflow::bridge::produce;
use rollpacker::dataflow::budget::Budget;
use rollpacker::operators::policy::policy_batch;
use rollpacker::prelude::*;

fn main() -> anyhow::Result<()> {
    let rewards = tokio::runtime::Builder::new_multi_thread().worker_threads(1).build()?;
    let clock: Arc<dyn Clock> = Arc::new(WallClock::start());
    let logits = bandit::Logits::default();
    let trainer = Rc::new(bandit::trainer(logits.clone())?);
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
                Router::default().route("bandit", bandit::Sevens),
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
            bandit::Print,
        );
        weights.connect(updates.policies);
    })?;
    Ok(())
}
