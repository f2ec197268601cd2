//! Staleness of the tokens that are trained on.

use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::step::Step;
use rollpacker_stages::train::Metrics;

use super::recorded::token_versions;
use super::statistics::Spread;

/// Adds the mean, maximum and minimum staleness of all trained tokens: the number of updates between the policy that sampled a token and
/// the policy that `step` trains.
///
/// The staleness is 0 on-policy, and at most the configured staleness if no response is paused and continued. Adds nothing if the engine
/// counts tokens without sampling them.
pub(super) fn lag(metrics: &mut Metrics, step: Step, groups: &[Batch]) {
    let mut lags = Spread::default();
    for batch in groups {
        for row in 0..batch.num_rows() {
            for (version, tokens) in token_versions(batch, row).runs() {
                // The version of the policy that a step trains equals the number of steps before it.
                lags.add(step.0.saturating_sub(version.0) as f64, f64::from(*tokens));
            }
        }
    }
    lags.report(metrics, "training/off_policy/token_staleness");
}
