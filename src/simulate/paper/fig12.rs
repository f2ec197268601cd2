//! Fig. 12: how long rollouts take with more speculation on prompts, on responses, and on both; mathematical tasks.
//!
//! Mean seconds of a rollout, all rounds counted, without the stream trainer. The bar without speculation is veRL's.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::{Fitted, HeldOut};
use super::jobs::{Base, EVALUATION, MATH, REWARD_SCHEDULER, VERL};
use super::plan::Plan;
use super::runs::JobId;

/// Factors on responses and on prompts.
const FACTORS: [(&str, [&str; 2]); 7] = [
    ("R 1.125", ["1.125", "1"]),
    ("R 1.25", ["1.25", "1"]),
    ("R 1.5", ["1.5", "1"]),
    ("P 1.125", ["1", "1.125"]),
    ("P 1.25", ["1", "1.25"]),
    ("P 1.5", ["1", "1.5"]),
    ("both 1.25", ["1.25", "1.25"]),
];

/// By job: no speculation, then as [`FACTORS`]. The share of endless responses to a hard prompt was chosen by the bars of 32k with
/// R 1.25 and R 1.5.
const PAPER: [[f64; 8]; 3] = [
    [82.0, 77.0, 71.0, 54.0, 77.0, 72.0, 60.0, 47.0],
    [277.0, 260.0, 232.0, 115.0, 244.0, 169.0, 143.0, 88.0],
    [673.0, 658.0, 655.0, 265.0, 636.0, 259.0, 279.0, 170.0],
];

/// A whole number of cycles of short and long rounds with each of the factors: 9, 5 and 3.
const STEPS: &str = "sim.steps=45";

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(plan, ROLLPACKER, "Fig. 12", |item, plan| {
        for (base, paper) in EVALUATION.into_iter().zip(PAPER) {
            bars(item, plan, base, paper);
        }
    })]
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
    let jobs: Vec<JobId> = bars.into_iter().map(|(_, job)| job).collect();
    item.points(format!("{cap} rank correlation of the bars"), 1.0, HeldOut, move |runs| {
        let ours: Vec<f64> =
            jobs.iter().map(|&job| runs.of(job).stage(|stages| stages.rollout)).collect();
        rank_correlation(&paper, &ours)
    });
}

/// Spearman's rank correlation; equal values share the mean of their ranks.
fn rank_correlation(one: &[f64], other: &[f64]) -> f64 {
    let (one, other) = (ranks(one), ranks(other));
    let middle = (one.len() as f64 - 1.0) / 2.0;
    let product = |a: &[f64], b: &[f64]| -> f64 {
        a.iter().zip(b).map(|(a, b)| (a - middle) * (b - middle)).sum()
    };
    product(&one, &other) / (product(&one, &one) * product(&other, &other)).sqrt()
}

fn ranks(values: &[f64]) -> Vec<f64> {
    let rank = |value: &f64| {
        let below = values.iter().filter(|other| *other < value).count() as f64;
        let equal = values.iter().filter(|other| *other == value).count() as f64;
        below + (equal - 1.0) / 2.0
    };
    values.iter().map(rank).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_are_compared_and_ties_shared() {
        assert_eq!(ranks(&[3.0, 1.0, 3.0, 9.0]), [1.5, 0.0, 1.5, 3.0]);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[10.0, 20.0, 900.0]), 1.0);
        assert_eq!(rank_correlation(&[1.0, 2.0, 3.0], &[3.0, 2.0, 1.0]), -1.0);
        assert!((rank_correlation(&[1.0, 2.0, 3.0], &[1.0, 3.0, 2.0]) - 0.5).abs() < 1e-12);
    }
}
