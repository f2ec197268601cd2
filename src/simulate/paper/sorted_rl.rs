//! SortedRL: the bubble ratio of the engine, and tokens per second of rollout; 512 samples on 128 slots, at most 8k tokens.
//!
//! The baseline generates four batches of 128 one after the other. SortedRL loads all 512 and harvests four times. Its model and engine are
//! not stated; one instance of the shipped job represents them. In the experiment, the response to a prompt is as long as in the baseline,
//! also when it is generated again. If the last responses of a load must end before the next load begins, more than 5.8 % of 128 slots
//! remain idle unless all responses have the same length. The paper's on-policy value is therefore out of reach of this simulation.

use super::item::Item;
use super::item::Provenance::{Fitted, HeldOut};
use super::jobs::SORTED_RL;
use super::plan::Plan;
use super::runs::RunSelection;

const SOURCE: &str = "SortedRL";

/// Share of idle slots: baseline, on-policy, partial.
const BUBBLE: [f64; 3] = [0.74, 0.0581, 0.0337];
/// Tokens per second divided by the baseline's tokens per second: on-policy, partial.
const SPEEDUP: [f64; 2] = [1.0757, 1.3948];

/// The baseline: four separate batches of 128, one after the other.
const BASELINE: [&str; 1] = ["schedule.name=sync"];
/// SortedRL in on-policy mode.
const ON_POLICY: [&str; 3] =
    ["schedule.name=sorted", "schedule.group_size=4", "schedule.mode=on_policy"];
/// SortedRL in partial mode.
const PARTIAL: [&str; 4] = [
    "schedule.name=sorted",
    "schedule.group_size=4",
    "schedule.mode=partial",
    "schedule.carry_over=true",
];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        SOURCE,
        "bubbles and throughput",
        "section 4.4.1: 512 samples, cap 8k, lengths forced to the baseline's; the baseline is four separate batches of 128; not stated: model, GPUs, slots; ours: 128 slots",
        |item, plan| {
            let baseline = plan.job(SORTED_RL, BASELINE);
            let sorted = [plan.job(SORTED_RL, ON_POLICY), plan.job(SORTED_RL, PARTIAL)];
            let names = ["baseline", "on-policy", "partial"];
            let jobs = [baseline, sorted[0], sorted[1]];
            for ((name, job), paper) in names.into_iter().zip(jobs).zip(BUBBLE) {
                item.points(format!("{name}: bubble ratio"), paper, HeldOut, move |runs| {
                    bubble_ratio(runs.of(job))
                });
            }
            // The cost of a response was fitted to tokens per second with and without bubbles: those of the baseline and of partial mode.
            let kinds = names[1..].iter().zip(sorted).zip([HeldOut, Fitted]);
            for (((name, job), provenance), paper) in kinds.zip(SPEEDUP) {
                let cell = format!("{name}: throughput over baseline");
                item.relative(cell, paper, provenance, move |runs| {
                    tokens_per_s(runs.of(job)) / tokens_per_s(runs.of(baseline))
                });
            }
        },
    )]
}

/// Returns the share of idle slots, averaged over the time of generation.
fn bubble_ratio(measured: RunSelection<'_>) -> f64 {
    let generating = |step: &super::super::StepOutcome, name: &str| {
        step.metrics.get(name).copied().unwrap_or(0.0)
    };
    let empty = measured
        .mean(|step| generating(step, "rollout/bubble_ratio") * generating(step, "timing_s/gen"));
    empty / measured.metric("timing_s/gen")
}

/// Returns the trained tokens per second of generation.
fn tokens_per_s(measured: RunSelection<'_>) -> f64 {
    measured.mean(|step| step.trained_tokens) / measured.stage(|stages| stages.rollout)
}
