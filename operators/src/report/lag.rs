//! How old the policies are that sampled what is trained on.

use arrow::datatypes::UInt64Type;
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::column;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::Metrics;

use super::statistics::spread;

/// Updates by which the policy that sampled a token is behind the one that `step` trains, over all tokens trained on: 0 on-policy, at most
/// the staleness where no response is stopped and continued. Nothing of engines that count tokens without sampling them.
pub(super) fn lag(metrics: &mut Metrics, step: Step, groups: &[Batch]) {
    let versions = groups.iter().flat_map(|batch| {
        let versions = batch.lists::<UInt64Type>(column::TOKEN_VERSIONS);
        (0..batch.num_rows()).flat_map(move |row| versions.get(row))
    });
    // The policy that a step trains is that of as many updates as there were steps before.
    let lags = versions.map(|&version| step.0.saturating_sub(version) as f64);
    spread(metrics, "training/off_policy/token_staleness", lags);
}
