//! Compares triggers by step time. Responses and training take exactly the time that the costs predict; the policy has the lengths of
//! earlier rounds only.

use std::collections::BTreeMap;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, Placement};
use serde::{Deserialize, Serialize};

use crate::placement::planner::Rule;
use crate::placement::{
    Event, Job, PlacementPolicy, Planner, RoundFilter, StepCost, StreamTrainer,
    StreamTrainerOptions, Trigger,
};
use crate::wire::decision::RoundKind;

/// A model with 14 billion parameters on H800: the decode, training and cache terms of a roofline.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Roofline {
    /// The training speed of a device, relative to 2,000 tokens per second.
    trainer: f64,
}

impl StepCost for Roofline {
    fn decode_iteration(&self, tensor_parallel: u32, running: f64, kv_tokens: f64) -> f64 {
        let wide = f64::from(tensor_parallel);
        let exchange = if tensor_parallel > 1 { 2.4e-3 + 0.4e-3 * wide.log2() } else { 0.0 };
        1.5e-3 + 1e-5 * running + 11e-3 / wide + exchange + 78e-9 / wide * kv_tokens
    }

    fn training(&self, devices: u32, tokens: f64) -> f64 {
        tokens * 0.5e-3 / f64::from(devices) / self.trainer
    }

    fn kv_capacity(&self, tensor_parallel: u32) -> u64 {
        u64::from(305_000 * tensor_parallel).saturating_sub(150_000)
    }

    fn reconfiguration(&self, from: Placement, to: Placement, kv_tokens: f64) -> f64 {
        if from == to { 0.0 } else { 2.0 + kv_tokens * 1e-4 / f64::from(to.devices().max(1)) }
    }
}

const JOB: Job =
    Job { devices: 32, devices_per_server: 8, training_replica: 4, response_length: 16_384 };
const PROMPTS: u64 = 128;
const SAMPLES: u32 = 8;

/// A fixed sequence of pseudo-random numbers in [0, 1).
struct Dice(u64);

impl Dice {
    fn roll(&mut self) -> f64 {
        self.0 =
            self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns an approximately normal number with variance 1.
    fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.roll()).sum::<f64>() - 6.0
    }
}

/// Returns long-tailed lengths that depend on the prompt as well as on the sample.
fn lengths(seed: u64) -> BTreeMap<(u64, u32), f64> {
    let mut dice = Dice(seed);
    let mut lengths = BTreeMap::new();
    for prompt in 0..PROMPTS {
        let hard = dice.roll().powi(3);
        for sample in 0..SAMPLES {
            let is_long = dice.roll() < hard;
            let (median, spread) = if is_long { (5000.0, 0.7) } else { (465.0, 0.5) };
            let length = median * f64::exp(spread * dice.normal());
            lengths.insert((prompt, sample), length.round().clamp(8.0, 16_384.0));
        }
    }
    lengths
}

/// A running round. All responses began together, so the shortest ends next.
struct World {
    cost: Roofline,
    now: f64,
    /// The number of tokens of each running response.
    tokens: f64,
    rollout: Placement,
    training_devices: u32,
    /// The number of tokens of complete groups that were not trained on yet.
    waiting: f64,
}

impl World {
    fn deliver(&mut self, policy: &mut StreamTrainer<Roofline>, held: f64, event: Event) {
        policy.on(Nanos::from_secs_f64(self.now), event);
        while let Some(decision) = policy.poll() {
            let free = self.rollout.instances == 0 || decision.rollout.instances == 0;
            let moved = self.cost.reconfiguration(self.rollout, decision.rollout, held);
            self.spend(if free { 0.0 } else { moved });
            (self.rollout, self.training_devices) = (decision.rollout, decision.training_devices);
        }
    }

    fn spend(&mut self, seconds: f64) {
        self.now += seconds;
        if self.training_devices > 0 {
            let pace = 1.0 / self.cost.training(self.training_devices, 1.0);
            self.waiting = (self.waiting - pace * seconds).max(0.0);
        }
    }

