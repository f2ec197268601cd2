//! Means over seeds.

use serde::Serialize;

use super::outcome::RunOutcome;

/// The mean and the standard deviation of a value over seeds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SeedStat {
    /// The mean over seeds.
    pub mean: f64,
    /// The sample standard deviation over seeds; 0 for a single seed.
    pub sd: f64,
}

impl SeedStat {
    /// Computes the statistics of one value per seed; `None` without values.
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

/// Returns the statistics of a value over the runs that have it; `None` if no run has it.
pub(super) fn stat(
    runs: &[RunOutcome],
    value: impl Fn(&RunOutcome) -> Option<f64>,
) -> Option<SeedStat> {
    SeedStat::of(&runs.iter().filter_map(value).collect::<Vec<_>>())
}
