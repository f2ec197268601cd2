//! A schedule in its full form, `Schedule`, which decides at every event. It launches more prompts than a step trains on, and defers the
//! slowest ones to the next step (`oversampling/mod.rs`).
//!
//! A schedule receives events and returns decisions; the graph carries them out. The built-in schedules implement the same trait.
//! `cargo run --no-default-features --example 5_schedule`

#![allow(clippy::print_stdout, reason = "a program")]

#[path = "bandit/mod.rs"]
mod bandit;
#[path = "oversampling/mod.rs"]
mod oversampling;

use std::rc::Rc;

use oversampling::Oversampling;
use rollpacker::prelude::*;

struct Print;

impl Observer for Print {
    fn step(&mut self, report: StepReport) {
        let metrics = measure(&report);
        let (sevens, deferred) =
            (metrics["critic/score/mean"], metrics["schedule/deferred_prompts"]);
        println!("step {:2}: {sevens:.2} sevens, {deferred} prompts deferred", report.step);
    }
}

fn main() -> anyhow::Result<()> {
    let logits = bandit::Logits::default();
    let trainer = bandit::trainer(logits.clone())?;
    let pipeline = Pipeline::builder(
        PromptSource::Thread(Box::new(bandit::prompts(30 * 4))),
        Oversampling::new(4, 6, 8),
        bandit::Arms::new(logits),
        Router::default().route("bandit", bandit::Sevens),
        Rc::new(trainer),
        1,
    );
    Ok(pipeline.build()?.run(Print)?)
}
