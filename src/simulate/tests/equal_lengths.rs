//! Schedules gain from unequal lengths: with equal lengths, every synchronous schedule takes as long as `sync`.

use super::{job, owned, step_seconds};

/// A job in which all prompts have the same length, all responses have the same length, and all tasks are scored in the same time.
const BASE: &str = r#"
[cluster]
gpus = 8
[model]
name = "Qwen3-1.7B"
[training]
tensor_parallel = 1
[rollout]
n = 4
[tasks]
math = 1
code = 0
judge = 0
[data]
train_batch_size = 32
max_response_length = 4096
[lengths]
source = "two_mode"
[lengths.population]
prompt_length = { median = 200.0, spread = 0.0 }
[lengths.domains.math]
median = 1500.0
prompt_spread = 0.0
response_spread = 0.0
tail_median = 1500.0
tail_spread = 0.0
[sim]
steps = 4
"#;

/// Settings of the stages, the same for all schedules.
const STAGES: [&str; 6] = [
    "pipeline.reward=streamed",
    "pipeline.gradient=whole_step",
    "pipeline.placement=colocated",
    "rollout.dispatch=round_robin",
    "rollout.hand_out=together",
    "tasks.timeout=fixed",
];

fn seconds(schedule: &[&str]) -> f64 {
    step_seconds(&job(BASE, &owned(&[schedule, &STAGES].concat())))
}

/// Returns the time of a step divided by the time of a step of `sync`.
fn ratio(schedule: &[&str]) -> f64 {
    seconds(schedule) / seconds(&["schedule.name=sync"])
}

#[test]
fn without_speculation_every_synchronous_schedule_takes_as_long_as_sync() {
    const TAIL_BATCHING: [&str; 3] =
        ["schedule.name=tail_batching", "schedule.eta_prompts=1", "schedule.eta_responses=1"];
    let schedules = [
        vec!["schedule.name=fused"],
        TAIL_BATCHING.to_vec(),
        [&TAIL_BATCHING[..], &["schedule.selection=weighted"]].concat(),
        [&TAIL_BATCHING[..], &["schedule.keep_partial=true"]].concat(),
        vec!["schedule.name=history_sorted", "data.epoch_rounds=2"],
        vec!["schedule.name=sorted", "schedule.group_size=1", "schedule.mode=on_policy"],
        vec!["schedule.name=partial", "schedule.oversubscription=1", "schedule.max_versions=2"],
        vec!["schedule.name=frontier_group", "schedule.order=group_major"],
        vec!["schedule.name=longest_first"],
        // If each of 16 responses is right with probability 1/2, practically every group has variance of reward.
        vec![
            "schedule.name=dynamic",
            "schedule.max_generated_batches=2",
            "schedule.on_exhausted=smaller_step",
            "rollout.n=16",
            "data.train_batch_size=8",
            "lengths.population.pass_rate={median=0.5,spread=0.0,length_correlation=0.0}",
        ],
    ];
    for schedule in schedules {
        let ratio = ratio(&schedule);
        assert!((ratio - 1.0).abs() < 0.02, "{schedule:?}: {ratio} of the time of sync");
    }
}

/// With equal lengths, rounds that launch more responses decode more tokens and end no earlier.
#[test]
fn speculation_saves_no_time() {
    for factors in [["1.25", "1"], ["1", "1.25"], ["1.5", "1.5"]] {
        let [prompts, responses] = factors;
        let prompts = format!("schedule.eta_prompts={prompts}");
        let responses = format!("schedule.eta_responses={responses}");
        let ratio = ratio(&["schedule.name=tail_batching", &prompts, &responses]);
        assert!((0.98..1.5).contains(&ratio), "{factors:?}: {ratio} of the time of sync");
    }
}
