//! Fig. 4: tail batching on code tasks; Qwen2.5-14B, 16k tokens, 32 GPUs, five steps of which one is long.
//!
//! Fig. 4a has the lengths of the responses of this run. Their quartiles are further apart than those of the code tasks in Fig. 2a, so the
//! jobs of this figure draw their lengths from [`LENGTHS`]. The quartiles of veRL therefore count as fitted. The lengths and times with tail
//! batching do not.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::{Fitted, HeldOut};
use super::jobs::{CODE, QWEN_14B, System, TAIL_BATCHING, VERL};
use super::plan::Plan;
use super::runs::JobId;
use super::table1::STAGES;

/// Fig. 4a: the name of a quartile, its share of veRL's responses, and the number of tokens that this share does not exceed; mean over five
/// steps.
const QUARTILES: [(&str, f64, f64); 3] =
    [("first quartile", 0.25, 353.4), ("median", 0.5, 613.6), ("third quartile", 0.75, 1206.8)];
/// The quartiles of veRL in Fig. 4a; the minimum and the tail of the code tasks in Fig. 2a. The share of endless responses, their share
/// among the responses to a hard prompt, and the correlation are those of the code tasks in all other jobs.
const LENGTHS: &[&str] = &[
    "lengths.source=empirical",
    "lengths.domains.code={ percentiles = [[0.0, 8.0], [25.0, 353.4], [50.0, 613.6], [75.0, 1206.8], [95.0, 2783.0], [97.0, 4047.0], \
     [99.09, 16384.0]], endless = 0.0091, endless_of_hard = 0.18, correlation = 0.15 }",
];
/// Longest trained response of a short round, in tokens; mean over four rounds.
const SHORT_LONGEST: f64 = 2078.0;
/// Seconds of veRL's rollout, rewards and training over five steps.
const VERL_SECONDS: [f64; 3] = [1125.0, 225.0, 350.0];
/// Rollout seconds of the four short rounds together.
const SHORT_ROLLOUT: f64 = 351.0;
/// Rollout seconds of the long round.
const LONG_ROLLOUT: f64 = 255.0;
/// Seconds of rewards and of training, each over all five rounds together.
const REWARD_AND_TRAINING: [f64; 2] = [255.0, 287.0];

/// The number of steps in the figure.
const STEPS: f64 = 5.0;
/// The number of short rounds among the steps.
const SHORT: f64 = 4.0;

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 4a",
            "section 3: 14B/16k, code, 5 steps; ours: lengths with the quartiles that the figure has for veRL",
            lengths,
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 4b",
            "section 3: 14B/16k, code, veRL against tail batching alone, sum of 5 steps; ours: lengths as in Fig. 4a",
            seconds,
        ),
    ]
}

fn job(plan: &mut Plan, system: System) -> JobId {
    plan.job(QWEN_14B, [system, CODE, LENGTHS].concat())
}

fn lengths(item: &mut Item, plan: &mut Plan) {
    let verl = job(plan, VERL);
    let batched = job(plan, TAIL_BATCHING);
    for (name, share, paper) in QUARTILES {
        item.relative(format!("veRL: {name}, tokens"), paper, Fitted, move |runs| {
            runs.of(verl).trained_quantile(share)
        });
    }
    item.relative("TB: longest of a short round, tokens", SHORT_LONGEST, HeldOut, move |runs| {
        runs.of(batched).short().metric("response_length/max")
    });
}

fn seconds(item: &mut Item, plan: &mut Plan) {
    let verl = job(plan, VERL);
    let batched = job(plan, TAIL_BATCHING);
    for ((stage, of), paper) in STAGES.into_iter().zip(VERL_SECONDS) {
        item.relative(format!("veRL: {stage}, s"), paper, HeldOut, move |runs| {
            STEPS * of(runs.of(verl))
        });
    }
    item.relative("veRL: total, s", VERL_SECONDS.iter().sum(), HeldOut, move |runs| {
        STEPS * runs.of(verl).step_s()
    });
    let [(_, rollout), rest @ ..] = STAGES;
    item.relative("TB: short rollouts, s", SHORT_ROLLOUT, HeldOut, move |runs| {
        SHORT * rollout(runs.of(batched).short())
    });
    item.relative("TB: long rollout, s", LONG_ROLLOUT, HeldOut, move |runs| {
        (STEPS - SHORT) * rollout(runs.of(batched).long())
    });
    for ((stage, of), paper) in rest.into_iter().zip(REWARD_AND_TRAINING) {
        item.relative(format!("TB: {stage}, s"), paper, HeldOut, move |runs| {
            STEPS * of(runs.of(batched))
        });
    }
    let total = SHORT_ROLLOUT + LONG_ROLLOUT + REWARD_AND_TRAINING.iter().sum::<f64>();
    item.relative("TB: total, s", total, HeldOut, move |runs| STEPS * runs.of(batched).step_s());
}
