//! Fig. 7: preemptions and rollout seconds of a thinking model by tensor parallelism; Qwen3-8B with 32k tokens on 8 GPUs.
//!
//! The paper states neither the lengths of the responses nor the memory for KV caches. The lengths and the memory of the shipped job were
//! chosen so that the job matches this figure.

use super::ROLLPACKER;
use super::item::Provenance::Fitted;
use super::item::{Item, SimulatedValue};
use super::jobs::{REWARD_SCHEDULER, THINKING_8B};
use super::plan::Plan;
use super::runs::{JobId, PaperRuns, ROUNDS};

/// The tensor parallelism, the preemptions of a short and of a long round, and the rollout seconds of a short and of a long round.
const PAPER: [(u32, [f64; 2], [f64; 2]); 2] =
    [(1, [5199.0, 2900.0], [1029.0, 1172.0]), (2, [4102.0, 2601.0], [768.0, 1284.0])];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 7",
        "section 4.2: Qwen3-8B/32k, 8 GPUs, batch 128, tail batching, fixed TP; not stated: lengths, KV share; ours: an assumed distribution",
        |item, plan| {
            let jobs = PAPER.map(|(parallel, ..)| job(plan, parallel));
            item.signs(comparisons(jobs));
            for (parallel, preemptions, seconds) in PAPER {
                let job = job(plan, parallel);
                for (((name, round), preemptions), seconds) in
                    ROUNDS.into_iter().zip(preemptions).zip(seconds)
                {
                    let cell = format!("TP{parallel} {name}");
                    item.relative(
                        format!("{cell}: preemptions"),
                        preemptions,
                        Fitted,
                        move |runs| round(runs.of(job)).metric("rollout/preemptions"),
                    );
                    item.relative(format!("{cell}: rollout, s"), seconds, Fitted, move |runs| {
                        round(runs.of(job)).stage(|stages| stages.rollout)
                    });
                }
            }
        },
    )]
}

fn job(plan: &mut Plan, parallel: u32) -> JobId {
    let parallelism = format!("rollout.tensor_parallel={parallel}");
    let system = REWARD_SCHEDULER.iter().map(|&setting| setting.to_owned());
    plan.job(THINKING_8B, system.chain([parallelism]))
}

/// Returns the ratios of tensor parallelism 2 to tensor parallelism 1, for short and for long rounds: the ratio of preemptions and the
/// ratio of seconds. Each ratio is a pair of the paper's value and the simulated value.
fn comparisons([one, two]: [JobId; 2]) -> Vec<(f64, SimulatedValue)> {
    let [(_, few, short), (_, many, long)] = PAPER;
    let mut pairs: Vec<(f64, SimulatedValue)> = Vec::new();
    for (index, (_, round)) in ROUNDS.into_iter().enumerate() {
        let preemptions =
            move |runs: &PaperRuns, job| round(runs.of(job)).metric("rollout/preemptions");
        let seconds =
            move |runs: &PaperRuns, job| round(runs.of(job)).stage(|stages| stages.rollout);
        pairs.push((
            many[index] / few[index],
            Box::new(move |runs| preemptions(runs, two) / preemptions(runs, one)),
        ));
        pairs.push((
            long[index] / short[index],
            Box::new(move |runs| seconds(runs, two) / seconds(runs, one)),
        ));
    }
    pairs
}
