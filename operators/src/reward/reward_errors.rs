//! Errors of rewards that do not end the run.

use rollpacker_dataflow::fault::{Fault, HasOrigin};
use rollpacker_stages::reward::{MAX_TOLERATED, OnError, RewardError};

use super::tally::Tally;

/// The effect of an error that does not end the run.
#[derive(Debug, PartialEq)]
pub(crate) struct ErrorEffect {
    /// The value that replaces the score. NaN if the group must not be trained on.
    pub(crate) value: f64,
    /// The warning that is reported; `None` unless the error is the first of its reward and kind in the step.
    pub(crate) warning: Option<Fault>,
}

/// Returns the effect of an error of the reward for data source `source`, and counts the error in `tally`. If the error ends the run,
/// returns `None` and counts nothing. `on_error` is the result of `Tallies::effective_on_error`, which is [`Fail`](OnError::Fail) after too
/// many tolerated errors. `operator` is the name of the operator in the warning.
pub(crate) fn error_effect(
    (error, source): (&RewardError, &str),
    on_error: OnError,
    operator: &str,
    tally: &mut Tally,
) -> Option<ErrorEffect> {
    let (value, consequence) = match on_error {
        OnError::Fail => return None,
        OnError::Zero => (0.0, "counts as 0"),
        OnError::Tolerate | OnError::DropGroup => (f64::NAN, "its group is not trained on"),
    };
    let kind = error.kind.as_str();
    let warning = tally.error(error).then(|| {
        let more = format!("further ones of the step are counted in `reward/errors/{kind}`");
        let message = format!("{}; {consequence}; {more}", describe(error, source));
        Fault::new(operator, error.origin(), message)
    });
    Some(ErrorEffect { value, warning })
}

/// Returns the message of an error, with the data source that selected the reward.
pub(crate) fn describe(error: &RewardError, data_source: &str) -> String {
    format!("data_source `{data_source}`: {error}")
}

/// Returns the message of an error that ends the run. `on_error` is the setting of the route.
pub(crate) fn describe_last(error: &RewardError, data_source: &str, on_error: OnError) -> String {
    let described = describe(error, data_source);
    if on_error == OnError::Tolerate {
        return format!("{described}; the reward has failed {MAX_TOLERATED} times in a row");
    }
    described
}
