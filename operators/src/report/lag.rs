//! Staleness of the tokens that are trained on.

use arrow::datatypes::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::Metrics;

use super::statistics::spread;

/// Adds the staleness of all trained tokens: the number of updates between the policy that sampled the token and the policy that `step`
/// trains.
///
/// It is 0 on-policy, and at most the configured staleness if no response is paused and continued. Engines that count tokens without
/// sampling them have no such metric.
pub(super) fn lag(metrics: &mut Metrics, step: Step, groups: &[Batch]) {
    let versions = groups.iter().flat_map(|batch| {
        let versions = batch.lists::<UInt64Type>(column::TOKEN_VERSIONS);
        (0..batch.num_rows()).flat_map(move |row| versions.get(row))
    });
    // The version of the policy that a step trains equals the number of steps before it.
    let lags = versions.map(|&version| step.0.saturating_sub(version) as f64);
    spread(metrics, "training/off_policy/token_staleness", lags);
}
