//! Invariant: more of any resource never makes a step longer.

use super::{job, owned, step_seconds};
use crate::simulate::variant;

const BASE: &str = r#"
[cluster]
gpus = 4
hardware = { name = "A", flops = 9e14, memory_bandwidth = 3e12, memory = 60e9, interconnect_bandwidth = 2e11, devices_per_server = 8 }
[model]
name = "Qwen3-1.7B"
[training]
tensor_parallel = 1
[rollout]
n = 8
tensor_parallel = 2
max_num_seqs = 64
[data]
train_batch_size = 24
max_response_length = 4096
[sim]
steps = 4
"#;

/// Settings that each increase one resource.
const MORE: [&str; 5] = [
    "cluster.gpus=8",
    "cluster.hardware.memory=120e9",
    "cluster.hardware.memory_bandwidth=6e12",
    "cluster.hardware.interconnect_bandwidth=6e11",
    "cluster.hardware.flops=2e15",
];

/// Tolerance for schedules that select by length: the resources change which responses end first, and thereby the length of the next steps.
const NOISE: f64 = 0.02;

#[test]
fn more_resources_slow_no_schedule() {
    for variant in variant::all() {
        let settings: Vec<String> = variant.overrides().collect();
        let seconds = step_seconds(&job(BASE, &settings));
        for more in MORE {
            let with = step_seconds(&job(BASE, &[&settings[..], &owned(&[more])].concat()));
            let ratio = with / seconds;
            assert!(ratio < 1.0 + NOISE, "{} with {more}: {ratio} of the time", variant.label);
        }
    }
}
