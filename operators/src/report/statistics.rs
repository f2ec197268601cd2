//! Statistics that several metrics share.

use rollpacker_stages::train::Metrics;

/// Adds the mean, maximum and minimum of `values` under `name/`; adds nothing if there are no values.
pub(super) fn spread(metrics: &mut Metrics, name: &str, values: impl Iterator<Item = f64>) {
    let (mut count, mut sum, mut least, mut most) = (0.0, 0.0, f64::INFINITY, f64::NEG_INFINITY);
    for value in values {
        (count, sum, least, most) = (count + 1.0, sum + value, value.min(least), value.max(most));
    }
    if count > 0.0 {
        metrics.extend(
            [("mean", sum / count), ("max", most), ("min", least)]
                .map(|(part, value)| (format!("{name}/{part}"), value)),
        );
    }
}

/// Returns `part / whole`; 0 if `whole` is 0.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
