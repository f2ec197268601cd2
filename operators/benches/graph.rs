//! Measures the overhead of the dataflow: steps of 128 prompts with 8 responses, and larger ones, run through the whole graph with stages
//! that do nothing.
//!
//! Divan reports the throughput in responses; its reciprocal is the cost of one response.

#[path = "../tests/support/mod.rs"]
mod support;

use std::collections::VecDeque;

use divan::Bencher;
use divan::counter::ItemsCount;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_operators::overlap::{GroupDelivery, Scoring};
use rollpacker_operators::placement::Colocated;
use rollpacker_operators::report::{Observer, StepReport};
use rollpacker_operators::schedule::{Synchronous, sync};
use rollpacker_stages::rollout::{
    Completion, FinishReason, Placement, Policy, Request, RolloutEngine, RolloutEvent,
    TokenVersions, Waker,
};
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

// Steps of 128 x 8 responses of `tokens` tokens, and of 8,192 x 8 responses of 32 tokens.
#[divan::bench(args = [(128, 32), (128, 1_000), (128, 16_000), (8192, 32)], sample_count = 5)]
fn tokens(bencher: Bencher<'_, '_>, (prompts, tokens): (usize, u32)) {
    let steps = if prompts < 8192 && tokens < 16_000 { 4 } else { 2 };
    let all = prompts as u64 * steps;
    let counter = ItemsCount::new(all * u64::from(RESPONSES));
    let run = || {
        let config = sync::Config { prompts, responses: RESPONSES, total_steps: None };
        let schedule = Synchronous::new(config).expect("valid");
        let engine = EqualLengths::new(tokens);
        Run { prompts: all, budget: 4 * prompts, ..Run::with(schedule, engine) }
    };
    bencher.counter(counter).with_inputs(run).bench_values(|run| {
        run.observed_by(Dropped).expect("no fault");
    });
}

/// An engine whose responses have one length and end at once, in the order of their requests. It fills the lists of each response, which is
/// part of the measured time, and does nothing else.
struct EqualLengths {
    tokens: u32,
    version: PolicyVersion,
    ended: VecDeque<SampleId>,
    waker: Option<Waker>,
}

impl EqualLengths {
    fn new(tokens: u32) -> Self {
        let (version, ended) = (PolicyVersion::default(), VecDeque::new());
        Self { tokens, version, ended, waker: None }
    }
}

impl RolloutEngine for EqualLengths {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        self.ended.extend(samples.map(|sample| SampleId { step, prompt, sample }));
        self.waker.iter().for_each(|wake| wake());
    }

    fn abort(&mut self, _: SampleId) {
        unreachable!("the schedule of the bench aborts nothing");
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        let (id, tokens) = (self.ended.pop_front()?, self.tokens);
        let count = tokens as usize;
        Some(RolloutEvent::Completed(Completion {
            id,
            response_length: tokens,
            response_ids: vec![7; count],
            logprobs: vec![-0.5; count],
            token_versions: TokenVersions::of(self.version, count),
            text: "7".repeat(count),
            finish_reason: FinishReason::Stop,
            started: Nanos(0),
            finished: Nanos(u64::from(tokens)),
            preemptions: 0,
            instance: 0,
        }))
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
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
