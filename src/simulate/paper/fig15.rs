//! Fig. 15: RollPacker in a one-off pipeline.
//!
//! The paper gives a speed-up of 1.71, and our material does not say between what and on which job. Here it is between two pipelines that
//! are one step off the policy, half of the GPUs generating step `k + 1` while the other half trains step `k`: one with tail batching and
//! rewards beside the rollout, the other as veRL is otherwise, with rewards after the rollout. The paper's number stands beside the mean
//! of the three jobs of its evaluation.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{EVALUATION, System};
use super::plan::Plan;
use super::runs::mean;

const SPEEDUP: f64 = 1.71;

const PLAIN: System =
    &["schedule.name=sync", "pipeline.staleness=1", "pipeline.placement=separate"];
const BATCHED: System =
    &["pipeline.staleness=1", "pipeline.placement=separate", "pipeline.gradient=whole_step"];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(plan, ROLLPACKER, "Fig. 15", |item, plan| {
        let pairs = EVALUATION
            .map(|base| [PLAIN, BATCHED].map(|system| plan.job(base, system.iter().copied())));
        item.relative("one-off, mean of the three jobs", SPEEDUP, HeldOut, move |runs| {
            mean(pairs.iter().map(|&[plain, batched]| runs.of(batched).speedup(runs.of(plain))))
        });
    })]
}
