//! Summaries: what the runs of one configuration say together, beside the baseline's.

use std::collections::BTreeMap;

use rollpacker_stages::train::Metrics;
use serde::Serialize;

use super::bias;
use super::outcome::{Outcome, Stages, StepOutcome};

/// A mean over seeds and its spread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Stat {
    /// The mean.
    pub mean: f64,
    /// The standard deviation over seeds; 0 for one.
    pub sd: f64,
}

impl Stat {
    /// Of one value a seed; `None` for none.
    #[must_use]
    pub fn of(values: &[f64]) -> Option<Self> {
        let count = values.len() as f64;
        if values.is_empty() {
            return None;
        }
        let mean = values.iter().sum::<f64>() / count;
        let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
        let sd = if values.len() > 1 { (squares / (count - 1.0)).sqrt() } else { 0.0 };
        Some(Self { mean, sd })
    }
}

/// The steps of one kind of round.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct RoundSummary {
    /// Their share of all steps.
    pub share: f64,
    /// Seconds of one.
    pub step_s: Stat,
}

/// How the lengths that were trained on stand to the policy's.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Bias {
    /// Mean length trained on over the policy's; weights counted.
    pub mean_ratio: Option<Stat>,
    /// The same of the 90th percentiles.
    pub p90_ratio: Option<Stat>,
    /// The same of the 99th.
    pub p99_ratio: Option<Stat>,
    /// Trained share over the policy's share, of the bucket of lengths where it is least.
    pub least_inclusion: Option<Stat>,
    /// The same by bucket, in the order of lengths.
    pub inclusion: Vec<(String, Stat)>,
    /// Effective sample size over responses: 1 without weights.
    pub ess: Option<Stat>,
    /// Share of sampled tokens that were not trained on.
    pub discarded: Option<Stat>,
}

/// What the runs of one configuration say.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Summary {
    /// Its name in tables.
    pub label: String,
    /// What it overrides in the job.
    pub settings: Vec<String>,
    /// How many seeds were run.
    pub seeds: usize,
    /// Steps of a run.
    pub steps: usize,
    /// Seconds of a step.
    pub step_s: Stat,
    /// The same by kind of round.
    pub rounds: BTreeMap<String, RoundSummary>,
    /// Mean seconds by stage.
    pub stages: Stages,
    /// How empty engines stood during rollouts.
    pub bubble_ratio: Option<Stat>,
    /// Share of the time in which the trainer waited.
    pub waiting_ratio: Option<Stat>,
    /// Response tokens trained on in a second.
    pub tokens_per_s: Stat,
    /// What it costs statistically.
    pub bias: Bias,
    /// Whether every trained token was sampled by the weights that are updated.
    pub on_policy: bool,
    /// Steps in the time of one of the baseline.
    pub speedup: Option<Stat>,
    /// Trained tokens in the time of one of the baseline.
    pub token_speedup: Option<Stat>,
}

/// Names of metrics that summaries read.
mod metric {
    pub(super) const BUBBLE: &str = "rollout/bubble_ratio";
    pub(super) const WAITING: &str = "trainer/waiting_ratio";
    pub(super) const LAUNCHED: &str = "rollout/launched_tokens";
    pub(super) const DISCARDED: &str = "rollout/discarded_tokens";
    pub(super) const INCLUSION: &str = "bias/inclusion/";
    pub(super) const ESS: &str = "bias/ess";
}

impl Summary {
    /// Of the runs of a configuration, and those of its baseline, seed by seed; it may be the baseline itself.
    ///
    /// `None` where no step counts.
    #[must_use]
    pub fn of(
        label: String,
        settings: Vec<String>,
        runs: &[Outcome],
        baseline: &[Outcome],
        on_policy: bool,
    ) -> Option<Self> {
        let all = || runs.iter().flat_map(|run| &run.steps);
        let pace = |run: &Outcome| (step_s(run), tokens_per_s(run));
        let beside = || runs.iter().map(pace).zip(baseline.iter().map(pace));
        Some(Self {
            label,
            settings,
            seeds: runs.len(),
            steps: runs.first()?.steps.len(),
            step_s: stat(runs, |run| Some(step_s(run)))?,
            rounds: rounds(runs),
            stages: mean_stages(all()),
            bubble_ratio: stat(runs, |run| mean_of(run, metric::BUBBLE)),
            waiting_ratio: stat(runs, |run| mean_of(run, metric::WAITING)),
            tokens_per_s: stat(runs, |run| Some(tokens_per_s(run)))?,
            bias: Bias::of(runs, baseline),
            on_policy,
            speedup: Stat::of(&beside().map(|(own, base)| base.0 / own.0).collect::<Vec<_>>()),
            token_speedup: Stat::of(
                &beside().map(|(own, base)| own.1 / base.1).collect::<Vec<_>>(),
            ),
        })
    }
}

