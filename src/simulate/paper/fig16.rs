//! Fig. 16: throughput as GPUs and prompts per step grow in proportion (weak scaling); Qwen2.5-14B.

use super::ROLLPACKER;
use super::item::Item;
use super::item::Provenance::Fitted;
use super::jobs::{self, QWEN_14B, System, VERL};
use super::plan::Plan;
use super::runs::{JobId, PaperRuns};

const GPUS: [u32; 3] = [32, 64, 128];
/// Samples per second of veRL on [`GPUS`].
const VERL_RATE: [f64; 3] = [2.73, 3.87, 5.96];
/// Samples per second of RollPacker on [`GPUS`].
const ROLLPACKER_RATE: [f64; 3] = [6.07, 9.20, 13.14];

/// Prompts per step and GPU.
const PROMPTS: u32 = 4;

const STEPS: &str = "sim.steps=20";

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        ROLLPACKER,
        "Fig. 16",
        "section 6.8: 14B/16k, 4 prompts a GPU, mean of 20 steps; not stated: task; ours: mix",
        |item, plan| {
            let verl = GPUS.map(|gpus| job(plan, VERL, gpus));
            let rollpacker = GPUS.map(|gpus| job(plan, jobs::ROLLPACKER, gpus));
            for (name, jobs, paper) in
                [("veRL", verl, VERL_RATE), ("RollPacker", rollpacker, ROLLPACKER_RATE)]
            {
                rates(item, name, jobs, paper);
            }
            for index in 0..GPUS.len() {
                let paper = ROLLPACKER_RATE[index] / VERL_RATE[index];
                let cell = format!("{} GPUs: RollPacker over veRL", GPUS[index]);
                item.relative(cell, paper, Fitted, move |runs| {
                    rate(runs, rollpacker[index]) / rate(runs, verl[index])
                });
            }
        },
    )]
}

fn rates(item: &mut Item, name: &str, jobs: [JobId; 3], paper: [f64; 3]) {
    for index in 0..GPUS.len() {
        let cell = format!("{} GPUs: {name}, samples/s", GPUS[index]);
        item.relative(cell, paper[index], Fitted, move |runs| rate(runs, jobs[index]));
    }
    for index in 1..GPUS.len() {
        let cell = format!("{} over {} GPUs: {name}", GPUS[index], GPUS[index - 1]);
        item.relative(cell, paper[index] / paper[index - 1], Fitted, move |runs| {
            rate(runs, jobs[index]) / rate(runs, jobs[index - 1])
        });
    }
}

fn job(plan: &mut Plan, system: System, gpus: u32) -> JobId {
    let scale = [
        format!("cluster.gpus={gpus}"),
        format!("data.train_batch_size={}", gpus * PROMPTS),
        STEPS.to_owned(),
    ];
    plan.job(QWEN_14B, system.iter().map(|&setting| setting.to_owned()).chain(scale))
}

fn rate(runs: &PaperRuns, job: JobId) -> f64 {
    runs.of(job).samples_per_s()
}
