//! Fig. 13: the parallelism planner as responses grow longer; Qwen2.5-14B on 16 GPUs.
//!
//! The paper forces the response length from 8k to 32k tokens, and its planner doubles the tensor parallelism when the KV cache overflows.
//! Here 128 responses have exactly the forced length, and the planner's choice is the lowest parallelism without preemptions. The number of
//! responses and the share of memory for KV caches are not stated, and were chosen so that the planner chooses as in the paper. The chosen
//! parallelisms therefore count as fitted, and the times do not.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::{Fitted, HeldOut};
use super::jobs::{MATH, QWEN_14B, REWARD_SCHEDULER, THINKING_8B};
use super::plan::Plan;
use super::runs::{JobId, PaperRuns};

/// Forced response length in thousands of tokens, the tensor parallelism that the planner chooses, and seconds of the rollout.
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

/// The seconds of the rollout at the lengths at which the planner switches, with the tensor parallelism before the switch.
const KEPT: [(u32, u32, f64); 2] = [(14, 1, 280.0), (24, 2, 446.1)];

/// The tensor parallelisms among which the planner chooses.
const CHOICES: [u32; 3] = [1, 2, 4];

/// Fig. 13c: rollout seconds with the planner divided by rollout seconds without it, mean of six steps.
const TIME_RATIO: f64 = 0.900;

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 13a",
            "section 6.4: 14B, 16 GPUs, response length forced; not stated: batch; ours: 128 responses, all as long as forced, KV share 0.7: with these \
                   the KV cache is full where the paper's planner switches",
            |item, plan| {
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
                    item.relative(format!("{thousands}k TP chosen"), paper, Fitted, move |runs| {
                        let fits = |&&(_, job): &&(u32, JobId)| {
                            runs.of(job).metric("rollout/preemptions") == 0.0
                        };
                        let chosen = jobs.iter().find(fits).or(jobs.last());
                        chosen.map_or(f64::NAN, |&(parallel, _)| f64::from(parallel))
                    });
                }
            },
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 13c",
            "section 6.4: cap 32k, initial TP 2, 6 steps; not stated: model, GPUs; ours: Qwen3-8B on 8 GPUs as in Fig. 7",
            |item, plan| {
                let [fixed, planned] = ["fixed", "paper"].map(|rule| {
                    let settings = [
                        "rollout.tensor_parallel=2".to_owned(),
                        format!("planner.rule={rule}"),
                        "sim.steps=6".to_owned(),
                    ];
                    let system = REWARD_SCHEDULER.iter().map(|&setting| setting.to_owned());
                    plan.job(THINKING_8B, system.chain(settings))
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
            },
        ),
    ]
}

fn job(plan: &mut Plan, thousands: u32, parallel: u32) -> JobId {
    let tokens = 1024 * thousands;
    let lengths = format!(
        "lengths.domains.math={{ percentiles = [[0.0, {tokens}.0], [100.0, {tokens}.0]], endless = 0.0, endless_of_hard = 1.0, correlation = 0.0 }}"
    );
    let settings = [
        "schedule.name=sync".to_owned(),
        "cluster.gpus=16".to_owned(),
        "data.train_batch_size=16".to_owned(),
        format!("data.max_response_length={tokens}"),
        format!("rollout.tensor_parallel={parallel}"),
        "rollout.gpu_memory_utilization=0.7".to_owned(),
        "lengths.source=empirical".to_owned(),
        lengths,
        "sim.steps=1".to_owned(),
    ];
    plan.job(QWEN_14B, MATH.iter().map(|&setting| setting.to_owned()).chain(settings))
}

fn rollout(runs: &PaperRuns, job: JobId) -> f64 {
    runs.of(job).stage(|stages| stages.rollout)
}
