//! Length bias: the lengths that a schedule trains on, compared with the lengths that the policy samples. In a simulation, the `sync`
//! baseline trains on every response, so its lengths are the lengths of the policy.

use std::collections::BTreeMap;

use serde::Serialize;

use super::outcome::RunOutcome;
use super::stat::{SeedStat, stat};

/// The trained responses by length in tokens: for each length, the sum of the weights of its responses.
type TrainedLengths = BTreeMap<u32, f64>;

/// The exclusive end of the first bucket of lengths, in tokens; each further bucket ends at twice the end of the previous bucket.
const FIRST_BUCKET: u32 = 512;

/// Prefix of the inclusion metrics; the bucket follows.
const INCLUSION_PREFIX: &str = "bias/inclusion/";
/// Metric of the effective sample size.
const ESS_METRIC: &str = "bias/ess";
/// Metric of the tokens that were sampled in a step.
const LAUNCHED_METRIC: &str = "rollout/launched_tokens";
/// Metric of the tokens of responses that a step neither trains on nor keeps for a later step.
const DISCARDED_METRIC: &str = "rollout/discarded_tokens";

/// The lengths of the trained responses relative to the lengths that the policy samples. A statistic is `None` if no run has the value.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct LengthBias {
    /// The weighted mean of the trained lengths divided by the mean length of the policy.
    pub mean_ratio: Option<SeedStat>,
    /// The 90th percentile of the trained lengths divided by the 90th percentile of the policy's lengths.
    pub p90_ratio: Option<SeedStat>,
    /// The 99th percentile of the trained lengths divided by the 99th percentile of the policy's lengths.
    pub p99_ratio: Option<SeedStat>,
    /// The minimum inclusion over all buckets of length. The inclusion of a bucket is its share of the trained responses divided by its
    /// share of the policy's responses.
    pub least_inclusion: Option<SeedStat>,
    /// The name of each bucket, such as `512_1024`, and its inclusion, in ascending order of length.
    pub inclusion: Vec<(String, SeedStat)>,
    /// The effective sample size divided by the number of responses; 1 without weights.
    pub ess: Option<SeedStat>,
    /// The tokens of responses that were neither trained on nor kept for a later step, divided by all sampled tokens.
    pub discarded: Option<SeedStat>,
}

impl LengthBias {
    /// Measures the bias of `runs` against `baseline`. A run and the baseline of the same index have the same seed.
    ///
    /// There are two sources for the lengths of the policy. The run's own ledger estimates them from all launched responses, including
    /// censored responses. The baseline samples them independently of the schedule.
    ///
    /// The ratios of lengths choose the source for each seed. If the ledger is exact (see [`is_exact`]), it is the source, because it has
    /// the responses of this run. Otherwise the source is the baseline or, if the baseline has no value, the ledger's estimate. The
    /// inclusion has one source for all seeds: the ledgers if all are exact or the first seed cannot be compared with its baseline,
    /// otherwise the baseline. The effective sample size and the discarded tokens are those of `runs` alone.
    pub(super) fn of(runs: &[RunOutcome], baseline: &[RunOutcome]) -> Self {
        let ratio = |name: &str, statistic: &dyn Fn(&TrainedLengths) -> Option<f64>| {
            let seeds = runs.iter().zip(baseline);
            let ratios = seeds.filter_map(|(run, base)| chosen_ratio(run, base, name, statistic));
            SeedStat::of(&ratios.collect::<Vec<_>>())
        };
        let inclusion = inclusions(runs, baseline);
        let shares = inclusion.iter().map(|(_, stat)| *stat);
        Self {
            mean_ratio: ratio("mean_ratio", &mean),
            p90_ratio: ratio("p90_ratio", &|lengths| quantile(lengths, 0.9)),
            p99_ratio: ratio("p99_ratio", &|lengths| quantile(lengths, 0.99)),
            least_inclusion: shares.min_by(|a, b| a.mean.total_cmp(&b.mean)),
            inclusion,
            ess: stat(runs, |run| last(run, ESS_METRIC)),
            discarded: stat(runs, discarded),
        }
    }

