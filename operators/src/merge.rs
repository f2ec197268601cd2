//! Merges the metrics that several workers report for a step.

use std::collections::BTreeMap;

use arrow_array::types::Float64Type;
use rollpacker_dataflow::batch::{Batch, BatchStream};
use rollpacker_dataflow::operator::Operator;
use rollpacker_dataflow::route;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::Step;
use rollpacker_dataflow::timely::dataflow::channels::pact::Pipeline;
use rollpacker_dataflow::timely::dataflow::operators::Capability;
use rollpacker_stages::metrics::Merge;

use crate::policy::metrics_batch;

/// Routes batches of [`schema::METRICS`] from all workers to the first worker, and merges the values of each metric of a step into one
/// value. Emits the metrics of a step once, when the step is complete. On a single worker, returns the stream unchanged.
///
/// [`Merge::of`] gives the rule of a metric: the sum, the maximum, the minimum or the mean of the values.
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
                let held = || (capability.retain(output.index()), MetricValues::new());
                add(&mut open.entry(*capability.time()).or_insert_with(held).1, &batch);
            });
            let passed = |step: &Step| !frontiers[0].less_equal(step);
            for (_, (capability, measured)) in open.extract_if(.., |step, _| passed(step)) {
                let merged = measured.into_iter().map(|(name, values)| {
                    let value = Merge::of(&name).apply(values);
                    (name, value)
                });
                output.give(&capability, metrics_batch(&merged.collect()));
            }
        }
    });
    stream
}

/// The values that all workers reported for a step, by metric.
type MetricValues = BTreeMap<String, Vec<f64>>;

fn add(measured: &mut MetricValues, batch: &Batch) {
    let values = batch.values::<Float64Type>(column::VALUE).values();
    for (name, value) in batch.text(column::NAME).iter().flatten().zip(values) {
        measured.entry(name.to_owned()).or_default().push(*value);
    }
}
