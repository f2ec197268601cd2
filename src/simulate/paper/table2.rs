//! Table 2: speed-up of a step over veRL, as the parts of RollPacker are added one by one.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::Fitted;
use super::jobs::{self, EVALUATION, PLANNER, REWARD_SCHEDULER, System, TAIL_BATCHING, VERL};
use super::plan::Plan;

const SYSTEMS: [(&str, System); 4] = [
    ("+TB", TAIL_BATCHING),
    ("+RS", REWARD_SCHEDULER),
    ("+planner", PLANNER),
    ("+stream", jobs::ROLLPACKER),
];

/// The speed-up by job in the order of [`EVALUATION`], then by system.
const PAPER: [[f64; 4]; 3] =
    [[1.30, 2.01, 2.01, 2.03], [1.48, 1.99, 2.02, 2.22], [2.21, 2.48, 2.52, 2.56]];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Table 2",
        "section 6.2: parts added to veRL one after the other; not stated: tasks, steps; ours: mix, 40 steps",
        |item, plan| {
            for (base, paper) in EVALUATION.into_iter().zip(PAPER) {
                let baseline = plan.job(base, VERL.iter().copied());
                for ((name, system), paper) in SYSTEMS.into_iter().zip(paper) {
                    let job = plan.job(base, system.iter().copied());
                    item.relative(format!("{} {name}", base.label), paper, Fitted, move |runs| {
                        runs.of(job).speedup(runs.of(baseline))
                    });
                }
            }
        },
    )]
}
