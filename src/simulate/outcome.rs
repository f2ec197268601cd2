//! Outcomes: the measurements of a simulated run, step by step.

use std::collections::BTreeMap;

use arrow_array::types::{Float32Type, UInt32Type};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
pub use rollpacker_operators::report::StageTimes;
use rollpacker_operators::report::{Observer, StageInstants, StepReport, measure};
use rollpacker_operators::rollout::is_returned_whole;
use rollpacker_operators::schedule::RoundKind;
use rollpacker_operators::survival::Survival;
use rollpacker_stages::rollout::{FinishReason, Placement as Instances};
use rollpacker_stages::train::Metrics;
use serde::Serialize;

use super::gantt::{Gantt, TrainingLog};
use crate::timeline::TimelineStep;
use crate::timeline::continuations::Continuations;

/// The number of rounds by kind and by the instances that they began with.
pub type RoundCounts = BTreeMap<(RoundKind, Instances), u64>;

/// The outcome of a run with one seed, without the steps of the warm-up. Only `gantt` may show a step of the warm-up.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RunOutcome {
    /// The steps after the warm-up, in order.
    pub steps: Vec<StepOutcome>,
    /// The trained responses by length in tokens: for each length, the sum of the weights of its responses.
    pub trained: BTreeMap<u32, f64>,
    /// The lengths of the launched responses in tokens, each once; aborted responses are censored. A paused response is added when it ends.
    pub launched: Survival,
    /// The Gantt chart of the requested step; `None` if no step was requested or the run does not reach it.
    pub gantt: Option<Gantt>,
    /// The timeline of the first steps after the warm-up, at most as many as were requested. A job records it for its first seed only.
    pub timeline: Vec<TimelineStep>,
    /// The number of rounds by kind and by the instances that they began with.
    pub instances: RoundCounts,
}

/// The measurements of a step.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct StepOutcome {
    /// The number of the step, from 1.
    pub step: u64,
    /// The kind of the round: `full`, `short` or `long`.
    pub round: String,
    /// Seconds since the previous step was complete; for the first step of a run, seconds since its round opened.
    pub seconds: f64,
    /// The seconds of each stage, without the part that overlaps with the previous step.
    pub stages: StageTimes,
    /// The number of response tokens that were trained on.
    pub trained_tokens: f64,
    /// The number of responses that were trained on.
    pub trained_responses: f64,
    /// All metrics of the step, by name.
    pub metrics: Metrics,
}

/// An observer that collects a [`RunOutcome`] from the reports of steps.
#[derive(Debug, Default)]
pub struct Recorder {
    /// The outcome so far.
    outcome: RunOutcome,
    /// The number of first steps that are not recorded.
    warmup_steps: u64,
    gantt: GanttStep,
    /// The number of steps after the warm-up whose timeline is kept.
    traced_steps: u64,
    continuations: Continuations,
    training: TrainingLog,
}

/// The step whose Gantt chart is recorded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum GanttStep {
    /// No chart is recorded.
    #[default]
    None,
    /// The step that took longest, after the warm-up.
    Slowest,
    /// The step with this number, from 1.
    Step(u64),
}

impl Recorder {
    /// Creates a recorder that skips the first `warmup_steps`, charts the step that `gantt` selects with the intervals of `training`, and
    /// keeps the timeline of the first `traced_steps` after the warm-up.
    #[must_use]
    pub fn new(
        warmup_steps: u64,
        gantt: GanttStep,
        traced_steps: u64,
        training: TrainingLog,
    ) -> Self {
        Self { warmup_steps, gantt, traced_steps, training, ..Self::default() }
    }

    /// Returns the outcome recorded so far and starts a new outcome.
    #[must_use]
    pub fn take(&mut self) -> RunOutcome {
        let continuations = std::mem::take(&mut self.continuations);
        let mut outcome = std::mem::take(&mut self.outcome);
        outcome.timeline.iter_mut().for_each(|step| continuations.complete(step));
        outcome
    }

    fn is_charted(&self, step: u64, seconds: f64) -> bool {
        match self.gantt {
            GanttStep::None => false,
            GanttStep::Step(number) => number == step,
            GanttStep::Slowest => {
                step > self.warmup_steps
                    && self.outcome.gantt.as_ref().is_none_or(|kept| kept.seconds < seconds)
            }
        }
    }
}

impl Observer for Recorder {
    fn step(&mut self, report: StepReport) {
        let number = report.step.0 + 1;
        let seconds = report.closed.since(report.before).as_secs_f64();
        let intervals = self.training.take_until(report.closed);
        if self.is_charted(number, seconds) {
            self.outcome.gantt = Some(Gantt::of(&report, report.before, &intervals));
        }
        if number <= self.warmup_steps {
            return;
        }
        let (trained_tokens, trained_responses) = self.outcome.observe(&report);
        let (round, metrics) = (round(&report.decisions), measure(&report));
        if self.traced_steps > 0 {
            let step = TimelineStep::of(&report, round.clone(), &metrics, &intervals);
            let is_kept = number - self.warmup_steps <= self.traced_steps;
            self.continuations.observe(number, &step.responses, is_kept);
            self.outcome.timeline.extend(is_kept.then_some(step));
        }
        self.outcome.steps.push(StepOutcome {
            step: number,
            round,
            seconds,
            stages: StageTimes::of(&StageInstants::of(&report)),
            trained_tokens,
            trained_responses,
            metrics,
        });
    }
}

