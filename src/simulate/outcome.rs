//! Outcomes: what a simulated run was like, step by step.

use std::collections::BTreeMap;

use arrow::datatypes::{Float32Type, UInt32Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::schema::column;
use rollpacker_operators::report::{Observer, StepReport, measure};
use rollpacker_operators::survival::Survival;
use rollpacker_stages::rollout::FinishReason;
use rollpacker_stages::train::Metrics;
use serde::Serialize;

use super::gantt::{Gantt, TrainingLog};

/// A run with one seed.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Outcome {
    /// The steps that count, in order.
    pub steps: Vec<StepOutcome>,
    /// How much each length was trained on: the sum of the weights of its responses.
    pub trained: BTreeMap<u32, f64>,
    /// The lengths of all launched responses, aborted ones censored.
    pub launched: Survival,
    /// Who worked when, in the step that was asked for.
    pub gantt: Option<Gantt>,
}

/// A step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepOutcome {
    /// Its number, from 1.
    pub step: u64,
    /// `full`, `short` or `long`.
    pub round: String,
    /// Seconds since the step before it was complete.
    pub seconds: f64,
    /// What these seconds went to.
    pub stages: Stages,
    /// Response tokens that were trained on.
    pub trained_tokens: f64,
    /// Responses that were trained on.
    pub trained_responses: f64,
    /// All other numbers, by name.
    pub metrics: Metrics,
}

/// The seconds of a step by the stage that it waited for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stages {
    /// New weights on their way to the rollout.
    pub sync: f64,
    /// From then on, until the last response ended: requests handed out, prefill and decoding.
    pub rollout: f64,
    /// From then on, until the last reward was known.
    pub reward: f64,
    /// The rest: training that nothing hid.
    pub training: f64,
}

impl Stages {
    /// Names and seconds, in the order of a step.
    #[must_use]
    pub fn named(&self) -> [(&'static str, f64); 4] {
        [
            ("sync", self.sync),
            ("rollout", self.rollout),
            ("reward", self.reward),
            ("training", self.training),
        ]
    }
}

/// Makes an [`Outcome`] of the reports of steps.
#[derive(Debug, Default)]
pub struct Recorder {
    outcome: Outcome,
    warmup_steps: u64,
    gantt: Charted,
    training: TrainingLog,
    /// What the transfer of new weights takes, seconds.
    weight_sync: f64,
    /// When the step before was complete.
    before: Nanos,
}

/// Which step has its Gantt chart kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Charted {
    /// None.
    #[default]
    None,
    /// The one that took longest.
    Slowest,
    /// The one of this number, from 1.
    Step(u64),
}

impl Recorder {
    /// Leaves the first `warmup_steps` out, and charts the step that `gantt` says with what `training` logs.
    #[must_use]
    pub fn new(warmup_steps: u64, gantt: Charted, training: TrainingLog) -> Self {
        Self { warmup_steps, gantt, training, ..Self::default() }
    }

    /// Tells the transfer of weights, which takes so many seconds, from what else happens before the first response is taken up.
    #[must_use]
    pub fn with_weight_sync(self, seconds: f64) -> Self {
        Self { weight_sync: seconds, ..self }
    }

    /// What was recorded so far.
    #[must_use]
    pub fn take(&mut self) -> Outcome {
        std::mem::take(&mut self.outcome)
    }

    fn charts(&self, step: u64, seconds: f64) -> bool {
        match self.gantt {
            Charted::None => false,
            Charted::Step(number) => number == step,
            Charted::Slowest => {
                step > self.warmup_steps
                    && self.outcome.gantt.as_ref().is_none_or(|kept| kept.seconds < seconds)
            }
        }
    }
}

impl Observer for Recorder {
    fn step(&mut self, report: StepReport) {
        let from = std::mem::replace(&mut self.before, report.closed);
        let number = report.step.0 + 1;
        let seconds = report.closed.since(from).as_secs_f64();
        let intervals = self.training.take_until(report.closed);
        if self.charts(number, seconds) {
            self.outcome.gantt = Some(Gantt::of(&report, from, &intervals));
        }
        if number <= self.warmup_steps {
            return;
        }
        let (trained_tokens, trained_responses) = self.outcome.observe(&report);
        let metrics = measure(&report);
        self.outcome.steps.push(StepOutcome {
            step: number,
            round: round(&report.decisions),
            seconds,
            stages: Stages::of(&metrics, seconds, self.weight_sync),
            trained_tokens,
            trained_responses,
            metrics,
        });
    }
}

impl Outcome {
    /// Adds the lengths of a step; tokens and responses that were trained on.
    fn observe(&mut self, report: &StepReport) -> (f64, f64) {
        for batch in &report.responses {
            let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
            let reasons = batch.text(column::FINISH_REASON);
            for (&tokens, reason) in tokens.iter().zip(reasons.iter()) {
                match reason.and_then(|reason| reason.parse::<FinishReason>().ok()) {
                    // It goes on in a later step, and is observed there.
                    Some(FinishReason::Pause) => {}
                    reason => {
                        self.launched.observe(tokens, reason.is_some_and(FinishReason::is_whole))
                    }
                }
            }
        }
        let (mut sum, mut count) = (0.0, 0.0);
        for batch in &report.groups {
            let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
            let weights = batch.values::<Float32Type>(column::WEIGHT).values();
            for (&tokens, &weight) in tokens.iter().zip(weights) {
                *self.trained.entry(tokens).or_default() += f64::from(weight);
                (sum, count) = (sum + f64::from(tokens), count + 1.0);
            }
        }
        (sum, count)
    }
}

fn round(decisions: &[Batch]) -> String {
    let rounds = decisions.iter().flat_map(|batch| batch.text(column::ROUND).iter().flatten());
    rounds.last().unwrap_or("full").to_owned()
}

impl Stages {
    /// What the `seconds` of a step went to, by its metrics. A stale step overlaps with the one before: what it did meanwhile is left out.
    fn of(metrics: &Metrics, seconds: f64, weight_sync: f64) -> Self {
        let [before, generating, reward, training] =
            ["weight_sync", "gen", "reward_exposed", "training_exposed"]
                .map(|stage| metrics.get(&format!("timing_s/{stage}")).copied().unwrap_or(0.0));
        let sync = before.min(weight_sync);
        let rollout = before - sync + generating;
        let mut overlap = (sync + rollout + reward + training - seconds).max(0.0);
        let mut alone = |stage: f64| {
            let hidden = stage.min(overlap);
            overlap -= hidden;
            stage - hidden
        };
        Self {
            sync: alone(sync),
            rollout: alone(rollout),
            reward: alone(reward),
            training: alone(training),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_overlaps_with_the_step_before_is_left_out_from_the_front() {
        let metrics: Metrics = [
            ("timing_s/weight_sync", 5.0),
            ("timing_s/gen", 60.0),
            ("timing_s/reward_exposed", 3.0),
            ("timing_s/training_exposed", 20.0),
        ]
        .map(|(name, value)| (name.to_owned(), value))
        .into();
        let stages =
            |seconds| Stages::of(&metrics, seconds, 4.0).named().map(|(_, seconds)| seconds);
        assert_eq!(stages(88.0), [4.0, 61.0, 3.0, 20.0]);
        assert_eq!(stages(70.0), [0.0, 47.0, 3.0, 20.0]);
    }
}
