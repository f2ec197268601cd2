//! The first and the last steps of a run, by which it is judged.

use std::collections::VecDeque;

/// The maximum number of first steps, and of last steps, that are judged.
const STEPS: usize = 20;

/// A step whose metrics can be read by name.
pub(crate) trait MetricLookup {
    /// Returns a metric; `None` if the step does not report it.
    fn metric(&self, metric: &str) -> Option<f64>;
}

impl<S: MetricLookup> MetricLookup for &S {
    fn metric(&self, metric: &str) -> Option<f64> {
        S::metric(self, metric)
    }
}

#[cfg(feature = "torch")]
impl MetricLookup for rollpacker_stages::train::Metrics {
    fn metric(&self, metric: &str) -> Option<f64> {
        self.get(metric).copied()
    }
}

/// The first and the last [`STEPS`] steps of a run, up to the step that was added last.
#[derive(Debug)]
pub(crate) struct StepWindow<S> {
    first: Vec<S>,
    last: VecDeque<S>,
    steps: usize,
}

impl<S> Default for StepWindow<S> {
    fn default() -> Self {
        Self { first: Vec::new(), last: VecDeque::new(), steps: 0 }
    }
}

impl<S: MetricLookup + Clone> StepWindow<S> {
    pub(crate) fn push(&mut self, step: S) {
        self.steps += 1;
        if self.first.len() < STEPS {
            self.first.push(step.clone());
        }
        if self.last.len() == STEPS {
            self.last.pop_front();
        }
        self.last.push_back(step);
    }

    /// Returns the number of steps of the run so far.
    #[cfg(feature = "torch")]
    pub(super) fn steps(&self) -> usize {
        self.steps
    }

    /// Returns the steps to judge: at most [`STEPS`] first steps and [`STEPS`] last steps.
    pub(super) fn recent(&self) -> Recent<'_> {
        // At most half of the steps count as first steps, so that a short run has a beginning to compare with.
        let first = self.first.iter().take(self.steps / 2);
        Recent {
            first: first.map(|step| step as &dyn MetricLookup).collect(),
            last: self.last.iter().map(|step| step as &dyn MetricLookup).collect(),
        }
    }
}

impl<S: MetricLookup + Clone> FromIterator<S> for StepWindow<S> {
    fn from_iter<I: IntoIterator<Item = S>>(steps: I) -> Self {
        let mut window = Self::default();
        steps.into_iter().for_each(|step| window.push(step));
        window
    }
}

/// The last steps of a run, and its first steps to compare with.
pub(super) struct Recent<'a> {
    first: Vec<&'a dyn MetricLookup>,
    last: Vec<&'a dyn MetricLookup>,
}

impl Recent<'_> {
    fn values(steps: &[&dyn MetricLookup], metric: &str) -> impl Iterator<Item = f64> {
        // `metrics.jsonl` has no NaN. Skip NaN values here as well, so that a run in progress has the same findings as `rollpacker show`.
        let numbers = steps.iter().filter_map(move |step| step.metric(metric));
        numbers.filter(|number| !number.is_nan())
    }

    /// Returns the mean of a metric over the last steps that report it, or `None` if none of them reports it.
    pub(super) fn mean(&self, metric: &str) -> Option<f64> {
        mean(Self::values(&self.last, metric))
    }

    /// Returns the mean of a metric over the first steps that report it, or `None` if none of them reports it.
    pub(super) fn first_mean(&self, metric: &str) -> Option<f64> {
        mean(Self::values(&self.first, metric))
    }

    /// Returns the sum of a metric over the last steps; 0 if none reports it.
    pub(super) fn sum(&self, metric: &str) -> f64 {
        Self::values(&self.last, metric).sum()
    }

    /// Returns the largest value of a metric in the last steps, or `None` if none reports it.
    pub(super) fn max(&self, metric: &str) -> Option<f64> {
        Self::values(&self.last, metric).reduce(f64::max)
    }

    /// Returns the mean of a metric over the last steps minus its mean over equally many first steps, and the standard error of the
    /// difference. Returns `None` if either mean has fewer than two values.
    #[cfg(feature = "cli")]
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

/// Returns the mean and the variance of the mean; `None` for fewer than two values.
#[cfg(feature = "cli")]
fn spread(values: &[f64]) -> Option<(f64, f64)> {
    let mean = mean(values.iter().copied())?;
    let degrees = values.len().checked_sub(1).filter(|degrees| *degrees > 0)? as f64;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((mean, squares / degrees / values.len() as f64))
}
