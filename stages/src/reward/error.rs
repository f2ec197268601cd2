//! Errors of rewards.

use std::fmt;
use std::time::Duration;

use rollpacker_dataflow::fault::{HasOrigin, Origin};

use crate::secret::redact;

/// The reason why a response could not be scored. Errors are never replaced by a silent 0: [`OnError`] configures their effect, and errors
/// that do not end the run are counted.
///
/// A response that is merely wrong gets a low score and is not an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}: {reason}", if reward.is_empty() { String::new() } else { format!("reward `{reward}`: ") })]
pub struct RewardError {
    /// The name of the reward: of its route, or of its term in a weighted sum. Empty until [`named`](Self::named) sets it.
    pub reward: String,
    /// The kind of error, which determines the reaction.
    pub kind: ErrorKind,
    /// The reason. For a missing or unreadable field, it names the field, the expected value and the value found.
    pub reason: String,
    /// The time to wait before another attempt; `None` if the scorer requested none.
    pub retry_after: Option<Duration>,
}

/// The kind of a [`RewardError`], which determines the reaction to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// Another attempt may succeed: the server is busy, a connection broke, or a sandbox failed.
    Retryable,
    /// No attempt can succeed: a field is missing, a verdict cannot be parsed, or a setting is wrong.
    Fatal,
    /// The scorer exceeded its time limit. Code under test that exceeds its limit gets a score instead.
    Timeout,
    /// The reward does not apply to this sample. A weighted sum leaves the reward out.
    NotApplicable,
}

impl ErrorKind {
    /// All kinds of errors.
    pub const ALL: [Self; 4] = [Self::Retryable, Self::Fatal, Self::Timeout, Self::NotApplicable];

    /// Returns the name used in metrics: `reward/errors/<name>`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Retryable => "retryable",
            Self::Fatal => "fatal",
            Self::Timeout => "timeout",
            Self::NotApplicable => "not_applicable",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Retryable => "failed for now",
            Self::Fatal => "failed",
            Self::Timeout => "timed out",
            Self::NotApplicable => "is not applicable",
        })
    }
}

impl HasOrigin for RewardError {
    fn origin(&self) -> Origin {
        match self.kind {
            ErrorKind::Retryable | ErrorKind::Timeout => Origin::Environment,
            ErrorKind::Fatal | ErrorKind::NotApplicable => Origin::User,
        }
    }
}

impl RewardError {
    /// Returns an error after which another attempt may succeed.
    #[must_use]
    pub fn retryable(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Retryable, reason)
    }

    /// Returns an error after which no attempt can succeed.
    #[must_use]
    pub fn fatal(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Fatal, reason)
    }

    /// Returns the error of a scorer that exceeded its time limit.
    #[must_use]
    pub fn timeout(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Timeout, reason)
    }

    /// Returns the error of a reward that does not apply to the sample.
    #[must_use]
    pub fn not_applicable(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::NotApplicable, reason)
    }

    /// Returns the fatal error of a dataset row that lacks the field `field`.
    #[must_use]
    pub fn missing(field: &str, data_source: &str) -> Self {
        Self::fatal(format_args!(
            "needs the field `{field}`, which the row of data_source `{data_source}` lacks"
        ))
    }

    fn new(kind: ErrorKind, reason: impl fmt::Display) -> Self {
        // Scoring programs may print their environment.
        let reason = redact(&reason.to_string()).into_owned();
        Self { reward: String::new(), kind, reason, retry_after: None }
    }

    /// Sets the time to wait before another attempt.
    #[must_use]
    pub fn retry_after(self, wait: Option<Duration>) -> Self {
        Self { retry_after: wait, ..self }
    }

    /// Sets the name of the reward, unless one is set.
    #[must_use]
    pub fn named(mut self, name: &str) -> Self {
        if self.reward.is_empty() {
            name.clone_into(&mut self.reward);
        }
        self
    }
}

/// The number of consecutive errors of one reward on one worker, without a score in between, at which [`OnError::Tolerate`] ends a run.
pub const MAX_TOLERATED: u32 = 32;

/// The effect of a reward's error on the run.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    serde::Serialize,
    serde::Deserialize,
)]
#[serde(rename_all = "snake_case")]
pub enum OnError {
    /// Like [`DropGroup`](Self::DropGroup), but [`MAX_TOLERATED`] consecutive errors end the run, since a reward that never scores is
    /// broken.
    #[default]
    Tolerate,
    /// The run ends with the error.
    Fail,
    /// The failed reward counts as a score of 0, and the error is counted. If a group reward fails, the responses keep the scores of their
    /// own reward.
    Zero,
    /// The group is not trained on, and the error is counted.
    DropGroup,
}
