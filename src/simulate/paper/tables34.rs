//! Tables 3 and 4: when the stream trainer begins, and the effect of fetching groups once; long rounds of the 7B job on mathematical tasks.
//!
//! The scheduler in the authors' repository compares a fixed trigger with the share of complete prompts. Here it is the share of complete
//! responses. With streaming, a long round takes 139 to 141 s at any share from 0.2 to 0.85, so the difference does not matter.

use super::ROLLPACKER;
use super::item::Provenance::HeldOut;
use super::item::{Item, SimulatedValue};
use super::jobs::{MATH, QWEN_7B, REWARD_SCHEDULER};
use super::plan::Plan;
use super::runs::JobId;

/// Seconds of a long round without the stream trainer.
const WITHOUT: f64 = 124.2;

/// Seconds with the stream trainer, by the share of responses at which it begins.
const TRIGGERS: [(&str, f64); 3] = [("0.2", 122.7), ("0.3", 118.2), ("0.4", 119.8)];

/// Seconds with the adaptive trigger.
const ADAPTIVE: f64 = 115.2;

/// Seconds if groups are fetched once, by the share of responses at which the trainer begins. It begins with the groups that are complete
/// at this share, and receives the rest at the end.
const FETCHES: [(&str, f64); 4] = [("0.2", 128.6), ("0.3", 129.5), ("0.4", 133.8), ("0.5", 132.0)];

/// The number of steps. Every fifth round is long, so these are five long rounds.
const STEPS: &str = "sim.steps=25";

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(
            plan,
            ROLLPACKER,
            "Table 3",
            "section 6.6: 7B/8k, math, step time, mean of five long rounds; fixed trigger at a share of the prompts, ours: of the responses",
            |item, plan| {
                let without = without(plan);
                item.relative("without streaming, s", WITHOUT, HeldOut, move |runs| {
                    runs.of(without).long().step_s()
                });
                for (share, paper) in TRIGGERS {
                    let job = triggered(plan, share, "streamed");
                    add_long_ratio(
                        item,
                        format!("trigger {share} over without"),
                        paper,
                        job,
                        without,
                    );
                }
                let adaptive = plan.job(QWEN_7B, MATH.iter().copied().chain([STEPS]));
                add_long_ratio(
                    item,
                    "adaptive over without".to_owned(),
                    ADAPTIVE,
                    adaptive,
                    without,
                );
                let mut jobs: Vec<_> = TRIGGERS
                    .map(|(share, paper)| (paper, triggered(plan, share, "streamed")))
                    .to_vec();
                jobs.push((ADAPTIVE, adaptive));
                agreement(item, &jobs, without);
            },
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Table 4",
            "section 6.6: as Table 3; the others fetch once",
            |item, plan| {
                let without = without(plan);
                for (share, paper) in FETCHES {
                    let job = triggered(plan, share, "once");
                    add_long_ratio(
                        item,
                        format!("fetch {share} over without"),
                        paper,
                        job,
                        without,
                    );
                }
                let jobs = FETCHES.map(|(share, paper)| (paper, triggered(plan, share, "once")));
                agreement(item, &jobs, without);
            },
        ),
    ]
}

fn without(plan: &mut Plan) -> JobId {
    plan.job(QWEN_7B, [REWARD_SCHEDULER, MATH, &[STEPS]].concat())
}

fn triggered(plan: &mut Plan, share: &str, gradient: &str) -> JobId {
    let trigger = [
        "stream.trigger=fixed".to_owned(),
        format!("stream.from={share}"),
        format!("pipeline.gradient={gradient}"),
        STEPS.to_owned(),
    ];
    plan.job(QWEN_7B, MATH.iter().map(|&setting| setting.to_owned()).chain(trigger))
}

/// Adds the seconds of a long round of `job` divided by the seconds of a long round without the stream trainer. The error is in points.
fn add_long_ratio(item: &mut Item, cell: String, paper: f64, job: JobId, without: JobId) {
    item.points(cell, paper / WITHOUT, HeldOut, ratio(job, without));
}

fn ratio(job: JobId, without: JobId) -> SimulatedValue {
    Box::new(move |runs| runs.of(job).long().step_s() / runs.of(without).long().step_s())
}

/// Adds the share of effects whose direction agrees with the paper, and the rank correlation of the effects.
fn agreement(item: &mut Item, jobs: &[(f64, JobId)], without: JobId) {
    let pairs =
        || jobs.iter().map(|&(paper, job)| (paper / WITHOUT, ratio(job, without))).collect();
    item.signs(pairs());
    item.order("rank correlation", pairs());
}
