//! Properties of the schedule that launches the longest groups first: it trains on what `sync` trains on, and ends earlier.

use super::{job, owned};
use crate::simulate::outcome::RunOutcome;
use crate::simulate::run;

/// A job in which the responses to a prompt have similar lengths, and a tenth of the responses of a round runs at a time.
const BASE: &str = r#"
[cluster]
gpus = 2
[model]
name = "Qwen3-1.7B"
[training]
tensor_parallel = 1
[rollout]
n = 8
max_num_seqs = 16
dispatch = "least_loaded"
[tasks]
math = 1
code = 0
judge = 0
[data]
train_batch_size = 40
max_response_length = 16384
[lengths]
source = "empirical"
[lengths.domains.math]
percentiles = [[0.0, 100.0], [50.0, 1000.0], [90.0, 4000.0], [100.0, 16000.0]]
endless = 0.0
endless_of_hard = 1.0
correlation = 0.8
[sim]
steps = 4
"#;

fn outcome(settings: &[&str]) -> RunOutcome {
    let stages = ["pipeline.placement=colocated", "pipeline.reward=streamed"];
    run::run(&job(BASE, &owned(&[settings, &stages].concat())), 1).expect("it runs")
}

fn rollout_s(outcome: &RunOutcome) -> f64 {
    outcome.steps.iter().map(|step| step.stages.rollout).sum()
}

#[test]
fn longest_first_ends_earlier_with_the_same_responses() {
    let read_order = outcome(&["schedule.name=fused"]);
    let longest_first = outcome(&["schedule.name=longest_first"]);
    assert_eq!(longest_first.trained, read_order.trained);
    let ratio = rollout_s(&longest_first) / rollout_s(&read_order);
    assert!(ratio < 0.9, "{ratio} of the rollout time");
}

#[test]
fn without_waiting_requests_the_order_has_no_effect() {
    let rollout_s = |name| rollout_s(&outcome(&[name, "rollout.max_num_seqs=160"]));
    let ratio = rollout_s("schedule.name=longest_first") / rollout_s("schedule.name=fused");
    assert!((ratio - 1.0).abs() < 0.02, "{ratio} of the rollout time");
}
