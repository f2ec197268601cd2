//! Curves of metrics over the steps.

use serde::Serialize;

use super::record::RunRecord;

/// The metrics whose curves are shown, in this order, if the run reports them.
const METRICS: [&str; 15] = [
    "val/score",
    "val/greedy_score",
    "critic/score/mean",
    "response_length/mean",
    "response_length/clip_ratio",
    "reward/frac_zero_std",
    "actor/grad_norm",
    "actor/entropy",
    "actor/pg_clipfrac",
    "actor/ppo_kl",
    "actor/kl_loss",
    "rollout_corr/k3_kl",
    "training/off_policy/token_staleness/mean",
    "rollout/tokens_per_s",
    "perf/time_per_step",
];

/// The maximum number of characters of a sparkline.
const WIDTH: usize = 30;
const BARS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The values of a metric over the steps, including validations before and after them.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct MetricCurve {
    pub(crate) metric: &'static str,
    /// The first finite value.
    pub(crate) first: f64,
    /// The last finite value.
    pub(crate) last: f64,
    /// The smallest finite value.
    pub(crate) min: f64,
    /// The largest finite value.
    pub(crate) max: f64,
    /// The finite values in the order of the steps, one character each. If there are more than 30 values, each character shows the mean of
    /// several values.
    pub(crate) sparkline: String,
}

impl MetricCurve {
    /// Returns the curve of values; `None` without any finite value.
    fn of(metric: &'static str, values: &[f64]) -> Option<Self> {
        let finite: Vec<f64> = values.iter().copied().filter(|value| value.is_finite()).collect();
        let (&first, &last) = (finite.first()?, finite.last()?);
        let min = finite.iter().copied().fold(f64::INFINITY, f64::min);
        let max = finite.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        Some(Self { metric, first, last, min, max, sparkline: sparkline(&finite) })
    }
}

pub(super) fn curves(record: &RunRecord) -> Vec<MetricCurve> {
    let values = |metric: &str| -> Vec<f64> {
        record.lines.iter().filter_map(|line| line.get(metric)).collect()
    };
    METRICS.iter().filter_map(|metric| MetricCurve::of(metric, &values(metric))).collect()
}

/// Draws values as bars, scaled from the smallest to the largest. More than [`WIDTH`] values are averaged in groups of nearly equal size.
fn sparkline(values: &[f64]) -> String {
    let width = values.len().min(WIDTH);
    let bound = |at: usize| at * values.len() / width;
    let means: Vec<f64> = (0..width)
        .map(|at| &values[bound(at)..bound(at + 1)])
        .map(|group| group.iter().sum::<f64>() / group.len() as f64)
        .collect();
    let low = means.iter().copied().fold(f64::INFINITY, f64::min);
    let high = means.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let bar = |mean: f64| {
        if high > low {
            BARS[((mean - low) / (high - low) * (BARS.len() - 1) as f64).round() as usize]
        } else {
            BARS[0]
        }
    };
    means.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparkline_rises_with_its_values() {
        assert_eq!(sparkline(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0]), "▁▂▃▄▅▆▇█");
        assert_eq!(sparkline(&[3.0, 3.0]), "▁▁");
        assert_eq!(sparkline(&[5.0, -5.0]), "█▁");
    }

    #[test]
    fn many_values_are_averaged() {
        let values: Vec<f64> = (0..1000).map(f64::from).collect();
        let line = sparkline(&values);
        assert_eq!(line.chars().count(), WIDTH);
        assert!(line.starts_with('▁') && line.ends_with('█'));
    }

    #[test]
    fn a_curve_leaves_out_what_is_not_finite() {
        let curve = MetricCurve::of("m", &[f64::NAN, 2.0, f64::INFINITY, -1.0]).unwrap();
        assert_eq!((curve.first, curve.last, curve.min, curve.max), (2.0, -1.0, -1.0, 2.0));
        assert_eq!(MetricCurve::of("m", &[f64::NAN]), None);
    }
}
