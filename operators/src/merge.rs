//! Merges the metrics that several workers report for a step.

use std::collections::BTreeMap;

use arrow::datatypes::Float64Type;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;

use crate::policy::metrics_batch;

/// Routes batches of [`schema::METRICS`] from all workers to the first and merges them: each metric of a step is emitted once, when the
/// step is complete. On a single worker, the stream is returned unchanged.
///
/// Counts are summed. Durations and queue levels become their maximum. Any other metric becomes the mean; what replicas of the trainer
/// report about their common update is equal on each.
#[must_use]
pub fn merge_metrics(metrics: BatchStream<'_>) -> BatchStream<'_> {
    if metrics.scope().peers() == 1 {
        return metrics;
    }
    let metrics = route::gather_at_first("metrics_to_first", metrics, &schema::METRICS);
    let mut operator = Operator::new("merge", metrics.scope());
    let mut input = operator.input(metrics, Pipeline, &schema::METRICS);
    let (mut output, stream) = operator.output(&schema::METRICS, &[0]);
    operator.build(move |_capabilities| {
        let mut open: BTreeMap<Step, (Capability<Step>, MetricValues)> = BTreeMap::new();
        move |frontiers| {
            input.for_each(|capability, batch| {
                let held = || (capability.retain(output.index()), MetricValues::default());
                open.entry(*capability.time()).or_insert_with(held).1.take(&batch);
            });
            let passed = |step: &Step| !frontiers[0].less_equal(step);
            for (_, (capability, measured)) in open.extract_if(.., |step, _| passed(step)) {
                let merge_metrics = measured.0.into_iter().map(|(name, values)| {
                    let value = Merge::of(&name).apply(values);
                    (name, value)
                });
                output.give(&capability, metrics_batch(&merge_metrics.collect()));
            }
        }
    });
    stream
}

/// The values of each metric of a step, over all workers.
#[derive(Default)]
struct MetricValues(BTreeMap<String, Vec<f64>>);

impl MetricValues {
    fn take(&mut self, batch: &Batch) {
        let values = batch.values::<Float64Type>(column::VALUE).values();
        for (name, value) in batch.text(column::NAME).iter().flatten().zip(values) {
            self.0.entry(name.to_owned()).or_default().push(*value);
        }
    }
}

/// The rule by which the values of one metric are merged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Merge {
    Sum,
    Most,
    Mean,
}

impl Merge {
    /// Returns the rule for a metric by its name.
    fn of(name: &str) -> Self {
        const COUNTS: [&str; 3] = ["reward/cancelled", "reward/skipped", "reward/dropped_groups"];
        const LEVELS: [&str; 2] = ["reward/queue_max", "reward/in_flight_max"];
        let counts = COUNTS.contains(&name)
            || ["reward/errors/", "reduce/bytes", "reduce/takes"]
                .iter()
                .any(|of| name.starts_with(of));
        let lasts = name.starts_with("timing_s/")
            || LEVELS.contains(&name)
            || name == crate::wire::metric::LOAD;
        match (counts, lasts) {
            (true, _) => Self::Sum,
            (_, true) => Self::Most,
            _ => Self::Mean,
        }
    }

    /// Merges values. The result does not depend on their order, down to the bit.
    fn apply(self, mut values: Vec<f64>) -> f64 {
        values.sort_unstable_by(f64::total_cmp);
        match self {
            Self::Sum => values.iter().sum(),
            Self::Most => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
            // Equal values are kept as they are; a sum could change their last bit.
            Self::Mean if values.windows(2).all(|pair| pair[0].to_bits() == pair[1].to_bits()) => {
                values.first().copied().unwrap_or(f64::NAN)
            }
            Self::Mean => values.iter().sum::<f64>() / values.len() as f64,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_add_up_times_and_levels_are_the_most_the_rest_are_means() {
        for (name, expected) in [
            ("reward/errors/timeout", 6.0),
            ("reward/dropped_groups", 6.0),
            ("reduce/bytes", 6.0),
            ("timing_s/gradient", 3.0),
            ("reward/queue_max", 3.0),
            ("rollout/load_s", 3.0),
            ("reward/judge/tokens", 2.0),
            ("actor/pg_loss", 2.0),
        ] {
            assert_eq!(Merge::of(name).apply(vec![1.0, 3.0, 2.0]), expected, "{name}");
        }
        let same = 0.1_f64 + 0.2;
        assert_eq!(Merge::Mean.apply(vec![same; 3]).to_bits(), same.to_bits());
        let [one, other] = [vec![1e16, 1.0, -1e16], vec![1e16, -1e16, 1.0]];
        for merge in [Merge::Sum, Merge::Mean] {
            assert_eq!(merge.apply(one.clone()).to_bits(), merge.apply(other.clone()).to_bits());
        }
    }
}