    /// Returns `true` if the mean ratio is known and differs from 1 by at most `tolerance`, and the effective sample size is at least
    /// [`MIN_ESS`] or not known.
    #[must_use]
    pub fn is_low(&self, tolerance: f64) -> bool {
        let near = self.mean_ratio.is_some_and(|ratio| (ratio.mean - 1.0).abs() <= tolerance);
        near && self.ess.is_none_or(|ess| ess.mean >= MIN_ESS)
    }
}

/// The minimum effective sample size of a configuration of low bias, as a share of the responses.
pub const MIN_ESS: f64 = 0.95;

/// Returns `true` if the run's own ledger has the lengths of the policy exactly, because no response was cut by other responses of its
/// group. The test is that the estimate of the mean exceeds its lower bound by at most 0.1 %. The ledger's estimate is then better than the
/// baseline, which consists of other responses.
fn is_exact(run: &RunOutcome) -> bool {
    let bounds = ["bias/policy_mean", "bias/policy_mean_low"].map(|name| last(run, name));
    matches!(bounds, [Some(estimate), Some(low)] if (estimate - low).abs() <= 1e-3 * estimate)
}

/// Returns a ratio of lengths from the source that [`LengthBias::of`] describes, or `None` if no source has it. `name` is the ledger's name
/// of the ratio, and `statistic` computes the statistic that is compared from the lengths of a run.
fn chosen_ratio(
    run: &RunOutcome,
    baseline: &RunOutcome,
    name: &str,
    statistic: &dyn Fn(&TrainedLengths) -> Option<f64>,
) -> Option<f64> {
    let compared = if is_exact(run) { None } else { ratio(run, baseline, statistic) };
    compared
        .or_else(|| last(run, &format!("bias/weighted_{name}")))
        .or_else(|| last(run, &format!("bias/{name}")))
}

/// Returns a statistic of the trained lengths of `run` divided by the same statistic of `baseline`; `None` if either has no value.
fn ratio(
    run: &RunOutcome,
    baseline: &RunOutcome,
    statistic: impl Fn(&TrainedLengths) -> Option<f64>,
) -> Option<f64> {
    Some(statistic(&run.trained)? / statistic(&baseline.trained)?)
}

/// The name and the inclusion of each bucket of a run, in ascending order of length.
type Inclusion = Vec<(String, f64)>;

/// Returns the inclusion from the source that [`LengthBias::of`] describes.
fn inclusions(runs: &[RunOutcome], baseline: &[RunOutcome]) -> Vec<(String, SeedStat)> {
    let compared: Vec<Inclusion> =
        runs.iter().zip(baseline).map(|(run, base)| inclusion(run, base)).collect();
    let is_comparable = compared.first().is_some_and(|buckets| !buckets.is_empty());
    if is_comparable && !runs.iter().all(is_exact) {
        over_seeds(&compared)
    } else {
        over_seeds(&runs.iter().filter_map(estimated_inclusion).collect::<Vec<_>>())
    }
}

/// Returns the statistics over all seeds of the buckets that the first seed has.
fn over_seeds(seeds: &[Inclusion]) -> Vec<(String, SeedStat)> {
    let of = |bucket: &String| {
        let values = seeds.iter().filter_map(|seed| seed.iter().find(|(name, _)| name == bucket));
        SeedStat::of(&values.map(|(_, value)| *value).collect::<Vec<_>>())
    };
    let buckets = seeds.iter().take(1).flatten();
    buckets.filter_map(|(bucket, _)| Some((bucket.clone(), of(bucket)?))).collect()
}

/// Returns the inclusion that the ledger estimates; `None` for a run without steps.
fn estimated_inclusion(run: &RunOutcome) -> Option<Inclusion> {
    let metrics = &run.steps.last()?.metrics;
    let mut buckets: Inclusion = metrics
        .iter()
        .filter_map(|(name, value)| Some((name.strip_prefix(INCLUSION_PREFIX)?.to_owned(), *value)))
        .collect();
    let start = |bucket: &str| bucket.split('_').next()?.parse::<u64>().ok();
    buckets.sort_by_key(|(bucket, _)| start(bucket).unwrap_or(0));
    Some(buckets)
}

