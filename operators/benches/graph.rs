//! The overhead of the dataflow: steps of 128 x 8 responses and more through the whole graph, with stages that do nothing.
//!
//! Divan reports the throughput in responses; its reciprocal is the cost of one response.

#[path = "../tests/support/mod.rs"]
mod support;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::Colocated;
use rollpacker_operators::report::{Observer, StepReport};
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_stages::rollout::Placement;
use support::in_virtual_time::VirtualRun;
use support::{Run, ShortestFirst};

/// The allocator of the program `rollpacker`.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

const PROMPTS: u64 = 128;
const RESPONSES: u32 = 8;
const STEPS: u64 = 8;

fn main() {
    divan::main();
}

#[divan::bench(sample_count = 20)]
fn synchronous_step(bencher: Bencher<'_, '_>) {
    let responses = PROMPTS * u64::from(RESPONSES) * STEPS;
    bencher.counter(ItemsCount::new(responses)).with_inputs(run).bench_values(|run| {
        let reports = run.run().expect("no fault");
        assert_eq!(reports.len() as u64, STEPS);
    });
}

// Steps of `prompts` x 8 responses to prompts of 4 KiB, which is the size of a math problem with a long system prompt. Reports are dropped
// as they come, as in a run that writes no rollouts: kept reports would fill the memory.
#[divan::bench(args = [128, 1024, 8192], sample_count = 10)]
fn prompts_of_4_kib(bencher: Bencher<'_, '_>, prompts: usize) {
    let steps = if prompts < 8192 { 4 } else { 2 };
    let all = prompts as u64 * steps;
    let counter = ItemsCount::new(all * u64::from(RESPONSES));
    let run = || {
        let config = sync::Config { prompts, responses: RESPONSES, total_steps: None };
        let schedule = Synchronous::new(config).expect("valid");
        let run = Run::with(schedule, ShortestFirst::instant());
        Run { prompts: all, budget: 4 * prompts, prompt_bytes: Some(4 << 10), ..run }
    };
    bencher.counter(counter).with_inputs(run).bench_values(|run| {
        run.observed_by(Dropped).expect("no fault");
    });
}

// Steps of 128 x 8 responses of `tokens` tokens, and of 8,192 x 8 responses of 32 tokens. The engine fills the lists of each response,
// which is part of the measured time.
#[divan::bench(args = [(128, 32), (128, 1_000), (128, 16_000), (8192, 32)], sample_count = 5)]
fn tokens(bencher: Bencher<'_, '_>, (prompts, tokens): (usize, u32)) {
    let steps = if prompts < 8192 && tokens < 16_000 { 4 } else { 2 };
    let all = prompts as u64 * steps;
    let counter = ItemsCount::new(all * u64::from(RESPONSES));
    let length = match tokens {
        32 => |_| 32,
        1_000 => |_| 1_000,
        _ => |_| 16_000,
    };
    let run = || {
        let config = sync::Config { prompts, responses: RESPONSES, total_steps: None };
        let schedule = Synchronous::new(config).expect("valid");
        let mut engine = ShortestFirst::instant();
        engine.lengths = Some(length);
        Run { prompts: all, budget: 4 * prompts, ..Run::with(schedule, engine) }
    };
    bencher.counter(counter).with_inputs(run).bench_values(|run| {
        run.observed_by(Dropped).expect("no fault");
    });
}

/// An observer that drops reports.
struct Dropped;

impl Observer for Dropped {
    fn step(&mut self, report: StepReport) {
        assert!(!report.groups.is_empty());
    }
}

// Each response is a separate event, as in the simulator.
#[divan::bench(sample_count = 10)]
fn virtual_time(bencher: Bencher<'_, '_>) {
    let responses = PROMPTS * u64::from(RESPONSES) * STEPS;
    bencher.counter(ItemsCount::new(responses)).bench(|| {
        let run = VirtualRun {
            placement: Colocated::new(Placement { instances: 1, tensor_parallel: 1 }),
            scoring: Scoring::Streamed,
            delivery: GroupDelivery::default(),
            staleness: 0,
            prompts: 128,
            responses: RESPONSES,
            steps: STEPS,
            seconds: |id| 1 + id.prompt.0 % PROMPTS * u64::from(RESPONSES) + u64::from(id.sample),
            load: None,
        };
        assert_eq!(run.run().len() as u64, STEPS);
    });
}

fn run() -> Run {
    let config = sync::Config { prompts: 128, responses: RESPONSES, total_steps: None };
    let schedule = Synchronous::new(config).expect("valid");
    let engine = ShortestFirst::instant();
    Run { engine, prompts: PROMPTS * STEPS, budget: 512, ..Run::of(schedule) }
}
