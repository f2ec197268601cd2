//! The simulated engine on a job of the paper and on one of 16,384 GPUs: responses per second of real time.
//!
//! ```text
//! cargo bench -p rollpacker-simulated --bench simulated
//! ```

#![allow(missing_docs, reason = "a program")]

use std::sync::Arc;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_dataflow::clock::VirtualClock;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_simulated::cluster::{Calibration, Cost, Hardware, ModelShape};
use rollpacker_simulated::rollout::lengths::{
    EmpiricalConfig, LengthModel, LengthsConfig, PopulationConfig,
};
use rollpacker_simulated::rollout::{SimulatedEngine, SimulatedEngineConfig};
use rollpacker_stages::rollout::{Placement, Policy, Request, RolloutEngine, RolloutEvent};

fn main() {
    divan::main();
}

/// The sizes of the jobs: the prompts of a step, the engine instances and the tensor parallelism.
const JOBS: [(u64, u32, u32); 2] = [(128, 32, 2), (65_536, 8192, 2)];
const SAMPLES: u32 = 8;

fn lengths() -> Arc<dyn LengthModel> {
    let config = LengthsConfig::Empirical(EmpiricalConfig::rollpacker());
    config.build(&PopulationConfig::default(), 1, 32_768).expect("in bounds")
}

fn engine(clock: &VirtualClock, instances: u32, tensor_parallel: u32) -> SimulatedEngine {
    let cost = Cost::new(
        Hardware::built_in("H800").expect("built in"),
        ModelShape::built_in("Qwen2.5-32B").expect("built in"),
        Calibration::default(),
    );
    let config = SimulatedEngineConfig::new(Placement { instances, tensor_parallel });
    SimulatedEngine::new(config, cost, lengths(), clock.clone()).expect("it fits")
}

fn request(prompt: u64) -> Request {
    Request {
        step: Step(0),
        prompt: PromptId(prompt),
        samples: 0..SAMPLES,
        prompt_ids: [prompt as i32].into(),
        resumed: Vec::new(),
    }
}

/// Runs a step until every response has ended or was aborted, and returns the number of responses that ended. With `aborts`, the other
/// responses of a prompt are aborted when its first sample ends.
fn step(prompts: u64, engine: &mut SimulatedEngine, clock: &VirtualClock, aborts: bool) -> usize {
    engine.load(&Policy { version: PolicyVersion(0), location: String::new(), digest: 0 });
    (0..prompts).for_each(|prompt| engine.generate(request(prompt)));
    let mut ended = 0;
    loop {
        while let Some(event) = engine.poll() {
            let RolloutEvent::Completed(completion) = event else { continue };
            ended += 1;
            if aborts && completion.id.sample == 0 {
                (1..SAMPLES).for_each(|sample| engine.abort(SampleId { sample, ..completion.id }));
            }
        }
        if !clock.advance() {
            return ended;
        }
    }
}

#[divan::bench(args = JOBS, sample_count = 5)]
fn all_end(bencher: Bencher<'_, '_>, (prompts, instances, tensor_parallel): (u64, u32, u32)) {
    bench(bencher, prompts, instances, tensor_parallel, false);
}

#[divan::bench(args = JOBS, sample_count = 5)]
fn aborts(bencher: Bencher<'_, '_>, (prompts, instances, tensor_parallel): (u64, u32, u32)) {
    bench(bencher, prompts, instances, tensor_parallel, true);
}

fn bench(
    bencher: Bencher<'_, '_>,
    prompts: u64,
    instances: u32,
    tensor_parallel: u32,
    aborts: bool,
) {
    let fresh = || {
        let clock = VirtualClock::default();
        (engine(&clock, instances, tensor_parallel), clock)
    };
    bencher
        .counter(ItemsCount::new(prompts * u64::from(SAMPLES)))
        .with_inputs(fresh)
        .bench_local_values(|(mut engine, clock)| step(prompts, &mut engine, &clock, aborts));
}
