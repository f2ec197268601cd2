//! Errors of schedule configurations.

/// An error in the configuration of a schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
    /// A count that must be positive is 0.
    #[error("`{key}` is 0, expected at least 1")]
    Zero {
        /// The name of the option.
        key: String,
    },
    /// A value is out of its bounds.
    #[error("`{key}` is {found}, expected {expected}")]
    Bound {
        /// The name of the option.
        key: String,
        /// The allowed values.
        expected: String,
        /// The configured value.
        found: String,
    },
    /// A number is less than its minimum.
    #[error("`{key}` is {found}, expected at least {min}, {why}")]
    Small {
        /// The name of the option.
        key: &'static str,
        /// The configured value.
        found: u64,
        /// The smallest allowed value.
        min: u64,
        /// The reason for the limit.
        why: &'static str,
    },
    /// An option cannot be combined with another option.
    #[error("`{key}` cannot be combined with {with}: {why}")]
    Conflict {
        /// The name of the option.
        key: &'static str,
        /// The other option, as written in the configuration.
        with: &'static str,
        /// The reason why the two options exclude each other.
        why: &'static str,
    },
    /// A factor, such as a speculation factor or a maximum weight, is out of bounds.
    #[error("`{key}` is {found}, expected a number from 1 to {max}")]
    Factor {
        /// The name of the option.
        key: &'static str,
        /// The configured value.
        found: f64,
        /// The largest allowed value.
        max: f64,
    },
    /// Weighted selection is configured with surplus responses (`eta_responses` above 1), so that some lengths are never trained on.
    #[error(
        "`selection` is `weighted` with `eta_responses` = {eta_responses}, expected 1: no weight can correct for responses that are aborted as surplus"
    )]
    Weighted {
        /// The configured ratio of launched responses to responses of a group.
        eta_responses: f64,
    },
    /// The quotas do not sum to the prompts of a round.
    #[error("`quotas` sum to {found}, expected `prompts` = {expected}")]
    Quotas {
        /// The sum of the quotas.
        found: usize,
        /// The number of prompts of a round.
        expected: usize,
    },
}

/// Returns an error if `count` is 0.
pub(super) fn positive(key: &str, count: u64) -> Result<(), ScheduleError> {
    if count == 0 { Err(ScheduleError::Zero { key: key.to_owned() }) } else { Ok(()) }
}

/// Returns an error if `found` is below `min`; `why` is the reason for the limit.
pub(super) fn at_least(
    key: &'static str,
    found: u64,
    min: u64,
    why: &'static str,
) -> Result<(), ScheduleError> {
    if found < min { Err(ScheduleError::Small { key, found, min, why }) } else { Ok(()) }
}

impl ScheduleError {
    /// Returns the error [`Bound`](Self::Bound) for the option `key`. `expected` describes the allowed values, and `found` is the
    /// configured value.
    #[must_use]
    pub fn bound(key: &str, expected: &str, found: impl std::fmt::Display) -> Self {
        let (key, expected) = (key.to_owned(), expected.to_owned());
        Self::Bound { key, expected, found: found.to_string() }
    }
}
