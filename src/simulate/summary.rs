//! Summaries: statistics of the runs of one configuration, relative to its baseline.

use std::collections::BTreeMap;

use serde::Serialize;

pub use super::bias::{LengthBias, MIN_ESS};
use super::configuration::ConfigurationRuns;
use super::correlation_ends::{CorrelationEnds, LowHigh};
use super::interval::SpeedupInterval;
use super::outcome::{RunOutcome, StageTimes, StepOutcome};
use super::setup::Setup;
use super::stat::{SeedStat, stat};

/// Statistics of the steps of one kind of round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundSummary {
    /// The share of these steps in all steps.
    pub share: f64,
    /// The mean duration of such a step in seconds.
    pub step_s: SeedStat,
}

/// Statistics of the runs of one configuration. A statistic is `None` if no run has the value.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// The name of the configuration in tables.
    pub label: String,
    /// The job of the configuration: the values of the swept keys that do not belong to the schedule; empty if no such key is swept.
    pub job: String,
    /// The settings that the sweep adds to the job file, `key=value` each.
    pub settings: Vec<String>,
    /// The effective parallelism, placement and hand-out.
    pub setup: Setup,
    /// The number of seeds.
    pub seeds: usize,
    /// The number of measured steps of a run.
    pub steps: usize,
    /// The mean duration of a step in seconds.
    pub step_s: SeedStat,
    /// The steps by kind of round: `full`, `short` or `long`.
    pub rounds: BTreeMap<String, RoundSummary>,
    /// Mean seconds of a step by stage.
    pub stages: StageTimes,
    /// The mean share of the engine's slots that were idle during a rollout. The number of slots is the maximum number of responses
    /// that ran at once in the step.
    pub bubble_ratio: Option<SeedStat>,
    /// The mean share of a step in which the trainer was idle.
    pub waiting_ratio: Option<SeedStat>,
    /// Trained response tokens per second.
    pub tokens_per_s: SeedStat,
    /// Length bias, effective sample size and discarded tokens.
    pub bias: LengthBias,
    /// `true` if every trained token was sampled by the weights that the update changes.
    pub on_policy: bool,
    /// Speed-up of a step over the baseline, which is `sync` with the same settings except the settings of the schedule.
    pub speedup: Option<SeedStat>,
    /// The interval in which the true value of `speedup` is expected.
    pub speedup_interval: Option<SpeedupInterval>,
    /// Speed-up over the baseline in trained tokens per second.
    pub token_speedup: Option<SeedStat>,
    /// Speed-up of a step over the job's plain `sync`, the baseline with the fewest settings.
    pub speedup_over_sync: Option<SeedStat>,
    /// The interval in which the true value of `speedup_over_sync` is expected.
    pub over_sync_interval: Option<SpeedupInterval>,
    /// The figures at both ends of the within-prompt correlation, if a trace does not determine the correlation. All other fields then
    /// describe the lower end.
    pub ends: Option<CorrelationEnds>,
}

/// Names of metrics that summaries read.
mod metric {
    pub(super) const BUBBLE: &str = "rollout/bubble_ratio";
    pub(super) const WAITING: &str = "trainer/waiting_ratio";
}

