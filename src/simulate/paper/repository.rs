//! Runs in the repository of RollPacker's authors, with Qwen2.5-7B on 8 GPUs.
//!
//! - All stages: screenshots of a run on A100-40G, mathematical tasks, 4k tokens, 64 prompts x 4 responses.
//! - Code rewards: [A800], 8k tokens, 44 prompts x 8 responses, adaptive and fixed time limits.
//!
//! The model was not fitted to these runs, and the job does not have the controller costs of the evaluation's jobs.
//!
//! [A800]: super::jobs::A800

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{A800, CODE, REPOSITORY};
use super::plan::Plan;
use super::runs::{GENERATION, ROUNDS};

/// Mean seconds of a step over the screenshots, for short and long rounds.
const STEP_S: [f64; 2] = [47.3, 78.7];
/// Mean seconds of the rollout until the last reward (`step_generate`) over the screenshots, for short and long rounds.
const ROLLOUT_S: [f64; 2] = [20.3, 42.5];
/// Mean of the longest response of a short round over the screenshots, in tokens.
const SHORT_LONGEST: f64 = 1382.0;

/// Seconds of a step without tail batching, with a stream trainer that begins when a share of 0.4 of the responses is complete; mean of
/// five steps.
const STREAMED_S: f64 = 64.7;

/// Seconds until the last code reward by time limit: means over 16 short and 4 long rounds of the plot.
const CODE_S: [(&str, [f64; 2]); 2] = [("adaptive", [27.2, 69.8]), ("fixed", [47.6, 70.0])];

const RUN: &str = "authors' repository: 8 A100-40G, Qwen2.5-7B, TP 1, train (2,2,1), math, 4k tokens, 64 x 4 responses launched as 80 x 5, \
                   tail batching and streamed rewards, 25 steps";
const CODE_RUN: &str = "authors' repository: script of Fig. 14c, 8 GPUs, Qwen2.5-7B, 8k tokens, 44 x 8 responses launched as 55 x 10, KV share 0.7, \
                        32 sandbox workers, no training, 20 steps; not stated: A800 or A100; ours: A800";

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(plan, ROLLPACKER, "repository run", RUN, run),
        Item::new(plan, ROLLPACKER, "repository, code rewards", CODE_RUN, code),
    ]
}

fn run(item: &mut Item, plan: &mut Plan) {
    let job = plan.job(REPOSITORY, [] as [&str; 0]);
    for (index, (name, round)) in ROUNDS.into_iter().enumerate() {
        item.relative(format!("{name}: step, s"), STEP_S[index], HeldOut, move |runs| {
            round(runs.of(job)).step_s()
        });
        item.relative(format!("{name}: rollout, s"), ROLLOUT_S[index], HeldOut, move |runs| {
            round(runs.of(job)).stage(GENERATION)
        });
    }
    item.relative("short: longest response, tokens", SHORT_LONGEST, HeldOut, move |runs| {
        runs.of(job).short().metric("response_length/max")
    });
    let streamed = plan.job(
        REPOSITORY,
        [
            "schedule.name=fused",
            "pipeline.placement=stream",
            "pipeline.gradient=streamed",
            "stream.trigger=fixed",
            "stream.from=0.4",
            "stream.rounds=all",
            "rollout.gpu_memory_utilization=0.8",
            "sim.steps=5",
        ],
    );
    item.relative("streamed without tail batching: step, s", STREAMED_S, HeldOut, move |runs| {
        runs.of(streamed).step_s()
    });
}

fn code(item: &mut Item, plan: &mut Plan) {
    for (limit, paper) in CODE_S {
        let settings = [
            "data.train_batch_size=44",
            "data.max_response_length=8192",
            "rollout.n=8",
            "rollout.gpu_memory_utilization=0.7",
            "sim.steps=20",
        ];
        let settings = [CODE, A800, &settings].concat().into_iter().map(str::to_owned);
        let job = plan.job(REPOSITORY, settings.chain([format!("tasks.timeout={limit}")]));
        for ((name, round), paper) in ROUNDS.into_iter().zip(paper) {
            item.relative(format!("{limit}, {name}, s"), paper, HeldOut, move |runs| {
                round(runs.of(job)).stage(GENERATION)
            });
        }
    }
}
