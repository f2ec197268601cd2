//! What may be wrong with a placement policy.

/// Why a placement policy cannot be.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum PlacementError {
    /// A number that counts something is 0.
    #[error("`{field}` is 0, expected at least 1")]
    Zero {
        /// The field.
        field: &'static str,
    },
    /// The trainer does not fit.
    #[error("`training_replica` is {training_replica} devices, more than the {devices} of the job")]
    Replica {
        /// Devices of the job.
        devices: u32,
        /// Devices of a replica.
        training_replica: u32,
    },
    /// Groups would straddle servers, or exceed the job.
    #[error(
        "`tensor_parallel` is {tensor_parallel}: it does not divide the {devices_per_server} devices of a server, or exceeds the {devices} of the job"
    )]
    TensorParallel {
        /// Devices of an instance.
        tensor_parallel: u32,
        /// Devices of a server.
        devices_per_server: u32,
        /// Devices of the job.
        devices: u32,
    },
    /// An instance cannot hold the weights and one longest response.
    #[error(
        "instances of {tensor_parallel} devices cache {capacity} tokens, fewer than the {response_length} of a longest response"
    )]
    Capacity {
        /// Devices of an instance.
        tensor_parallel: u32,
        /// Tokens that it caches.
        capacity: u64,
        /// Longest response.
        response_length: u32,
    },
    /// A share or factor is out of its range.
    #[error("`{field}` is {found}, expected {expected}")]
    Range {
        /// The field.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
    /// A row of a profile is no measurement.
    #[error("row {row} of the profile: `{field}` is {found}, expected {expected}")]
    Profile {
        /// Which row, from 0.
        row: usize,
        /// The column.
        field: &'static str,
        /// What it may be.
        expected: &'static str,
        /// What it is.
        found: f64,
    },
}

/// A share of something, checked to lie in a range.
pub(super) fn within(
    field: &'static str,
    expected: &'static str,
    range: std::ops::RangeInclusive<f64>,
    found: f64,
) -> Result<(), PlacementError> {
    match range.contains(&found) {
        true => Ok(()),
        false => Err(PlacementError::Range { field, expected, found }),
    }
}