impl Summary {
    /// Summarizes the runs of a configuration relative to its baseline and to the plain `sync` of its job, seed by seed. Either of them may
    /// be the configuration itself. Returns `None` if there are no measured steps.
    #[must_use]
    pub fn of(
        run: &ConfigurationRuns,
        baseline: &ConfigurationRuns,
        sync: &ConfigurationRuns,
    ) -> Option<Self> {
        let runs = &run.outcomes;
        let (speedup, over_sync) = (ratio(baseline, run, step_s), ratio(sync, run, step_s));
        Some(Self {
            label: run.label.clone(),
            job: run.job.clone(),
            settings: run.settings.clone(),
            setup: run.setup.clone(),
            seeds: runs.len(),
            steps: runs.first().map(|run| run.steps.len()).filter(|steps| *steps > 0)?,
            step_s: stat(runs, |run| Some(step_s(run)))?,
            rounds: rounds(runs),
            stages: mean_stages(runs.iter().flat_map(|run| &run.steps)),
            bubble_ratio: stat(runs, |run| mean_of(run, metric::BUBBLE)),
            waiting_ratio: stat(runs, |run| mean_of(run, metric::WAITING)),
            tokens_per_s: stat(runs, |run| Some(tokens_per_s(run)))?,
            bias: LengthBias::of(runs, &baseline.outcomes),
            on_policy: run.on_policy,
            speedup,
            speedup_interval: speedup.map(|speedup| SpeedupInterval::of(speedup, runs.len())),
            token_speedup: ratio(run, baseline, tokens_per_s),
            speedup_over_sync: over_sync,
            over_sync_interval: over_sync.map(|speedup| SpeedupInterval::of(speedup, runs.len())),
            ends: None,
        })
    }
}

/// Returns the value of `above` divided by the value of `below`, seed by seed; `None` if either has no runs.
fn ratio(
    above: &ConfigurationRuns,
    below: &ConfigurationRuns,
    of: fn(&RunOutcome) -> f64,
) -> Option<SeedStat> {
    let pairs = above.outcomes.iter().zip(&below.outcomes);
    SeedStat::of(&pairs.map(|(above, below)| of(above) / of(below)).collect::<Vec<_>>())
}

fn step_s(run: &RunOutcome) -> f64 {
    mean(run.steps.iter().map(|step| step.seconds))
}

fn tokens_per_s(run: &RunOutcome) -> f64 {
    let sum = |of: fn(&StepOutcome) -> f64| run.steps.iter().map(of).sum::<f64>();
    sum(|step| step.trained_tokens) / sum(|step| step.seconds).max(f64::MIN_POSITIVE)
}

fn mean_of(run: &RunOutcome, name: &str) -> Option<f64> {
    let values: Vec<f64> =
        run.steps.iter().filter_map(|step| step.metrics.get(name).copied()).collect();
    (!values.is_empty()).then(|| mean(values.into_iter()))
}

fn rounds(runs: &[RunOutcome]) -> BTreeMap<String, RoundSummary> {
    let mut kinds: BTreeMap<&str, (usize, Vec<f64>)> = BTreeMap::new();
    let total: usize = runs.iter().map(|run| run.steps.len()).sum();
    for run in runs {
        let mut seconds: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
        for step in &run.steps {
            seconds.entry(&step.round).or_default().push(step.seconds);
        }
        for (kind, seconds) in seconds {
            let entry = kinds.entry(kind).or_default();
            entry.0 += seconds.len();
            entry.1.push(mean(seconds.into_iter()));
        }
    }
    let summary = |count: usize, means: &[f64]| {
        Some(RoundSummary { share: count as f64 / total as f64, step_s: SeedStat::of(means)? })
    };
    kinds
        .into_iter()
        .filter_map(|(kind, (count, means))| Some((kind.to_owned(), summary(count, &means)?)))
        .collect()
}

fn mean_stages<'a>(steps: impl Iterator<Item = &'a StepOutcome> + Clone) -> StageTimes {
    let of = |stage: fn(&StageTimes) -> f64| mean(steps.clone().map(|step| stage(&step.stages)));
    StageTimes {
        sync: of(|stages| stages.sync),
        rollout: of(|stages| stages.rollout),
        reward: of(|stages| stages.reward),
        training: of(|stages| stages.training),
    }
}

fn mean(values: impl Iterator<Item = f64>) -> f64 {
    let (sum, count) = values.fold((0.0, 0.0), |(sum, count), value| (sum + value, count + 1.0));
    if count > 0.0 { sum / count } else { 0.0 }
}

