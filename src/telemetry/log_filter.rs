//! The log messages that are printed and exported: warnings of the crates of this project, or the messages that `RUST_LOG` selects.

use tracing_subscriber::filter::EnvFilter;

use super::env::variable;

/// The variable that selects the messages, in the syntax of [`EnvFilter`]: directives such as `debug` or `rollpacker_servers=debug`,
/// separated by commas.
const VARIABLE: &str = "RUST_LOG";
/// The value if `RUST_LOG` is not set: warnings of all crates of this project, because targets are matched by their prefix.
pub(super) const DEFAULT_FILTER: &str = "rollpacker=warn";

/// The error of a value of `RUST_LOG` that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[error(
    "{VARIABLE}: expected directives such as `info` or `rollpacker_servers=debug`, separated by commas, found `{found}`: {reason}"
)]
pub(crate) struct LogFilterError {
    found: String,
    reason: String,
}

/// Returns the filter of the variable; [`DEFAULT_FILTER`] if it is not set.
///
/// # Errors
/// If the value of the variable cannot be parsed.
pub(super) fn parse() -> Result<EnvFilter, LogFilterError> {
    let found = variable(VARIABLE).unwrap_or_else(|| DEFAULT_FILTER.to_owned());
    let parsed = EnvFilter::builder().parse(&found);
    parsed.map_err(|error| LogFilterError { found, reason: error.to_string() })
}

/// Returns the filter of the variable; [`DEFAULT_FILTER`] if it is not set or cannot be parsed.
pub(super) fn selected() -> EnvFilter {
    parse().unwrap_or_else(|_| EnvFilter::new(DEFAULT_FILTER))
}
