//! Rollout and training of the simulated cluster on the jobs of RollPacker's evaluation, compared with their values when the constants were
//! fitted.
//!
//! The rounds are driven by hand, without schedule or graph: the test covers engine, lengths and training time.

#![allow(missing_docs, reason = "tests")]

use std::collections::BTreeMap;
use std::sync::Arc;

use rollpacker_dataflow::clock::{Clock, VirtualClock};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_simulated::cluster::{Calibration, Cost, Hardware, ModelShape, TrainingLayout};
use rollpacker_simulated::rollout::lengths::{
    EmpiricalConfig, LengthModel, LengthsConfig, PopulationConfig,
};
use rollpacker_simulated::rollout::{Dispatch, SimulatedEngine, SimulatedEngineConfig};
use rollpacker_simulated::train::SimulatedTrainer;
use rollpacker_stages::rollout::{Placement, Policy, Request, RolloutEngine, RolloutEvent};
use rollpacker_stages::train::{Sequence, Trainer};

const ROUNDS: u64 = 24;
const GROUP: usize = 8;

struct Job {
    model: &'static str,
    devices: u32,
    tensor_parallel: u32,
    layout: TrainingLayout,
    cap: u32,
}

struct Round {
    prompts: u64,
    samples: u32,
    dispatch: Dispatch,
    /// The number of complete groups after which the round ends; a group keeps its first responses, and the rest is aborted.
    wanted: usize,
}

const PLAIN: Round =
    Round { prompts: 128, samples: 8, dispatch: Dispatch::PromptChunks, wanted: 128 };
const SHORT: Round =
    Round { prompts: 160, samples: 10, dispatch: Dispatch::RoundRobin, wanted: 128 };

fn job(model: &'static str, devices: u32, tensor_parallel: u32, layout: [u32; 3], cap: u32) -> Job {
    let [trainer, pipeline, context] = layout;
    let layout =
        TrainingLayout { tensor_parallel: trainer, pipeline, context, micro_batch_tokens: 1 };
    Job { model, devices, tensor_parallel, layout, cap }
}

impl Job {
    fn cost(&self) -> Cost {
        let hardware = Hardware::built_in("H800").expect("built in");
        let model = ModelShape::built_in(self.model).expect("built in");
        // The controller costs of RollPacker's jobs, as in `configs/sim`.
        let calibration = Calibration {
            dispatch_interval: 0.028,
            rollout_overhead: 2.0,
            padding_per_token: 1.2e-6,
            optimizer_step: 6.5,
            ..Calibration::default()
        };
        Cost::new(hardware, model, calibration)
    }

    fn lengths(&self) -> Arc<dyn LengthModel> {
        let config = LengthsConfig::Empirical(EmpiricalConfig::rollpacker());
        config.build(&PopulationConfig::default(), 101, self.cap).expect("in bounds")
    }

    /// Returns the mean seconds of a rollout, without weight synchronization, and of training.
    fn run(&self, round: &Round) -> (f64, f64) {
        let clock = VirtualClock::default();
        let placement = Placement {
            instances: self.devices / self.tensor_parallel,
            tensor_parallel: self.tensor_parallel,
        };
        let config = SimulatedEngineConfig {
            dispatch: round.dispatch,
            ..SimulatedEngineConfig::new(placement)
        };
        let mut engine =
            SimulatedEngine::new(config, self.cost(), self.lengths(), clock.clone()).expect("fits");
        let mut trained = Vec::new();
        let mut rollout = 0.0;
        for step in (0..ROUNDS).map(Step) {
            let begun = clock.now();
            trained.push((step, round.play(step, &mut engine, &clock)));
            rollout += clock.now().since(begun).as_secs_f64() - self.cost().weight_sync();
        }
        // Training follows all rounds, because virtual time that is spent on a thread advances all of its clocks.
        let training: f64 = trained.iter().map(|(step, of)| self.training(*step, of)).sum();
        (rollout / ROUNDS as f64, training / ROUNDS as f64)
    }

