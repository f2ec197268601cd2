//! Policies and metrics as rows of streams.

use std::sync::Arc;

use arrow_array::types::UInt64Type;
use arrow_array::{Float64Array, StringArray, UInt64Array};
use rollpacker_dataflow::batch::Batch;
use rollpacker_dataflow::schema::{self, column};
use rollpacker_dataflow::step::PolicyVersion;
use rollpacker_stages::rollout::Policy;
use rollpacker_stages::train::Metrics;

/// Returns a policy as a batch of [`schema::POLICIES`].
#[must_use]
pub fn policy_batch(policy: &Policy) -> Batch {
    Batch::from_columns(
        &schema::POLICIES,
        vec![
            Arc::new(UInt64Array::from(vec![policy.version.0])),
            Arc::new(StringArray::from(vec![policy.location.as_str()])),
            Arc::new(UInt64Array::from(vec![policy.digest])),
        ],
    )
}

/// Returns the policy in row `row` of a batch of [`schema::POLICIES`].
///
/// # Panics
/// If the batch has no such row.
#[must_use]
pub fn policy_of(batch: &Batch, row: usize) -> Policy {
    Policy {
        version: PolicyVersion(batch.values::<UInt64Type>(column::POLICY_VERSION).value(row)),
        location: batch.text(column::LOCATION).value(row).to_owned(),
        digest: batch.values::<UInt64Type>(column::DIGEST).value(row),
    }
}

/// Returns metrics as a batch of [`schema::METRICS`].
#[must_use]
pub fn metrics_batch(metrics: &Metrics) -> Batch {
    Batch::from_columns(
        &schema::METRICS,
        vec![
            Arc::new(StringArray::from_iter_values(metrics.keys())),
            Arc::new(Float64Array::from_iter_values(metrics.values().copied())),
        ],
    )
}