impl Bias {
    /// As the run's own ledger has it where that is exact; otherwise beside the lengths of the baseline, seed by seed: it trains on all that
    /// the policy samples.
    fn of(runs: &[Outcome], baseline: &[Outcome]) -> Self {
        let estimated = |run: &Outcome, name: &str| {
            last(run, &format!("bias/weighted_{name}")).or(last(run, &format!("bias/{name}")))
        };
        let ratio = |name: &str, known: &dyn Fn(&Outcome, &Outcome) -> Option<f64>| {
            let of = |(run, base)| {
                let known = if is_exact(run) { None } else { known(run, base) };
                known.or_else(|| estimated(run, name))
            };
            Stat::of(&runs.iter().zip(baseline).filter_map(of).collect::<Vec<_>>())
        };
        let inclusion = inclusion(runs, baseline);
        let least = inclusion.iter().map(|(_, stat)| *stat);
        Self {
            mean_ratio: ratio("mean_ratio", &bias::mean_ratio),
            p90_ratio: ratio("p90_ratio", &|run, base| bias::quantile_ratio(run, base, 0.9)),
            p99_ratio: ratio("p99_ratio", &|run, base| bias::quantile_ratio(run, base, 0.99)),
            least_inclusion: least.min_by(|a, b| a.mean.total_cmp(&b.mean)),
            inclusion,
            ess: stat(runs, |run| last(run, metric::ESS)),
            discarded: stat(runs, discarded),
        }
    }

    /// Whether the mean length is within `tolerance` of the policy's, and no more than a twentieth of the sample is lost to weights.
    #[must_use]
    pub fn is_low(&self, tolerance: f64) -> bool {
        let near = self.mean_ratio.is_some_and(|ratio| (ratio.mean - 1.0).abs() <= tolerance);
        near && self.ess.is_none_or(|ess| ess.mean >= LEAST_ESS)
    }
}

/// Least effective sample size of a configuration that is called one of low bias.
pub const LEAST_ESS: f64 = 0.95;

/// Whether the run's own ledger knows the policy's lengths: no response was dropped because its siblings were shorter. It is then nearer than
/// the baseline, whose responses are others.
fn is_exact(run: &Outcome) -> bool {
    let bounds = ["bias/policy_mean", "bias/policy_mean_low"].map(|name| last(run, name));
    matches!(bounds, [Some(estimate), Some(low)] if (estimate - low).abs() <= 1e-3 * estimate)
}

fn stat(runs: &[Outcome], value: impl Fn(&Outcome) -> Option<f64>) -> Option<Stat> {
    Stat::of(&runs.iter().filter_map(value).collect::<Vec<_>>())
}

fn step_s(run: &Outcome) -> f64 {
    mean(run.steps.iter().map(|step| step.seconds))
}

fn tokens_per_s(run: &Outcome) -> f64 {
    let sum = |of: fn(&StepOutcome) -> f64| run.steps.iter().map(of).sum::<f64>();
    sum(|step| step.trained_tokens) / sum(|step| step.seconds).max(f64::MIN_POSITIVE)
}

fn discarded(run: &Outcome) -> Option<f64> {
    let sum = |name: &str| run.steps.iter().filter_map(|step| step.metrics.get(name)).sum::<f64>();
    let launched = sum(metric::LAUNCHED);
    (launched > 0.0).then(|| sum(metric::DISCARDED) / launched)
}

fn mean_of(run: &Outcome, name: &str) -> Option<f64> {
    let values: Vec<f64> =
        run.steps.iter().filter_map(|step| step.metrics.get(name).copied()).collect();
    (!values.is_empty()).then(|| mean(values.into_iter()))
}

/// The value at the end of a run, of a metric that is kept over the whole of it.
fn last(run: &Outcome, name: &str) -> Option<f64> {
    run.steps.iter().rev().find_map(|step| step.metrics.get(name).copied())
}

fn inclusion(runs: &[Outcome], baseline: &[Outcome]) -> Vec<(String, Stat)> {
    let known: Vec<Vec<(String, f64)>> =
        runs.iter().zip(baseline).map(|(run, base)| bias::inclusion(run, base)).collect();
    let exact = runs.iter().all(is_exact);
    let buckets = known.first().filter(|buckets| !buckets.is_empty() && !exact);
    let Some(buckets) = buckets else { return estimated_inclusion(runs) };
    let of = |bucket: &String| {
        let values = known.iter().filter_map(|buckets| {
            buckets.iter().find(|(name, _)| name == bucket).map(|(_, value)| *value)
        });
        Stat::of(&values.collect::<Vec<_>>())
    };
    buckets.iter().filter_map(|(bucket, _)| Some((bucket.clone(), of(bucket)?))).collect()
}

