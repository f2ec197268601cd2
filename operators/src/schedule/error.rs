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
    /// A number is too small beside another.
    #[error("`{key}` is {found}, expected at least {least}, {why}")]
    Small {
        /// The key.
        key: &'static str,
        /// What was given.
        found: u64,
        /// The least allowed.
        least: u64,
        /// Where that comes from.
        why: &'static str,
    },
    /// An option has no meaning beside another.
    #[error("`{key}` cannot be had with {with}: {why}")]
    Conflict {
        /// The key.
        key: &'static str,
        /// The other option, as written.
        with: &'static str,
        /// Why not.
        why: &'static str,
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

/// Refuses a number below `least`, which is there because of `why`.
pub(super) fn at_least(
    key: &'static str,
    found: u64,
    least: u64,
    why: &'static str,
) -> Result<(), ScheduleError> {
    if found < least { Err(ScheduleError::Small { key, found, least, why }) } else { Ok(()) }
}
