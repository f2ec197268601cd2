//! Fig. 14: the reward scheduler.
//!
//! - 14a: seconds with a judge that runs concurrently with the engine on the same GPUs (MPS), divided by the seconds with a judge that
//!   takes turns with it; judged tasks only, on the 7B job.
//! - 14c: rollout and exposed rewards of code tasks with adaptive and with fixed time limits, 7B. The number of prompts, 44, is taken from
//!   the run in the authors' repository.
//!
//! Fig. 14b loads the weights of the judge layer by layer; the simulation does not model this.

use super::ROLLPACKER;
use super::item::Provenance::{Fitted, HeldOut};
use super::item::{Item, SimulatedValue};
use super::jobs::{CODE, JUDGED, QWEN_7B, REWARD_SCHEDULER};
use super::plan::Plan;
use super::runs::{ROUNDS, RunSelection};

/// 14a: the mean ratio of five short rounds, and the ratio of the long round. The cost of taking turns was fitted to the short rounds.
const MPS: [f64; 2] = [0.914, 0.824];

/// 14c: mean seconds of rollout and exposed rewards, for short and long rounds.
const TIMEOUTS: [(&str, [f64; 2]); 2] = [("adaptive", [31.9, 81.8]), ("fixed", [56.0, 80.0])];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 14a",
            "section 6.5: 7B/8k, judged tasks, judge colocated, MPS on over MPS off, 5 + 1 steps; not stated: MPS share",
            judge,
        ),
        Item::new(
            plan,
            ROLLPACKER,
            "Fig. 14c",
            "section 6.5: 7B/8k, code, rollout and streamed reward, 20 steps; not stated: batch; ours: 44 prompts, as in the authors' repository",
            sandbox,
        ),
    ]
}

fn judge(item: &mut Item, plan: &mut Plan) {
    let [mps, slicing] = ["mps", "time_slicing"].map(|sharing| {
        let settings = [format!("tasks.judge_sharing={sharing}"), "sim.steps=6".to_owned()];
        let system = [REWARD_SCHEDULER, JUDGED].concat().into_iter().map(str::to_owned);
        plan.job(QWEN_7B, system.chain(settings))
    });
    let ratio = |round: fn(RunSelection<'_>) -> RunSelection<'_>| -> SimulatedValue {
        Box::new(move |runs| round(runs.of(mps)).step_s() / round(runs.of(slicing)).step_s())
    };
    let kinds = ROUNDS.into_iter().zip(MPS).zip([Fitted, HeldOut]);
    for (((name, round), paper), provenance) in kinds {
        item.points(format!("{name}: MPS over time slicing"), paper, provenance, ratio(round));
    }
    item.signs(
        ROUNDS.into_iter().zip(MPS).map(|((_, round), paper)| (paper, ratio(round))).collect(),
    );
}

fn sandbox(item: &mut Item, plan: &mut Plan) {
    for (timeout, paper) in TIMEOUTS {
        let settings = [
            format!("tasks.timeout={timeout}"),
            "data.train_batch_size=44".to_owned(),
            "sim.steps=20".to_owned(),
        ];
        let system = [REWARD_SCHEDULER, CODE].concat().into_iter().map(str::to_owned);
        let job = plan.job(QWEN_7B, system.chain(settings));
        for ((name, round), paper) in ROUNDS.into_iter().zip(paper) {
            item.relative(format!("{timeout}, {name}, s"), paper, HeldOut, move |runs| {
                round(runs.of(job)).stage(|stages| stages.rollout + stages.reward)
            });
        }
    }
}