fn estimated_inclusion(runs: &[Outcome]) -> Vec<(String, Stat)> {
    let metrics = |run: &Outcome| run.steps.last().map(|step| step.metrics.clone());
    let ends: Vec<Metrics> = runs.iter().filter_map(metrics).collect();
    let mut buckets: Vec<(&str, u64)> = ends
        .first()
        .into_iter()
        .flat_map(Metrics::keys)
        .filter_map(|name| name.strip_prefix(metric::INCLUSION))
        .map(|bucket| {
            (bucket, bucket.split('_').next().and_then(|low| low.parse().ok()).unwrap_or(0))
        })
        .collect();
    buckets.sort_by_key(|&(_, low)| low);
    let of = |bucket: &str| {
        let name = format!("{}{bucket}", metric::INCLUSION);
        Stat::of(&ends.iter().filter_map(|end| end.get(&name).copied()).collect::<Vec<_>>())
    };
    buckets.into_iter().filter_map(|(bucket, _)| Some((bucket.to_owned(), of(bucket)?))).collect()
}

fn rounds(runs: &[Outcome]) -> BTreeMap<String, RoundSummary> {
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
        Some(RoundSummary { share: count as f64 / total as f64, step_s: Stat::of(means)? })
    };
    kinds
        .into_iter()
        .filter_map(|(kind, (count, means))| Some((kind.to_owned(), summary(count, &means)?)))
        .collect()
}

fn mean_stages<'a>(steps: impl Iterator<Item = &'a StepOutcome> + Clone) -> Stages {
    let of = |stage: fn(&Stages) -> f64| mean(steps.clone().map(|step| stage(&step.stages)));
    Stages {
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

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A run whose steps take these seconds, in rounds of these kinds.
    pub(crate) fn run(steps: &[(&str, f64)], metrics: &[(&str, f64)]) -> Outcome {
        let metrics: Metrics =
            metrics.iter().map(|&(name, value)| (name.to_owned(), value)).collect();
        let step = |(number, &(round, seconds)): (u64, &(&str, f64))| StepOutcome {
            step: number,
            round: round.to_owned(),
            seconds,
            stages: Stages {
                sync: 1.0,
                rollout: seconds / 2.0,
                reward: 0.5,
                training: seconds / 2.0 - 1.5,
            },
            trained_tokens: 1000.0,
            trained_responses: 8.0,
            metrics: metrics.clone(),
        };
        Outcome { steps: (1..).zip(steps).map(step).collect(), ..Outcome::default() }
    }

    #[test]
    fn speed_ups_are_taken_seed_by_seed() {
        let baseline = [run(&[("full", 20.0)], &[]), run(&[("full", 40.0)], &[])];
        let runs = [run(&[("short", 10.0)], &[]), run(&[("short", 10.0)], &[])];
        let summary = Summary::of(String::new(), vec![], &runs, &baseline, true).expect("steps");
        let speedup = summary.speedup.expect("a baseline");
        assert_eq!(speedup.mean, 3.0);
        assert!((speedup.sd - 2f64.sqrt()).abs() < 1e-12);
        assert_eq!(summary.token_speedup, summary.speedup);
    }

    #[test]
    fn rounds_are_told_apart() {
        let runs = [run(&[("short", 10.0), ("short", 12.0), ("long", 40.0), ("short", 14.0)], &[])];
        let summary = Summary::of(String::new(), vec![], &runs, &runs, true).expect("steps");
        let rounds: Vec<_> = summary
            .rounds
            .iter()
            .map(|(kind, round)| (kind.as_str(), round.share, round.step_s.mean))
            .collect();
        assert_eq!(rounds, [("long", 0.25, 40.0), ("short", 0.75, 12.0)]);
        assert_eq!(summary.step_s.mean, 19.0);
    }

    #[test]
    fn weighted_ratios_are_preferred_and_low_bias_needs_mean_and_sample_size() {
        let metrics =
            [("bias/mean_ratio", 0.8), ("bias/weighted_mean_ratio", 0.99), ("bias/ess", 0.97)];
        let bias = Bias::of(&[run(&[("short", 1.0)], &metrics)], &[run(&[("full", 1.0)], &[])]);
        assert_eq!(bias.mean_ratio.map(|ratio| ratio.mean), Some(0.99));
        assert!(bias.is_low(0.03) && !bias.is_low(0.005));
        let weighty = Bias { ess: Some(Stat { mean: 0.9, sd: 0.0 }), ..bias };
        assert!(!weighty.is_low(0.03));
    }
}
