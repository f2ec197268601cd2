//! Fig. 2b: when the GPUs of one server run out of responses; Qwen2.5-14B, 16k tokens, 32 GPUs.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{CODE, JUDGED, MATH, QWEN_14B, VERL};
use super::plan::Plan;
use super::runs::{JobId, PaperRuns, RunSelection, mean};

/// Seconds of the rollout.
const ROLLOUT: f64 = 271.0;
/// Seconds until the SM activity of GPUs 0, 2, 4 and 6 has fallen below 5 %. Each belongs to an instance of its own (TP 2).
const BUSY: [f64; 4] = [161.0, 149.0, 90.0, ROLLOUT];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 2b",
        "section 2.2: as Table 1, four of the 16 instances in one rollout; task not said, here the mean of the three, over all instances",
        |item, plan| {
            let jobs = [MATH, CODE, JUDGED].map(|task| plan.job(QWEN_14B, [VERL, task].concat()));
            item.relative("rollout, s", ROLLOUT, HeldOut, move |runs| {
                mean_over(runs, jobs, |job| job.metric("timing_s/gen"))
            });
            let idle = 1.0 - BUSY.iter().sum::<f64>() / (ROLLOUT * BUSY.len() as f64);
            item.points("time of an instance without work", idle, HeldOut, move |runs| {
                mean_over(runs, jobs, |job| job.metric("rollout/idle_ratio"))
            });
        },
    )]
}

/// Returns the mean of `of` over the tasks.
fn mean_over(runs: &PaperRuns, jobs: [JobId; 3], of: fn(RunSelection<'_>) -> f64) -> f64 {
    mean(jobs.into_iter().map(|job| of(runs.of(job))))
}
