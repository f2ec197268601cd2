//! The last steps of a run, by which it is judged.

use super::record::RunRecord;
use crate::run_reader::StepMetrics;

/// The number of the last steps that are judged.
pub(crate) const STEPS: usize = 20;

/// The last steps of a run, and its first ones to compare with.
pub(super) struct Recent<'a> {
    first: Vec<&'a StepMetrics>,
    last: Vec<&'a StepMetrics>,
}

impl<'a> Recent<'a> {
    pub(super) fn of(record: &'a RunRecord) -> Self {
        let steps: Vec<_> = record.training_steps().collect();
        let end = steps.len() - STEPS.min(steps.len());
        Self::of_ends(steps.clone(), steps[end..].to_vec(), steps.len())
    }

    /// Returns the ends of a run with this many steps: at least its first and exactly its last [`STEPS`] steps, or all if it has fewer.
    pub(super) fn of_ends(
        mut first: Vec<&'a StepMetrics>,
        last: Vec<&'a StepMetrics>,
        steps: usize,
    ) -> Self {
        // The first and the last steps do not overlap, so that a short run is compared with itself.
        first.truncate(STEPS.min(steps.div_ceil(2)));
        Self { first, last }
    }

    fn values<'b>(steps: &'b [&'a StepMetrics], metric: &'b str) -> impl Iterator<Item = f64> + 'b {
        steps.iter().filter_map(move |step| step.get(metric))
    }

    /// Returns the mean of a metric over the last steps that report it.
    pub(super) fn mean(&self, metric: &str) -> Option<f64> {
        mean(Self::values(&self.last, metric))
    }

    /// Returns the mean of a metric over the first steps that report it.
    pub(super) fn first_mean(&self, metric: &str) -> Option<f64> {
        mean(Self::values(&self.first, metric))
    }

    /// Returns the sum of a metric over the last steps; 0 if none reports it.
    pub(super) fn sum(&self, metric: &str) -> f64 {
        Self::values(&self.last, metric).sum()
    }

    /// Returns the largest value of a metric in the last steps.
    pub(super) fn max(&self, metric: &str) -> Option<f64> {
        Self::values(&self.last, metric).reduce(f64::max)
    }

    /// Returns how far the mean of a metric over the last steps is above that over as many first steps, and the standard error of the
    /// difference. `None` for fewer than two values in either.
    pub(super) fn rise(&self, metric: &str) -> Option<(f64, f64)> {
        let late = &self.last[self.last.len() - self.first.len().min(self.last.len())..];
        let early: Vec<f64> = Self::values(&self.first, metric).collect();
        let late: Vec<f64> = Self::values(late, metric).collect();
        let (before, after) = (spread(&early)?, spread(&late)?);
        Some((after.0 - before.0, (before.1 + after.1).sqrt()))
    }
}

fn mean(values: impl Iterator<Item = f64>) -> Option<f64> {
    let (count, sum) = values.fold((0_u32, 0.0), |(count, sum), value| (count + 1, sum + value));
    (count > 0).then(|| sum / f64::from(count))
}

/// Returns the mean and its variance; `None` for fewer than two values.
fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let mean = mean(values.iter().copied())?;
    let degrees = values.len().checked_sub(1).filter(|degrees| *degrees > 0)? as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, squares / degrees / values.len() as f64))
}
