//! Table 1: shares of the stages in a step of veRL, by kind of task; Qwen2.5-14B, 16k tokens, 32 GPUs.

use super::item::Item;
use super::item::Provenance::{self, Fitted, HeldOut};
use super::jobs::{CODE, JUDGED, MATH, QWEN_14B, System, VERL};
use super::plan::Plan;
use super::runs::StageSeconds;
use super::{ROLLPACKER, runs};

/// Shares of rollout, reward and training. The judge's time was fitted to its row.
const PAPER: [(&str, System, [f64; 3], Provenance); 3] = [
    ("math", MATH, [0.72, 0.05, 0.23], HeldOut),
    ("code", CODE, [0.66, 0.13, 0.21], HeldOut),
    ("judge", JUDGED, [0.71, 0.07, 0.22], Fitted),
];

/// The paper's three stages in terms of the four here. Weight synchronization is part of the rollout, as in veRL: its timer `gen` spans
/// `generate_sequences`, which loads the weights into the engine when it enters its sharding manager.
pub(super) const STAGES: [StageSeconds; 3] = [
    ("rollout", |measured| measured.stage(|stages| stages.sync + stages.rollout)),
    ("reward", |measured| measured.stage(|stages| stages.reward)),
    ("training", |measured| measured.stage(|stages| stages.training)),
];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Table 1",
        "section 2.2: veRL, 14B/16k, 32 GPUs, 128 x 8, one task a run",
        |item, plan| {
            for (task, only, paper, provenance) in PAPER {
                let job = plan.job(QWEN_14B, [VERL, only].concat());
                for ((stage, seconds), paper) in STAGES.into_iter().zip(paper) {
                    item.points(
                        format!("{task}: {stage}"),
                        paper,
                        provenance,
                        move |runs: &runs::PaperRuns| {
                            let measured = runs.of(job);
                            seconds(measured)
                                / STAGES.iter().map(|(_, of)| of(measured)).sum::<f64>()
                        },
                    );
                }
            }
        },
    )]
}
