//! Errors of placement policies.

/// An error in the configuration of a placement policy or in a profile.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// A count is 0.
    #[error("`{field}` is 0, expected at least 1")]
    Zero {
        /// The name of the count.
        field: &'static str,
    },
    /// The trainer needs more devices than the job has.
    #[error("`training_replica` is {training_replica} devices, more than the {devices} of the job")]
    Replica {
        /// The number of devices of the job.
        devices: u32,
        /// The number of devices of a training replica.
        training_replica: u32,
    },
    /// The number of devices of an instance does not divide the number of devices of a server, or exceeds the number of devices of the job.
    #[error(
        "`tensor_parallel` is {tensor_parallel}: it does not divide the {devices_per_server} devices of a server, or exceeds the {devices} of the job"
    )]
    TensorParallel {
        /// The number of devices of an instance.
        tensor_parallel: u32,
        /// The number of devices of a server.
        devices_per_server: u32,
        /// The number of devices of the job.
        devices: u32,
    },
    /// An instance cannot hold the weights and one response of maximum length.
    #[error(
        "instances of {tensor_parallel} devices cache {capacity} tokens, fewer than the {response_length} of the longest response"
    )]
    Capacity {
        /// The number of devices of an instance.
        tensor_parallel: u32,
        /// The number of tokens that an instance caches.
        capacity: u64,
        /// The maximum response length, in tokens.
        response_length: u32,
    },
    /// A share or factor is out of range.
    #[error("`{field}` is {found}, expected {expected}")]
    Range {
        /// The name of the share or factor.
        field: &'static str,
        /// The allowed range in words, such as `in (0, 1]`.
        expected: &'static str,
        /// The configured value.
        found: f64,
    },
    /// A profile has no measurements.
    #[error("the profile has no rows, expected at least one measurement: measure the engine again")]
    EmptyProfile,
    /// A row of a profile is not a valid measurement.
    #[error("row {row} of the profile: `{field}` is {found}, expected {expected}")]
    Profile {
        /// The index of the row, from 0.
        row: usize,
        /// The name of the column.
        field: &'static str,
        /// The allowed range in words, such as `at least 1`.
        expected: &'static str,
        /// The value in the row.
        found: f64,
    },
}

/// Returns an error if `found` is outside of `range` or NaN. `expected` describes the range in words.
pub(super) fn within(
    field: &'static str,
    expected: &'static str,
    range: std::ops::RangeInclusive<f64>,
    found: f64,
) -> Result<(), PlacementError> {
    if range.contains(&found) {
        Ok(())
    } else {
        Err(PlacementError::Range { field, expected, found })
    }
}
