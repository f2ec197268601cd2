//! RolloutPipe: launches requests of the groups nearest to completion first, and trains on each group when it is complete; Qwen3-1.7B.
//!
//! The paper reports ranges over its settings and states neither GPUs nor lengths. Here 8 GPUs generate, and the maximum response length
//! varies. The number of GPUs that train is the one that brings the baseline's training time closest to its rollout time: with 8, the
//! trainer would wait for 80 to 90 % of a step, which is no realistic division. The simulated values are the minimum and the maximum of the
//! resulting range. The baseline has the same GPUs and trains on whole steps.

use super::item::Item;
use super::item::Provenance::HeldOut;
use super::jobs::ROLLOUT_PIPE;
use super::plan::Plan;
use super::runs::{JobId, PaperRuns};

const SOURCE: &str = "RolloutPipe";

/// The smallest and the largest reduction of the time from the start of the rollout to the end of training, as fractions.
const END_TIME: [f64; 2] = [0.307, 0.423];
/// The smallest and the largest reduction of the share of a step in which the trainer waits, as fractions of that share.
const WAITING: [f64; 2] = [0.37, 0.76];

/// The number of GPUs that generate.
const ROLLOUT_GPUS: u32 = 8;

/// The maximum response length in tokens, and the number of GPUs that train, a power of two.
const CAPS: [(u32, u32); 4] = [(1024, 2), (2048, 2), (4096, 1), (8192, 1)];

type Pair = [JobId; 2];

type Measure = fn(&PaperRuns, JobId) -> f64;

pub(super) fn items(plan: &mut Plan) -> Vec<Item> {
    vec![Item::new(
        plan,
        SOURCE,
        "end time and waiting",
        "abstract: Qwen3-1.7B, separate pools; not stated: batch, GPUs, lengths; ours: caps of 1k to 8k tokens, 8 GPUs that generate, and as many that train as keep pace",
        |item, plan| {
            let pairs = CAPS.map(|cap| pair(plan, cap));
            let measures: [(&str, [f64; 2], Measure); 2] =
                [("end time", END_TIME, end_time_s), ("trainer waiting", WAITING, waiting_ratio)];
            for (name, [min, max], measure) in measures {
                let cut = move |runs: &PaperRuns, [baseline, job]: Pair| {
                    1.0 - measure(runs, job) / measure(runs, baseline)
                };
                item.points(format!("{name}: least cut"), min, HeldOut, move |runs| {
                    pairs.iter().map(|&pair| cut(runs, pair)).fold(f64::INFINITY, f64::min)
                });
                item.points(format!("{name}: greatest cut"), max, HeldOut, move |runs| {
                    pairs.iter().map(|&pair| cut(runs, pair)).fold(f64::NEG_INFINITY, f64::max)
                });
            }
        },
    )]
}

/// Plans the jobs of the baseline and of RolloutPipe.
fn pair(plan: &mut Plan, (cap, training_gpus): (u32, u32)) -> Pair {
    let size = [
        format!("data.max_response_length={cap}"),
        format!("cluster.gpus={}", ROLLOUT_GPUS + training_gpus),
        format!("pipeline.training_gpus={training_gpus}"),
    ];
    let mut job = |settings: &[&str]| {
        let settings = settings.iter().map(|&setting| setting.to_owned());
        plan.job(ROLLOUT_PIPE, settings.chain(size.clone()))
    };
    let baseline = job(&["schedule.order=sample_major", "pipeline.gradient=whole_step"]);
    [baseline, job(&["schedule.order=group_major"])]
}

/// Returns the seconds from the start of the rollout to the end of training.
fn end_time_s(runs: &PaperRuns, job: JobId) -> f64 {
    runs.of(job).mean(|step| step.seconds - step.stages.sync)
}

fn waiting_ratio(runs: &PaperRuns, job: JobId) -> f64 {
    runs.of(job).metric("trainer/waiting_ratio")
}