    /// Decodes until running responses have `tokens` tokens. Responses that do not fit into the cache wait, which lengthens the time in
    /// proportion.
    fn decode(&mut self, tokens: f64, running: usize) {
        let alive = running as f64 / f64::from(self.rollout.instances);
        let held = alive.max(1.0) * (self.tokens.midpoint(tokens) + 200.0);
        let full = (held / self.cost.kv_capacity(self.rollout.tensor_parallel) as f64).max(1.0);
        let (running, held) = (alive.max(1.0) / full, held / full);
        let width = self.rollout.tensor_parallel;
        let iteration = self.cost.decode_iteration(width, running, held) * full;
        self.spend((tokens - self.tokens) * iteration);
        self.tokens = tokens;
    }

    /// Plays one step and returns its seconds.
    fn step(&mut self, policy: &mut StreamTrainer<Roofline>, step: Step) -> f64 {
        (self.tokens, self.waiting) = (0.0, 0.0);
        let start = self.now;
        self.deliver(policy, 0.0, Event::Opened { step, round: RoundKind::Full });
        for prompt in (0..PROMPTS).map(PromptId) {
            let launched = Event::Launched { step, prompt, samples: SAMPLES, prompt_length: 200 };
            self.deliver(policy, 0.0, launched);
        }
        let lengths = lengths(step.0 + 1);
        let mut order: Vec<_> = lengths.iter().map(|(id, length)| (*length, *id)).collect();
        order.sort_by(|one, other| one.0.total_cmp(&other.0));
        let mut groups: BTreeMap<u64, (u32, f64)> = BTreeMap::new();
        for (ended, (length, (prompt, sample))) in order.iter().enumerate() {
            let running = order.len() - ended;
            self.decode(*length, running);
            let held = (running - 1) as f64 * (length + 200.0);
            let id = SampleId { step, prompt: PromptId(*prompt), sample: *sample };
            let (tokens, finish_reason) = (*length as u32, FinishReason::Stop);
            let ended = Event::Response { id, tokens, resumed: 0, finish_reason, preemptions: 0 };
            self.deliver(policy, held, ended);
            let group = groups.entry(*prompt).or_default();
            *group = (group.0 + 1, group.1 + length + 200.0);
            if group.0 == SAMPLES {
                self.waiting += group.1;
                let prompt = PromptId(*prompt);
                self.deliver(policy, held, Event::Admitted { step, prompt, samples: SAMPLES });
            }
        }
        self.deliver(policy, 0.0, Event::Closed { step });
        self.deliver(policy, 0.0, Event::Drained { step });
        self.spend(self.cost.training(self.training_devices, self.waiting.max(1.0)));
        self.now - start
    }
}

/// Returns the mean seconds of five steps after one that fills the history.
fn seconds(options: StreamTrainerOptions, cost: Roofline) -> f64 {
    let planner = Planner::new(Rule::Fixed, JOB, 2).unwrap();
    let mut policy = StreamTrainer::new(options, planner, cost).unwrap();
    let rollout = Placement { instances: 0, tensor_parallel: 2 };
    let mut world =
        World { cost, now: 0.0, tokens: 0.0, rollout, training_devices: 0, waiting: 0.0 };
    let steps: Vec<f64> = (0..6).map(|step| world.step(&mut policy, Step(step))).collect();
    steps[1..].iter().sum::<f64>() / 5.0
}

fn with(trigger: Trigger) -> StreamTrainerOptions {
    StreamTrainerOptions { rounds: RoundFilter::All, trigger, ..StreamTrainerOptions::paper() }
}

#[test]
fn no_fixed_or_adaptive_trigger_beats_the_predicted_one() {
    for trainer in [0.25, 1.0, 4.0] {
        let cost = Roofline { trainer };
        let predicted = seconds(with(Trigger::Predicted { from: 0.2, every: 0.02 }), cost);
        let fixed = (2..20).map(|part| Trigger::Fixed { share: f64::from(part) / 20.0 });
        let others = fixed.chain([Trigger::Never, StreamTrainerOptions::paper().trigger]);
        for other in others {
            let time = seconds(with(other), cost);
            assert!(predicted < time * 1.02, "{other:?} ends in {time} s, not {predicted} s");
        }
    }
}

#[test]
fn consolidation_shortens_the_step_further() {
    let cost = Roofline { trainer: 1.0 };
    let trigger = Trigger::Predicted { from: 0.2, every: 0.02 };
    let without = seconds(with(trigger), cost);
    let wider = seconds(StreamTrainerOptions { consolidate: true, ..with(trigger) }, cost);
    assert!(wider < without, "{wider} s with, {without} s without");
}
