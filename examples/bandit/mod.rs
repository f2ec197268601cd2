//! A policy of ten logits, with the smallest engine and trainer that learn. Each example uses a part of it.
#![allow(dead_code, reason = "each example uses a part")]
#![allow(clippy::print_stdout, reason = "a part of programs")]

use std::convert::Infallible;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use rollpacker::dataflow::bridge::Emitter;
use rollpacker::operators::prompts::{PromptRow, prompt_batch};
use rollpacker::prelude::*;

/// The policy: one logit for each of the tokens 0 to 9.
#[derive(Clone, Default)]
pub(crate) struct Logits(Arc<Mutex<[f64; 10]>>);

impl Logits {
    fn probabilities(&self) -> [f64; 10] {
        let weights = self.0.lock().unwrap_or_else(PoisonError::into_inner).map(f64::exp);
        weights.map(|weight| weight / weights.iter().sum::<f64>())
    }

    /// Draws the token of a response, and returns it with its log-probability.
    pub(crate) fn draw(&self, id: SampleId) -> (i32, f32) {
        let probabilities = self.probabilities();
        let mut left = uniform(id);
        let token = probabilities.iter().position(|p| {
            left -= p;
            left < 0.0
        });
        let token = token.unwrap_or(9);
        (token as i32, probabilities[token].ln() as f32)
    }
}

/// Returns the completion of a response of one token.
pub(crate) fn completion(
    id: SampleId,
    version: PolicyVersion,
    token: i32,
    logprob: f32,
) -> Completion {
    Completion {
        id,
        response_length: 1,
        response_ids: vec![token],
        logprobs: vec![logprob],
        token_versions: TokenVersions::of(version, 1),
        text: token.to_string(),
        finish_reason: FinishReason::Stop,
        started: Nanos(0),
        finished: Nanos(1),
        preemptions: 0,
        instance: 0,
    }
}

/// An engine whose responses are one token long: the digit of an arm.
pub(crate) struct Arms {
    logits: Logits,
    version: PolicyVersion,
    ended: Vec<RolloutEvent>,
    waker: Option<Waker>,
}

impl Arms {
    /// Creates an engine that samples from `logits`.
    pub(crate) fn new(logits: Logits) -> Self {
        Self { logits, version: PolicyVersion(0), ended: Vec::new(), waker: None }
    }
}

/// Returns a number in [0, 1) that depends only on the id of the response. The id is hashed with constants of SplitMix64.
fn uniform(id: SampleId) -> f64 {
    let mut bits = (id.step.0 << 32) ^ (id.prompt.0 << 8) ^ u64::from(id.sample);
    for factor in [0x9e37_79b9_7f4a_7c15_u64, 0xbf58_476d_1ce4_e5b9, 0x94d0_49bb_1331_11eb] {
        bits = (bits ^ (bits >> 29)).wrapping_add(1).wrapping_mul(factor);
    }
    (bits >> 11) as f64 / (1_u64 << 53) as f64
}

impl RolloutEngine for Arms {
    fn load(&mut self, policy: &Policy) {
        self.version = policy.version;
    }

    fn generate(&mut self, Request { step, prompt, samples, .. }: Request) {
        for sample in samples {
            let id = SampleId { step, prompt, sample };
            let (token, logprob) = self.logits.draw(id);
            let ended = completion(id, self.version, token, logprob);
            self.ended.push(RolloutEvent::Completed(ended));
        }
        self.waker.iter().for_each(|wake| wake());
    }

    fn abort(&mut self, _id: SampleId) {}

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.ended.pop()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.waker = Some(waker);
    }
}

/// Starts the thread of a trainer that applies REINFORCE to the logits.
pub(crate) fn trainer(logits: Logits) -> anyhow::Result<TrainerThread> {
    let learner = Learner { logits, gradient: [0.0; 10], tokens: 0.0, updates: 0 };
    let start = || Ok::<_, Infallible>(Box::new(learner) as Box<dyn Trainer>);
    Ok(TrainerThread::spawn(Arc::new(WallClock::start()), start)?)
}

struct Learner {
    logits: Logits,
    gradient: [f64; 10],
    tokens: f64,
    updates: u64,
}

impl Learner {
    fn policy(&self) -> Policy {
        Policy {
            version: PolicyVersion(self.updates),
            location: "shared".to_owned(),
            digest: self.updates,
        }
    }
}

impl Trainer for Learner {
    fn publish(&mut self, _version: PolicyVersion) -> Result<Policy, TrainError> {
        Ok(self.policy())
    }

    fn accumulate(&mut self, _step: Step, sequences: &[Sequence<'_>]) -> Result<(), TrainError> {
        let probabilities = self.logits.probabilities();
        for (token, advantage) in
            sequences.iter().flat_map(|one| one.response_ids.iter().zip(one.advantages))
        {
            for (arm, slope) in self.gradient.iter_mut().enumerate() {
                let chosen = f64::from(usize::try_from(*token).is_ok_and(|token| token == arm));
                *slope += f64::from(*advantage) * (chosen - probabilities[arm]);
            }
            self.tokens += 1.0;
        }
        Ok(())
    }

    fn update(&mut self, _step: Step) -> Result<(Policy, Metrics), TrainError> {
        let mut logits = self.logits.0.lock().unwrap_or_else(PoisonError::into_inner);
        logits
            .iter_mut()
            .zip(self.gradient)
            .for_each(|(logit, slope)| *logit += slope / self.tokens.max(1.0));
        drop(logits);
        (self.gradient, self.tokens, self.updates) = ([0.0; 10], 0.0, self.updates + 1);
        Ok((self.policy(), Metrics::new()))
    }

    fn save(&mut self, _folder: &Path) -> Result<(), TrainError> {
        Ok(())
    }
}

/// Returns a function that emits `count` prompts of one token, 0.
pub(crate) fn prompts(count: u64) -> impl FnOnce(&Emitter) -> Result<(), BoxError> + Send {
    move |emitter| {
        let row = |id| PromptRow {
            prompt: PromptId(id),
            data_source: "bandit".to_owned(),
            prompt_ids: vec![0],
            prompt_length: 1,
            ..PromptRow::default()
        };
        // A schedule may end before all prompts are read.
        let _wanted = emitter.send(prompt_batch(&(0..count).map(row).collect::<Vec<_>>()));
        Ok(())
    }
}

/// A reward of 1 for a 7, and 0 otherwise.
pub(crate) struct Sevens;

impl Reward for Sevens {
    async fn score(&self, sample: &Sample, _: &Context) -> Result<Score, RewardError> {
        Ok(f64::from(sample.response == "7").into())
    }
}

/// Prints the share of sevens of each step.
pub(crate) struct Print;

impl Observer for Print {
    fn step(&mut self, report: StepReport) {
        println!("step {:2}: {:.2} sevens", report.step, measure(&report)["critic/score/mean"]);
    }
}
