//! What a schedule refuses.

/// Why a schedule cannot be made of a configuration.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A count that must be positive is 0.
    #[error("`{key}` is 0, expected at least 1")]
    Zero {
        /// The key.
        key: String,
    },
    /// A speculation factor is out of bounds.
    #[error("`{key}` is {found}, expected a number from 1 to {max}")]
    Factor {
        /// The key.
        key: &'static str,
        /// What was given.
        found: f64,
        /// The greatest allowed.
        max: f64,
    },
    /// Weights are asked for where some lengths are never trained on.
    #[error(
        "`selection` is `weighted` with `eta_responses` = {eta_responses}, expected 1: no weight makes up for responses that surplus ones cut off"
    )]
    Weighted {
        /// What was given.
        eta_responses: f64,
    },
    /// The quotas do not make up a round.
    #[error("`quotas` sum to {found}, expected `prompts` = {expected}")]
    Quotas {
        /// Their sum.
        found: usize,
        /// Prompts of a round.
        expected: usize,
    },
}

/// Refuses a `count` of 0.
pub(super) fn positive(key: &str, count: u64) -> Result<(), ScheduleError> {
    if count == 0 { Err(ScheduleError::Zero { key: key.to_owned() }) } else { Ok(()) }
}
