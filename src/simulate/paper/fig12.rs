//! Fig. 12: rollout time with more speculation on prompts, on responses, and on both; mathematical tasks.
//!
//! The numbers are mean seconds of a rollout over full periods of short and long rounds, without the stream trainer. The bar without
//! speculation is veRL's.
//!
//! The figure states caps only. The bars of 8k agree within 8 % with those that the authors' repository has of its script for this study
//! (7B/8k on 8 GPUs, 32 prompts), except for the two shortest; that job has the script's size. The others have the sizes of section 6.1.

use super::ROLLPACKER;
use super::item::Provenance::{Fitted, HeldOut};
use super::item::{Item, SimulatedValue};
use super::jobs::{Base, EVALUATION, MATH, QWEN_7B, REWARD_SCHEDULER, VERL};
use super::plan::Plan;
use super::runs::JobId;

/// The surplus of responses (`R`), of prompts (`P`) or of both, by bar of the figure, as factors, and a number of steps that is a multiple
/// of their period. Factors on prompts of 1.125, 1.25 and 1.5 have periods of 9, 5 and 3 steps.
const FACTORS: [(&str, [&str; 2], &str); 7] = [
    ("R 1.125", ["1.125", "1"], STEPS),
    ("R 1.25", ["1.25", "1"], STEPS),
    ("R 1.5", ["1.5", "1"], STEPS),
    ("P 1.125", ["1", "1.125"], "sim.steps=18"),
    ("P 1.25", ["1", "1.25"], STEPS),
    ("P 1.5", ["1", "1.5"], "sim.steps=18"),
    ("both 1.25", ["1.25", "1.25"], STEPS),
];

const STEPS: &str = "sim.steps=20";

/// The size of the repository's script.
const SCRIPT: [&str; 2] = ["cluster.gpus=8", "data.train_batch_size=32"];

/// By job: no speculation, then as [`FACTORS`]. The share of endless responses to a hard prompt was chosen to match the 32k bars with R
/// 1.25 and R 1.5.
const PAPER: [[f64; 8]; 3] = [
    [82.0, 77.0, 71.0, 54.0, 77.0, 72.0, 60.0, 47.0],
    [277.0, 260.0, 232.0, 115.0, 244.0, 169.0, 143.0, 88.0],
    [673.0, 658.0, 655.0, 265.0, 636.0, 259.0, 279.0, 170.0],
];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 12",
        "section 6.3: rollout time, mean over a full period; not stated: model, GPUs, batch, task; ours: math, jobs of section 6.1, but for 8k 8 GPUs \
             and 32 prompts, as in the script of the authors' repository",
        |item, plan| {
            for (base, paper) in EVALUATION.into_iter().zip(PAPER) {
                bars(item, plan, base, paper);
            }
        },
    )]
}

fn bars(item: &mut Item, plan: &mut Plan, base: Base, paper: [f64; 8]) {
    let size: &[&str] = if base == QWEN_7B { &SCRIPT } else { &[] };
    let mut bars = vec![("1", plan.job(base, [VERL, MATH, size, &[STEPS]].concat()))];
    for (name, [responses, prompts], steps) in FACTORS {
        let factors = [
            format!("schedule.eta_responses={responses}"),
            format!("schedule.eta_prompts={prompts}"),
        ];
        let settings = [REWARD_SCHEDULER, MATH, size, &[steps]].concat();
        let settings = settings.into_iter().map(str::to_owned);
        bars.push((name, plan.job(base, settings.chain(factors))));
    }
    let cap = base.label.split('/').next_back().unwrap_or_default();
    for (&(name, job), paper) in bars.iter().zip(paper) {
        let chosen_by = cap == "32k" && (name == "R 1.25" || name == "R 1.5");
        let provenance = if chosen_by { Fitted } else { HeldOut };
        item.relative(format!("{cap} {name}, s"), paper, provenance, move |runs| {
            runs.of(job).stage(|stages| stages.rollout)
        });
    }
    let rollout = |(&(_, job), paper): (&(&str, JobId), f64)| -> (f64, SimulatedValue) {
        (paper, Box::new(move |runs| runs.of(job).stage(|stages| stages.rollout)))
    };
    let pairs = bars.iter().zip(paper).map(rollout).collect();
    item.order(format!("{cap} rank correlation of the bars"), pairs);
}
