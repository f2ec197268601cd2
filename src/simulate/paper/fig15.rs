//! Fig. 15: RollPacker in a one-off pipeline; section 6.7: the 7B job on 8 GPUs that generate and 8 that train, 32 prompts per step.
//!
//! Both pipelines train one step off-policy. The paper does not state which parts of RollPacker are enabled; here they are tail batching
//! and streamed rewards.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{QWEN_7B, System};
use super::plan::Plan;

/// The speed-up of a step of RollPacker over plain one-off training.
const SPEEDUP: f64 = 1.71;

/// Plain one-off training: `sync` with a staleness of 1, on separate GPUs.
const PLAIN: System = &[
    "schedule.name=sync",
    "pipeline.staleness=1",
    "pipeline.placement=separate",
    "data.train_batch_size=32",
];
/// One-off training with tail batching, the default schedule.
const BATCHED: System = &[
    "pipeline.staleness=1",
    "pipeline.placement=separate",
    "pipeline.gradient=whole_step",
    "data.train_batch_size=32",
];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    let setting = "section 6.7: 7B/8k, 8 GPUs generate and 8 train, 32 prompts a step; not stated: responses a prompt, tasks, steps";
    vec![Item::new(plan, ROLLPACKER, "Fig. 15", setting, |item, plan| {
        let [plain, batched] =
            [PLAIN, BATCHED].map(|system| plan.job(QWEN_7B, system.iter().copied()));
        item.relative("one-off, speed-up of a step", SPEEDUP, HeldOut, move |runs| {
            runs.of(batched).speedup(runs.of(plain))
        });
    })]
}