    fn training(&self, step: Step, trained: &[(PromptId, u32)]) -> f64 {
        let clock = VirtualClock::default();
        let mut trainer = SimulatedTrainer::new(
            self.cost(),
            self.layout,
            self.devices,
            self.lengths(),
            clock.clone(),
        );
        let begun = clock.now();
        let prompts: Vec<[i32; 1]> = trained.iter().map(|(prompt, _)| [prompt.0 as i32]).collect();
        let sequence = |(prompt_ids, (_, response_length)): (_, &(PromptId, u32))| Sequence {
            prompt_ids,
            response_length: *response_length,
            response_ids: &[],
            logprobs: &[],
            advantages: &[],
            weight: 1.0,
            ..Sequence::default()
        };
        let sequences: Vec<_> =
            prompts.iter().map(|ids| &ids[..]).zip(trained).map(sequence).collect();
        trainer.accumulate(step, &sequences).expect("it has devices");
        trainer.update(step).expect("it has devices");
        clock.now().since(begun).as_secs_f64()
    }
}

impl Round {
    /// Runs the round to its end and returns the responses to train on.
    fn play(
        &self,
        step: Step,
        engine: &mut SimulatedEngine,
        clock: &VirtualClock,
    ) -> Vec<(PromptId, u32)> {
        let version = PolicyVersion(step.0);
        engine.load(&Policy { version, location: String::new(), digest: 0 });
        let prompts = (0..self.prompts).map(|prompt| PromptId(step.0 * self.prompts + prompt));
        let mut open: BTreeMap<PromptId, Vec<u32>> =
            prompts.map(|prompt| (prompt, Vec::new())).collect();
        for prompt in open.keys().copied() {
            let prompt_ids = [prompt.0 as i32].into();
            let (samples, resumed) = (0..self.samples, Vec::new());
            engine.generate(Request { step, prompt, samples, prompt_ids, resumed });
        }
        let mut trained = Vec::new();
        while trained.len() < self.wanted * GROUP {
            let Some(event) = engine.poll() else {
                assert!(clock.advance(), "the round does not end");
                continue;
            };
            let RolloutEvent::Completed(completion) = event else { panic!("{event:?}") };
            let prompt = completion.id.prompt;
            let whole = completion.finish_reason.is_whole();
            let Some(lengths) = open.get_mut(&prompt).filter(|_| whole) else { continue };
            lengths.push(completion.response_length);
            if lengths.len() == GROUP {
                trained.extend(lengths.drain(..).map(|length| (prompt, length)));
                open.remove(&prompt);
                self.drop_all(step, prompt, engine);
            }
        }
        open.keys().for_each(|prompt| self.drop_all(step, *prompt, engine));
        trained
    }

    fn drop_all(&self, step: Step, prompt: PromptId, engine: &mut SimulatedEngine) {
        (0..self.samples).for_each(|sample| engine.abort(SampleId { step, prompt, sample }));
    }
}

/// Compares the seconds of rollout and training with those when the model was fitted. In the paper, short rounds of 32B took 70.1 and 162.8
/// s (Fig. 11c).
fn check(job: &Job, round: &Round, (rollout, training): (f64, f64)) {
    let found = job.run(round);
    let close = |found: f64, expected: f64| (found / expected - 1.0).abs() < 0.05;
    assert!(
        close(found.0, rollout) && close(found.1, training),
        "{}: {found:?}, expected {:?}",
        job.model,
        (rollout, training)
    );
}

fn small() -> Job {
    job("Qwen2.5-7B", 16, 1, [2, 1, 1], 8192)
}

fn middle() -> Job {
    job("Qwen2.5-14B", 32, 2, [2, 2, 2], 16_384)
}

fn large() -> Job {
    job("Qwen2.5-32B", 64, 2, [4, 1, 4], 32_768)
}

// One comparison per test: each test has its own thread, on which no virtual time has been spent.

#[test]
fn plain_rounds_of_7b() {
    check(&small(), &PLAIN, (94.7, 46.5));
}

#[test]
fn short_rounds_of_7b() {
    check(&small(), &SHORT, (60.4, 33.6));
}

#[test]
fn plain_rounds_of_14b() {
    check(&middle(), &PLAIN, (225.6, 81.6));
}

#[test]
fn short_rounds_of_14b() {
    check(&middle(), &SHORT, (67.7, 55.2));
}

#[test]
fn plain_rounds_of_32b() {
    check(&large(), &PLAIN, (578.2, 208.2));
}

#[test]
fn short_rounds_of_32b() {
    check(&large(), &SHORT, (70.6, 163.2));
}