impl CorrelationEnds {
    /// Collects the figures of a configuration at both ends, from its summaries at the lower and at the upper end.
    #[must_use]
    pub fn of(low: &Summary, high: &Summary) -> Self {
        let both = |of: fn(&Summary) -> Option<SeedStat>| {
            Some(LowHigh { low: of(low)?.mean, high: of(high)?.mean })
        };
        let intervals = low.speedup_interval.zip(high.speedup_interval);
        Self {
            step_s: LowHigh { low: low.step_s.mean, high: high.step_s.mean },
            tokens_per_s: LowHigh { low: low.tokens_per_s.mean, high: high.tokens_per_s.mean },
            speedup: both(|summary| summary.speedup),
            speedup_interval: intervals.map(|(low, high)| low.hull(high)),
            token_speedup: both(|summary| summary.token_speedup),
            speedup_over_sync: both(|summary| summary.speedup_over_sync),
            mean_ratio: both(|summary| summary.bias.mean_ratio),
            p90_ratio: both(|summary| summary.bias.p90_ratio),
            p99_ratio: both(|summary| summary.bias.p99_ratio),
            least_inclusion: both(|summary| summary.bias.least_inclusion),
            ess: both(|summary| summary.bias.ess),
            discarded: both(|summary| summary.bias.discarded),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use rollpacker_stages::train::Metrics;

    use super::super::configuration::tests::configured;
    use super::*;

    /// Returns a run with one step for each pair of a kind of round and seconds in `steps`. All steps have the same `metrics`, by name.
    pub(crate) fn run(steps: &[(&str, f64)], metrics: &[(&str, f64)]) -> RunOutcome {
        let metrics: Metrics =
            metrics.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let step = |(number, &(round, seconds)): (u64, &(&str, f64))| StepOutcome {
            step: number,
            round: round.to_owned(),
            seconds,
            stages: StageTimes {
                sync: 1.0,
                rollout: seconds / 2.0,
                reward: 0.5,
                training: seconds / 2.0 - 1.5,
            },
            trained_tokens: 1000.0,
            trained_responses: 8.0,
            metrics: metrics.clone(),
        };
        RunOutcome { steps: (1..).zip(steps).map(step).collect(), ..RunOutcome::default() }
    }

    #[test]
    fn speed_ups_are_taken_seed_by_seed() {
        let seeds = |round, seconds: [f64; 2]| {
            let outcomes = seconds.map(|seconds| run(&[(round, seconds)], &[]));
            configured("", &outcomes)
        };
        let (baseline, runs) = (seeds("full", [20.0, 40.0]), seeds("short", [10.0, 10.0]));
        let summary = Summary::of(&runs, &baseline, &runs).expect("steps");
        let speedup = summary.speedup.expect("a baseline");
        assert_eq!(speedup.mean, 3.0);
        assert!((speedup.sd - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(summary.token_speedup, summary.speedup);
        assert_eq!(summary.speedup_over_sync, Some(SeedStat { mean: 1.0, sd: 0.0 }));
        let (own, sync) = (summary.speedup_interval, summary.over_sync_interval);
        assert!(own.is_some_and(|own| own.low < 2.1 && own.high > 3.9), "{own:?}");
        assert_eq!(sync, Some(SpeedupInterval { low: 1.0, high: 1.0 }));
    }

    #[test]
    fn kinds_of_rounds_are_summarized_separately() {
        let steps = [("short", 10.0), ("short", 12.0), ("long", 40.0), ("short", 14.0)];
        let runs = configured("", &[run(&steps, &[])]);
        let summary = Summary::of(&runs, &runs, &runs).expect("steps");
        let rounds: Vec<_> = summary
            .rounds
            .iter()
            .map(|(kind, round)| (kind.as_str(), round.share, round.step_s.mean))
            .collect();
        assert_eq!(rounds, [("long", 0.25, 40.0), ("short", 0.75, 12.0)]);
        assert_eq!(summary.step_s.mean, 19.0);
    }
}
