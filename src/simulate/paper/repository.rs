//! The run in the repository of RollPacker's authors: 8 A100-40G, Qwen2.5-7B, 4k tokens, 64 prompts x 4 responses.
//!
//! The model was not fitted to it, and the job does not have the controller costs of the evaluation's jobs.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::REPOSITORY;
use super::plan::Plan;
use super::runs::ROUNDS;

/// Means over the screenshots for short and long rounds: seconds of a step, seconds of its rollout, and the longest response in tokens.
const STEP_S: [f64; 2] = [47.3, 78.7];
const ROLLOUT_S: [f64; 2] = [20.3, 42.5];
const SHORT_LONGEST: f64 = 1382.0;

/// Seconds of a step without tail batching, with a stream trainer that begins at a share of 0.4; mean of five.
const STREAMED_S: f64 = 64.7;

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    let setting = "authors' repository: 8 A100-40G, Qwen2.5-7B, TP 1, train (2,2,1), math, 4k tokens, 64 x 4 responses launched as 80 x 5, \
                   tail batching and streamed rewards, 25 steps";
    vec![Item::new(plan, ROLLPACKER, "repository run", setting, |item, plan| {
        let job = plan.job(REPOSITORY, [] as [&str; 0]);
        for (index, (name, round)) in ROUNDS.into_iter().enumerate() {
            item.relative(format!("{name}: step, s"), STEP_S[index], HeldOut, move |runs| {
                round(runs.of(job)).step_s()
            });
            item.relative(format!("{name}: rollout, s"), ROLLOUT_S[index], HeldOut, move |runs| {
                round(runs.of(job)).stage(|stages| stages.rollout)
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
        item.relative(
            "streamed without tail batching: step, s",
            STREAMED_S,
            HeldOut,
            move |runs| runs.of(streamed).step_s(),
        );
    })]
}
