//! The dataflow's own cost: steps of 128 x 8 responses through the whole graph, with stages that do nothing.
//!
//! Divan's throughput is in responses: its reciprocal is the cost of one response.

#[path = "../tests/support/mod.rs"]
mod support;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_operators::schedule::{Synchronous, sync};
use support::{Run, ShortestFirst};

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

fn run() -> Run {
    let config = sync::Config { prompts: 128, responses: RESPONSES, total_steps: None };
    let schedule = Synchronous::new(config).expect("valid");
    let engine = ShortestFirst::instant();
    Run { engine, prompts: PROMPTS * STEPS, budget: 512, ..Run::of(schedule) }
}
