//! Fig. 14: the reward scheduler.
//!
//! - 14a: a judge on the GPUs of the rollout, over one that has GPUs of its own. Ours: judged tasks alone on the 14B job; the judge's own
//!   GPUs are a quarter of the 32, which neither generate nor train meanwhile. The paper does not say how many there were.
//! - 14c: rollout and exposed rewards of code tasks with adaptive and fixed time limits, 7B. The number of prompts is that of the run in
//!   the authors' repository, 44.
//!
//! 14b, weights of the judge loaded layer by layer, is below what is simulated.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::{CODE, JUDGED, QWEN_7B, QWEN_14B, REWARD_SCHEDULER};
use super::plan::Plan;
use super::runs::{JobId, ROUNDS};

/// 14a: mean ratios of five short rounds and of the long one.
const COLOCATED: [f64; 2] = [0.914, 0.824];

/// 14c: seconds of short and long rounds, means.
const TIMEOUTS: [(&str, [f64; 2]); 2] = [("adaptive", [31.9, 81.8]), ("fixed", [56.0, 80.0])];

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![
        Item::new(plan, ROLLPACKER, "Fig. 14a", judge),
        Item::new(plan, ROLLPACKER, "Fig. 14c", sandbox),
    ]
}

fn judge(item: &mut Item, plan: &mut Plan) {
    let colocated = system(plan, JUDGED, &["tasks.judge_placement=colocated"]);
    let dedicated = system(plan, JUDGED, &["tasks.judge_placement=dedicated", "cluster.gpus=24"]);
    for ((name, round), paper) in ROUNDS.into_iter().zip(COLOCATED) {
        item.points(format!("{name}: colocated over dedicated"), paper, HeldOut, move |runs| {
            round(runs.of(colocated)).step_s() / round(runs.of(dedicated)).step_s()
        });
    }
}

fn system(plan: &mut Plan, tasks: &[&'static str], settings: &[&'static str]) -> JobId {
    plan.job(QWEN_14B, [REWARD_SCHEDULER, tasks, settings].concat())
}

fn sandbox(item: &mut Item, plan: &mut Plan) {
    for (timeout, paper) in TIMEOUTS {
        let settings = [format!("tasks.timeout={timeout}"), "data.train_batch_size=44".to_owned()];
        let system = [REWARD_SCHEDULER, CODE].concat().into_iter().map(str::to_owned);
        let job = plan.job(QWEN_7B, system.chain(settings));
        for ((name, round), paper) in ROUNDS.into_iter().zip(paper) {
            item.relative(format!("{timeout}, {name}, s"), paper, HeldOut, move |runs| {
                round(runs.of(job)).stage(|stages| stages.rollout + stages.reward)
            });
        }
    }
}