/// Returns the inclusion of each bucket: its share of the trained weight of `run` divided by its share in `baseline`. Buckets that are
/// empty in the baseline are left out.
fn inclusion(run: &RunOutcome, baseline: &RunOutcome) -> Inclusion {
    let (Some(total), Some(baseline_weight)) = (weight(&run.trained), weight(&baseline.trained))
    else {
        return Vec::new();
    };
    let longest = baseline.trained.last_key_value().map_or(0, |(length, _)| *length);
    let ends = std::iter::successors(Some(FIRST_BUCKET), |end| end.checked_mul(2));
    let starts = std::iter::once(0).chain(ends.clone());
    starts
        .zip(ends)
        .take_while(|(start, _)| *start <= longest)
        .filter_map(|(start, end)| {
            let share = |trained: &TrainedLengths, total: f64| {
                trained.range(start..end).map(|(_, weight)| weight).sum::<f64>() / total
            };
            let policy = share(&baseline.trained, baseline_weight);
            (policy > 0.0).then(|| (format!("{start}_{end}"), share(&run.trained, total) / policy))
        })
        .collect()
}

fn weight(trained: &TrainedLengths) -> Option<f64> {
    Some(trained.values().sum()).filter(|sum| *sum > 0.0)
}

fn mean(trained: &TrainedLengths) -> Option<f64> {
    let sum: f64 = trained.iter().map(|(&length, weight)| f64::from(length) * weight).sum();
    Some(sum / weight(trained)?)
}

fn quantile(trained: &TrainedLengths, q: f64) -> Option<f64> {
    let wanted = q * weight(trained)?;
    let mut below = 0.0;
    let reached = trained.iter().find(|(_, weight)| {
        below += **weight;
        below >= wanted
    });
    reached.or(trained.last_key_value()).map(|(&length, _)| f64::from(length))
}

fn discarded(run: &RunOutcome) -> Option<f64> {
    let sum = |name: &str| run.steps.iter().filter_map(|step| step.metrics.get(name)).sum::<f64>();
    let launched = sum(LAUNCHED_METRIC);
    (launched > 0.0).then(|| sum(DISCARDED_METRIC) / launched)
}

/// Returns the last value of a metric that accumulates over the run, or `None` if no step has the metric.
fn last(run: &RunOutcome, name: &str) -> Option<f64> {
    run.steps.iter().rev().find_map(|step| step.metrics.get(name).copied())
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::run;
    use super::*;

    fn outcome(trained: &[(u32, f64)]) -> RunOutcome {
        RunOutcome { trained: trained.iter().copied().collect(), ..RunOutcome::default() }
    }

    #[test]
    fn lengths_are_compared_by_weight() {
        let policy = outcome(&[(100, 6.0), (1000, 3.0), (4000, 1.0)]);
        let short = outcome(&[(100, 8.0), (1000, 2.0)]);
        assert_eq!(ratio(&short, &policy, mean), Some(280.0 / 760.0));
        assert_eq!(ratio(&short, &policy, |lengths| quantile(lengths, 0.9)), Some(1.0));
        assert_eq!(ratio(&short, &policy, |lengths| quantile(lengths, 0.99)), Some(0.25));
        let buckets: Inclusion = inclusion(&short, &policy);
        let names: Vec<&str> = buckets.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["0_512", "512_1024", "2048_4096"]);
        assert!((buckets[0].1 - 0.8 / 0.6).abs() < 1e-12);
        assert_eq!(buckets[2].1, 0.0);
        let weighted = outcome(&[(100, 6.0), (1000, 2.0), (4000, 2.0)]);
        assert!(ratio(&weighted, &policy, mean).is_some_and(|ratio| ratio > 1.0));
        assert_eq!(ratio(&outcome(&[]), &policy, mean), None);
    }

    #[test]
    fn weighted_ratios_are_preferred_and_low_bias_needs_mean_and_sample_size() {
        let metrics =
            [("bias/mean_ratio", 0.8), ("bias/weighted_mean_ratio", 0.99), ("bias/ess", 0.97)];
        let bias =
            LengthBias::of(&[run(&[("short", 1.0)], &metrics)], &[run(&[("full", 1.0)], &[])]);
        assert_eq!(bias.mean_ratio.map(|ratio| ratio.mean), Some(0.99));
        assert!(bias.is_low(0.03) && !bias.is_low(0.005));
        let weighty = LengthBias { ess: Some(SeedStat { mean: 0.9, sd: 0.0 }), ..bias };
        assert!(!weighty.is_low(0.03));
    }
}