impl RunOutcome {
    /// Adds the lengths of a step. Returns the numbers of tokens and responses that were trained on.
    fn observe(&mut self, report: &StepReport) -> (f64, f64) {
        for batch in &report.responses {
            let tokens = batch.values::<UInt32Type>(column::RESPONSE_LENGTH).values();
            let resumed = batch.values::<UInt32Type>(column::RESUMED_LENGTH).values();
            let reasons = batch.text(column::FINISH_REASON).iter();
            for ((&tokens, &resumed), reason) in tokens.iter().zip(resumed).zip(reasons) {
                match reason.and_then(|reason| reason.parse::<FinishReason>().ok()) {
                    // The response continues in a later step and is observed there.
                    Some(FinishReason::Pause) => {}
                    // The response was already observed in the step that kept it.
                    Some(reason) if is_returned_whole(reason, tokens, resumed) => {}
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

#[cfg(test)]
mod tests {
    use rollpacker_stages::metrics::Metric;

    use super::*;
    use crate::simulate::job::Job;
    use crate::simulate::run::run;
    use crate::simulate::variant;

    fn outcome(settings: &[&str]) -> RunOutcome {
        traced(settings, 0)
    }

    fn traced(settings: &[&str], traced_steps: u64) -> RunOutcome {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("job.toml");
        std::fs::write(&path, "[data]\ntrain_batch_size = 16\n[sim]\nsteps = 6").expect("written");
        let settings: Vec<String> = settings.iter().map(|&setting| setting.to_owned()).collect();
        let job = Job { traced_steps, ..Job::read(&path, &settings).expect("a job") };
        run(&job, 1).expect("simulated")
    }

    // The test drops no prompt, and the queue is empty at the end of the run.
    #[test]
    fn a_response_that_was_kept_is_launched_once() {
        let outcome = outcome(&[
            "schedule.name=tail_batching",
            "schedule.keep_partial=true",
            "schedule.eta_responses=1",
        ]);
        let trained: f64 = outcome.steps.iter().map(|step| step.trained_responses).sum();
        assert!(outcome.steps.iter().any(|step| step.round == "long"));
        assert_eq!(outcome.launched.count() as f64, trained);
    }

    #[test]
    fn a_timeline_shows_which_responses_later_steps_train_on() {
        for name in ["sync", "tail_batching", "partial", "sorted partial"] {
            let variant = variant::all().find(|variant| variant.label == name).expect("a variant");
            let settings: Vec<String> = variant.overrides().collect();
            let settings: Vec<&str> = settings.iter().map(String::as_str).collect();
            let timeline = traced(&settings, 3).timeline;
            let responses = || timeline.iter().flat_map(|step| &step.responses);
            assert!(responses().all(|one| one.trained == one.score.is_some()), "{name}");
            let later = responses().filter(|one| one.trained && one.scoring.is_none()).count();
            let resumes = ["partial", "sorted partial"].contains(&name);
            assert_eq!(later > 0, resumes, "{name}: {later}");
        }
    }

    #[test]
    fn the_warm_up_is_in_no_column() {
        let outcome = outcome(&["schedule.name=sync", "sim.warmup_steps=4"]);
        let weights: f64 = outcome.trained.values().sum();
        let tokens = outcome.trained.iter().map(|(&tokens, weight)| f64::from(tokens) * weight);
        let mean = tokens.sum::<f64>() / weights;
        let [first, .., last] = &outcome.steps[..] else { panic!("six steps") };
        assert_eq!((first.step, last.step), (5, 10));
        assert!((last.metrics["bias/policy_mean"] / mean - 1.0).abs() < 1e-9);
    }

    #[test]
    fn each_metric_is_in_the_table() {
        for settings in [&["schedule.name=tail_batching"][..], &["pipeline.placement=stream"]] {
            for step in outcome(settings).steps {
                for name in step.metrics.keys() {
                    assert!(Metric::find(name).is_some(), "no row for the metric {name}");
                }
            }
        }
    }

    #[test]
    fn metrics_and_stages_agree_on_the_parts_of_a_step() {
        for staleness in ["pipeline.staleness=0", "pipeline.staleness=1"] {
            let outcome =
                outcome(&["schedule.name=sync", "pipeline.placement=separate", staleness]);
            for step in &outcome.steps {
                let names = ["weight_sync", "rollout", "reward_exposed", "training_exposed"];
                let measured = names.map(|name| step.metrics[&format!("timing_s/{name}")]);
                let stages = step.stages.named().map(|(_, seconds)| seconds);
                assert_eq!(measured, stages);
                assert!((stages.iter().sum::<f64>() - step.seconds).abs() < 1e-6, "{step:?}");
                assert!((step.metrics["perf/time_per_step"] - step.seconds).abs() < 1e-6);
            }
        }
    }
}
