//! Errors of schedule configurations.

/// An error in the configuration of a schedule.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum ScheduleError {
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
    if count == 0 { Err(ScheduleError::bound(key, "at least 1", 0)) } else { Ok(()) }
}

/// Returns an error if `found` is below `min`; `why` is the reason for the limit.
pub(super) fn at_least(key: &str, found: u64, min: u64, why: &str) -> Result<(), ScheduleError> {
    if found < min {
        return Err(ScheduleError::bound(key, &format!("at least {min}, {why}"), found));
    }
    Ok(())
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
