//! Fig. 12: rollout time with more speculation on prompts, on responses, and on both; mathematical tasks.
//!
//! The numbers are mean seconds of a rollout over all rounds, without the stream trainer. The bar without speculation is veRL's.

use super::ROLLPACKER;
use super::item::Provenance::{Fitted, HeldOut};
use super::item::{Item, SimulatedValue};
use super::jobs::{Base, EVALUATION, MATH, REWARD_SCHEDULER, VERL};
use super::plan::Plan;
use super::runs::JobId;

/// The surplus of responses (`R`), of prompts (`P`) or of both, by bar of the figure, as factors.
const FACTORS: [(&str, [&str; 2]); 7] = [
    ("R 1.125", ["1.125", "1"]),
    ("R 1.25", ["1.25", "1"]),
    ("R 1.5", ["1.5", "1"]),
    ("P 1.125", ["1", "1.125"]),
    ("P 1.25", ["1", "1.25"]),
    ("P 1.5", ["1", "1.5"]),
    ("both 1.25", ["1.25", "1.25"]),
];

/// By job: no speculation, then as [`FACTORS`]. The share of endless responses to a hard prompt was chosen to match the 32k bars with R
/// 1.25 and R 1.5.
const PAPER: [[f64; 8]; 3] = [
    [82.0, 77.0, 71.0, 54.0, 77.0, 72.0, 60.0, 47.0],
    [277.0, 260.0, 232.0, 115.0, 244.0, 169.0, 143.0, 88.0],
    [673.0, 658.0, 655.0, 265.0, 636.0, 259.0, 279.0, 170.0],
];

/// A whole number of cycles of short and long rounds for each of the factors, which have cycles of 9, 5 and 3 steps.
const STEPS: &str = "sim.steps=45";

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 12",
        "section 6.3: rollout time, mean over a full period; not stated: model, GPUs, batch, task; ours: jobs of section 6.1, math",
        |item, plan| {
            for (base, paper) in EVALUATION.into_iter().zip(PAPER) {
                bars(item, plan, base, paper);
            }
        },
    )]
}

fn bars(item: &mut Item, plan: &mut Plan, base: Base, paper: [f64; 8]) {
    let mut bars = vec![("1", plan.job(base, [VERL, MATH].concat()))];
    for (name, [responses, prompts]) in FACTORS {
        let factors = [
            format!("schedule.eta_responses={responses}"),
            format!("schedule.eta_prompts={prompts}"),
            STEPS.to_owned(),
        ];
        let settings = [REWARD_SCHEDULER, MATH].concat().into_iter().map(str::to_owned);
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
