//! Statistics that several metrics share.

use rollpacker_stages::train::Metrics;

/// The mean, maximum and minimum of values.
pub(super) struct Spread {
    count: f64,
    sum: f64,
    min: f64,
    max: f64,
}

impl Default for Spread {
    fn default() -> Self {
        Self { count: 0.0, sum: 0.0, min: f64::INFINITY, max: f64::NEG_INFINITY }
    }
}

impl Spread {
    /// Adds a value that occurs `times` times.
    pub(super) fn add(&mut self, value: f64, times: f64) {
        self.count += times;
        self.sum += value * times;
        (self.min, self.max) = (value.min(self.min), value.max(self.max));
    }

    /// Adds the metrics under `name/`; adds nothing if there are no values.
    pub(super) fn report(self, metrics: &mut Metrics, name: &str) {
        if self.count > 0.0 {
            metrics.extend(
                [("mean", self.sum / self.count), ("max", self.max), ("min", self.min)]
                    .map(|(part, value)| (format!("{name}/{part}"), value)),
            );
        }
    }
}

/// Adds the mean, maximum and minimum of `values` under `name/`; adds nothing if there are no values.
pub(crate) fn spread(metrics: &mut Metrics, name: &str, values: impl Iterator<Item = f64>) {
    let mut spread = Spread::default();
    values.for_each(|value| spread.add(value, 1.0));
    spread.report(metrics, name);
}

/// Returns `part / whole`; 0 if `whole` is not positive.
pub(super) fn ratio(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { part / whole } else { 0.0 }
}
