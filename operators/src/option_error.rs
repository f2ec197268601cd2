//! The error of options that are out of range.

/// The error of an option that is out of range.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("`{key}` is {found}, expected {expected}")]
pub struct OptionError {
    /// The name of the option.
    pub key: &'static str,
    /// The value of the option.
    pub found: f64,
    /// The allowed range in words, such as `a number from 1 to 1000`.
    pub expected: &'static str,
}

/// Returns an error unless the value `found` of the option `key` is in range. `expected` describes the range.
pub(crate) fn within(
    key: &'static str,
    found: f64,
    is_in_range: bool,
    expected: &'static str,
) -> Result<(), OptionError> {
    if is_in_range { Ok(()) } else { Err(OptionError { key, found, expected }) }
}
