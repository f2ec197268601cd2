//! Fig. 7: preemptions and rollout seconds of a model that thinks, Qwen3-8B with 32k tokens on 8 GPUs, by tensor parallelism.
//!
//! How long its responses are is not told, and those of Fig. 2a never fill a KV cache; the shipped job assumes a median of 6k tokens.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{REWARD_SCHEDULER, THINKING_8B};
use super::plan::Plan;
use super::runs::ROUNDS;

/// By tensor parallelism: preemptions of a short and a long round, seconds of both.
const PAPER: [(u32, [f64; 2], [f64; 2]); 2] =
    [(1, [5199.0, 2900.0], [1029.0, 1172.0]), (2, [4102.0, 2601.0], [768.0, 1284.0])];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(plan, ROLLPACKER, "Fig. 7", |item, plan| {
        for (parallel, preemptions, seconds) in PAPER {
            let parallelism = format!("rollout.tensor_parallel={parallel}");
            let system = REWARD_SCHEDULER.iter().map(|&setting| setting.to_owned());
            let job = plan.job(THINKING_8B, system.chain([parallelism]));
            for (((name, round), preemptions), seconds) in
                ROUNDS.into_iter().zip(preemptions).zip(seconds)
            {
                let cell = format!("TP{parallel} {name}");
                item.relative(format!("{cell}: preemptions"), preemptions, HeldOut, move |runs| {
                    round(runs.of(job)).metric("rollout/preemptions")
                });
                item.relative(format!("{cell}: rollout, s"), seconds, HeldOut, move |runs| {
                    round(runs.of(job)).stage(|stages| stages.rollout)
                });
            }
        }
    })]
}
