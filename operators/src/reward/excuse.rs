//! Errors of rewards that do not end the run.

use rollpacker_dataflow::fault::Fault;
use rollpacker_stages::reward::{MOST_TOLERATED, OnError, RewardError};

use super::tally::Tally;

/// What an error counts as that does not end the run.
#[derive(Debug, PartialEq)]
pub(crate) struct Excused {
    /// What is written as the score: not a number if the group is not to be trained on.
    pub(crate) value: f64,
    /// What people are told: only of the first error of a reward and kind in a step.
    pub(crate) warning: Option<Fault>,
}

/// Counts an error, and says what it counts as; `None` if it ends the run. Whether it is [tolerated](OnError::Tolerate) is decided before.
pub(crate) fn excuse(
    (error, source): (&RewardError, &str),
    on_error: OnError,
    operator: &str,
    tally: &mut Tally,
) -> Option<Excused> {
    let (value, consequence) = match on_error {
        OnError::Fail => return None,
        OnError::Zero => (0.0, "counts as 0"),
        OnError::Tolerate | OnError::DropGroup => (f64::NAN, "its group is not trained on"),
    };
    let kind = error.kind.as_str();
    let warning = tally.error(error).then(|| {
        let more = format!("further ones of the step are counted in `reward/errors/{kind}`");
        Fault::new(operator, format!("{}; {consequence}; {more}", describe(error, source)))
    });
    Some(Excused { value, warning })
}

/// An error as people read it: with the data source that led to its reward.
pub(crate) fn describe(error: &RewardError, data_source: &str) -> String {
    format!("data_source `{data_source}`: {error}")
}

/// An error that ends the run, of a route that says `on_error`.
pub(crate) fn describe_last(error: &RewardError, data_source: &str, on_error: OnError) -> String {
    let described = describe(error, data_source);
    if on_error == OnError::Tolerate {
        return format!(
            "{described}; the reward has failed {MOST_TOLERATED} times in a row without a score between"
        );
    }
    described
}
