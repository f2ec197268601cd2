//! Fig. 13: the parallelism planner as responses grow longer; Qwen2.5-14B on 16 GPUs.
//!
//! Rollout seconds of long rounds on mathematical tasks at each longest response, with the tensor parallelism that the paper's planner has
//! there, and which one is shortest here. The paper changes it by preemptions, of which there are none with the lengths of Fig. 2a.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{MATH, QWEN_14B, REWARD_SCHEDULER};
use super::plan::Plan;
use super::runs::{JobId, Runs};

/// Thousands of tokens, the planner's tensor parallelism, and seconds.
const PLANNED: [(u32, u32, f64); 13] = [
    (8, 1, 163.7),
    (10, 1, 202.1),
    (12, 1, 240.4),
    (14, 2, 233.0),
    (16, 2, 262.8),
    (18, 2, 295.8),
    (20, 2, 328.7),
    (22, 2, 387.4),
    (24, 4, 357.1),
    (26, 4, 378.8),
    (28, 4, 400.4),
    (30, 4, 431.8),
    (32, 4, 463.1),
];

/// The same where it had not changed its mind.
const KEPT: [(u32, u32, f64); 2] = [(14, 1, 280.0), (24, 2, 446.1)];

/// What it could choose.
const CHOICES: [u32; 3] = [1, 2, 4];

/// Fig. 13c: seconds with the planner over those without, mean of six steps.
const TIME_RATIO: f64 = 0.900;

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(plan, ROLLPACKER, "Fig. 13a", |item, plan| {
            for (thousands, parallel, paper) in PLANNED.into_iter().chain(KEPT) {
                let job = job(plan, thousands, parallel);
                item.relative(
                    format!("{thousands}k TP{parallel}, s"),
                    paper,
                    HeldOut,
                    move |runs| rollout(runs, job),
                );
            }
            for (thousands, parallel, _) in PLANNED {
                let jobs = CHOICES.map(|choice| (choice, job(plan, thousands, choice)));
                let paper = f64::from(parallel);
                item.relative(format!("{thousands}k shortest TP"), paper, HeldOut, move |runs| {
                    let seconds = |&(_, job): &(u32, JobId)| rollout(runs, job);
                    let shortest = jobs.iter().min_by(|a, b| seconds(a).total_cmp(&seconds(b)));
                    shortest.map_or(f64::NAN, |&(parallel, _)| f64::from(parallel))
                });
            }
        }),
        Item::new(plan, ROLLPACKER, "Fig. 13c", |item, plan| {
            let [fixed, planned] = ["fixed", "paper"].map(|rule| {
                let settings = ["cluster.gpus=16".to_owned(), format!("planner.rule={rule}")];
                let system = REWARD_SCHEDULER.iter().map(|&setting| setting.to_owned());
                plan.job(QWEN_14B, system.chain(settings))
            });
            item.points(
                "rollout with the planner over without",
                TIME_RATIO,
                HeldOut,
                move |runs| {
                    let rollout = |job| runs.of(job).stage(|stages| stages.rollout);
                    rollout(planned) / rollout(fixed)
                },
            );
        }),
    ]
}

fn job(plan: &mut Plan, thousands: u32, parallel: u32) -> JobId {
    let settings = [
        "cluster.gpus=16".to_owned(),
        format!("data.max_response_length={}", 1024 * thousands),
        format!("rollout.tensor_parallel={parallel}"),
        // One cycle: four short rounds and a long one.
        "sim.steps=5".to_owned(),
    ];
    let system = [REWARD_SCHEDULER, MATH].concat().into_iter().map(str::to_owned);
    plan.job(QWEN_14B, system.chain(settings))
}

fn rollout(runs: &Runs, job: JobId) -> f64 {
    runs.of(job).long().stage(|stages| stages.rollout)
}
