//! The updates of a step to one model, and their metrics.

use super::Metrics;
use super::optimizer::Update;
use super::tally::StepSums;

/// The updates of a step: the sums over all of them, and the results of the optimizer.
///
/// Means over tokens or responses are means over all updates of the step, in which each token counts once per epoch.
#[derive(Debug, Default)]
pub(crate) struct StepUpdates {
    sums: StepSums,
    applied: Vec<Update>,
}

impl StepUpdates {
    /// Adds the sums of an update, and its result if there was a gradient.
    pub(crate) fn add(&mut self, sums: &StepSums, update: Option<Update>) {
        self.sums.add(sums);
        self.applied.extend(update);
    }

    /// Returns `true` if the step has changed the model.
    pub(crate) fn is_updated(&self) -> bool {
        !self.applied.is_empty()
    }

    /// Returns the number of updates that changed the model.
    pub(crate) fn count(&self) -> usize {
        self.applied.len()
    }

    pub(crate) fn sums(&self) -> &StepSums {
        &self.sums
    }

    /// Returns the metrics of a `model` (`actor` or `critic`): the metrics of the sums, and, if the step has changed the model, the mean
    /// norm of the gradients and the last learning rate.
    pub(crate) fn metrics(&self, model: &str) -> Metrics {
        let mut metrics = self.sums.metrics();
        if let Some(last) = self.applied.last() {
            let norms: f64 = self.applied.iter().map(|update| update.grad_norm).sum();
            metrics.insert(format!("{model}/grad_norm"), norms / self.applied.len() as f64);
            metrics.insert(format!("{model}/lr"), last.learning_rate);
        }
        metrics
    }
}
