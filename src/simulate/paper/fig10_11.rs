//! Figs. 10 and 11: seconds of each of 40 steps, with their lengths, rollout times and stages.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::{Fitted, HeldOut};
use super::jobs::{self, EVALUATION, QWEN_32B, RLHFUSE, VERL};
use super::plan::Plan;
use super::runs::{JobId, ROUNDS, RunSelection, StageSeconds};

/// Fig. 10: mean duration of a step in seconds, read off the curves. There is a row for each job of [`EVALUATION`]; the columns are veRL,
/// RLHFuse, and the short and the long rounds of RollPacker.
const STEP_S: [[f64; 4]; 3] =
    [[233.4, 130.9, 110.6, 133.1], [382.8, 291.4, 138.6, 306.3], [874.6, 766.4, 242.3, 736.8]];

/// Fig. 10: standard deviation of the seconds of a step over the 40 steps of veRL, by job.
const SPREAD_S: [f64; 3] = [55.7, 25.4, 21.2];

/// Fig. 11a: mean of the longest trained response of a short round, in tokens.
const SHORT_LONGEST: f64 = 1442.0;
/// Fig. 11a: length of the longest response in every long round and in every round of veRL, in tokens.
const CAP: f64 = 32_768.0;

/// Fig. 11b: mean rollout seconds of veRL, of short rounds and of long rounds.
const ROLLOUT_S: [f64; 3] = [567.4, 75.4, 574.3];

/// Fig. 11c by job, short and long: seconds of synchronization, rollout, exposed rewards and training.
const BREAKDOWN: [[[f64; 4]; 2]; 3] = [
    [[4.9, 74.5, 2.8, 24.4], [5.1, 87.4, 3.9, 32.5]],
    [[14.8, 68.0, 1.5, 49.7], [15.2, 225.1, 2.2, 59.4]],
    [[26.8, 70.1, 1.9, 162.8], [27.5, 567.5, 3.1, 172.9]],
];

const STAGES: [StageSeconds; 4] = [
    ("sync", |measured| measured.stage(|stages| stages.sync)),
    ("rollout", |measured| measured.stage(|stages| stages.rollout)),
    ("reward", |measured| measured.stage(|stages| stages.reward)),
    ("training", |measured| measured.stage(|stages| stages.training)),
];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 10",
            "section 6.1: mix of tasks, first 40 steps; a long round is every fifth step",
            steps,
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 11a",
            "section 6.2: 32B/32k, full system, 40 steps",
            lengths,
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 11b",
            "section 6.2: 32B/32k, full system, 40 steps",
            rollouts,
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 11c",
            "section 6.2: full system; not stated: tasks, steps; ours: mix, 40 steps, exposed rewards",
            breakdown,
        ),
    ]
}

fn system(plan: &mut Plan, base: jobs::Base, system: jobs::System) -> JobId {
    plan.job(base, system.iter().copied())
}

fn steps(item: &mut Item, plan: &mut Plan) {
    let paper = STEP_S.into_iter().zip(SPREAD_S);
    for (base, ([verl_s, rlhfuse_s, short_s, long_s], spread_s)) in
        EVALUATION.into_iter().zip(paper)
    {
        let verl = system(plan, base, VERL);
        let rlhfuse = system(plan, base, RLHFUSE);
        let rollpacker = system(plan, base, jobs::ROLLPACKER);
        let cell = |name: &str| format!("{} {name}, s", base.label);
        item.relative(cell("veRL"), verl_s, Fitted, move |runs| runs.of(verl).step_s());
        item.relative(cell("veRL: standard deviation"), spread_s, HeldOut, move |runs| {
            runs.of(verl).step_deviation_s()
        });
        item.relative(cell("RLHFuse"), rlhfuse_s, HeldOut, move |runs| runs.of(rlhfuse).step_s());
        for ((name, round), paper) in ROUNDS.into_iter().zip([short_s, long_s]) {
            item.relative(cell(name), paper, Fitted, move |runs| {
                round(runs.of(rollpacker)).step_s()
            });
        }
    }
}

fn lengths(item: &mut Item, plan: &mut Plan) {
    let verl = system(plan, QWEN_32B, VERL);
    let rollpacker = system(plan, QWEN_32B, jobs::ROLLPACKER);
    let longest = |measured: RunSelection<'_>| measured.metric("response_length/max");
    item.relative("32B/32k veRL, tokens", CAP, HeldOut, move |runs| longest(runs.of(verl)));
    item.relative("32B/32k short, tokens", SHORT_LONGEST, Fitted, move |runs| {
        longest(runs.of(rollpacker).short())
    });
    item.relative("32B/32k long, tokens", CAP, HeldOut, move |runs| {
        longest(runs.of(rollpacker).long())
    });
}

fn rollouts(item: &mut Item, plan: &mut Plan) {
    let verl = system(plan, QWEN_32B, VERL);
    let rollpacker = system(plan, QWEN_32B, jobs::ROLLPACKER);
    let [verl_s, rounds_s @ ..] = ROLLOUT_S;
    let [_, (_, rollout), ..] = STAGES;
    item.relative("32B/32k veRL, s", verl_s, Fitted, move |runs| rollout(runs.of(verl)));
    for ((name, round), paper) in ROUNDS.into_iter().zip(rounds_s) {
        item.relative(format!("32B/32k {name}, s"), paper, Fitted, move |runs| {
            rollout(round(runs.of(rollpacker)))
        });
    }
}

fn breakdown(item: &mut Item, plan: &mut Plan) {
    for (base, paper) in EVALUATION.into_iter().zip(BREAKDOWN) {
        let job = system(plan, base, jobs::ROLLPACKER);
        for ((name, round), paper) in ROUNDS.into_iter().zip(paper) {
            let cell = |stage: &str| format!("{} {name}: {stage}, s", base.label);
            for ((stage, seconds), paper) in STAGES.into_iter().zip(paper) {
                item.relative(cell(stage), paper, Fitted, move |runs| seconds(round(runs.of(job))));
            }
            let total = paper.iter().sum();
            item.relative(cell("total"), total, Fitted, move |runs| round(runs.of(job)).step_s());
        }
    }
}
