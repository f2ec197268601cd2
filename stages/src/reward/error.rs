//! Why a response has no score.

use std::fmt;
use std::time::Duration;

use crate::secret::redact;

/// Why a response could not be scored. Never turned into a silent 0: what it does to the run is configured, and it is always counted.
///
/// A response that is merely wrong is a low score, never an error.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}{kind}: {reason}", if reward.is_empty() { String::new() } else { format!("reward `{reward}`: ") })]
pub struct RewardError {
    /// The reward, by the name under which it is routed; the [`Router`](super::Router) fills it in.
    pub reward: String,
    /// What can be done about it.
    pub kind: ErrorKind,
    /// What happened; for a field that is missing or cannot be read: which, what was expected and what was found.
    pub reason: String,
    /// How long whoever failed asks to be left alone before another try.
    pub retry_after: Option<Duration>,
}

/// What can be done about a [`RewardError`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum ErrorKind {
    /// Another try may succeed: a server that is busy, a connection that broke, a sandbox that failed.
    Retryable,
    /// No try will succeed: a field that is missing, a verdict that cannot be read, a setting that is wrong.
    Fatal,
    /// The scorer took longer than it may. Code under test that does is a score, not an error.
    Timeout,
    /// The reward has nothing to say of this sample; a [weighted sum](super::WeightedSum) goes on without it.
    NotApplicable,
}

impl ErrorKind {
    /// All kinds.
    pub const ALL: [Self; 4] = [Self::Retryable, Self::Fatal, Self::Timeout, Self::NotApplicable];

    /// As written in metrics: `reward/errors/<name>`.
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

impl RewardError {
    /// Another try may succeed.
    #[must_use]
    pub fn retryable(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Retryable, reason)
    }

    /// No try will succeed.
    #[must_use]
    pub fn fatal(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Fatal, reason)
    }

    /// The scorer took longer than it may.
    #[must_use]
    pub fn timeout(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::Timeout, reason)
    }

    /// The reward has nothing to say of the sample.
    #[must_use]
    pub fn not_applicable(reason: impl fmt::Display) -> Self {
        Self::new(ErrorKind::NotApplicable, reason)
    }

    /// The dataset row lacks a field that the reward needs.
    #[must_use]
    pub fn missing(field: &str, data_source: &str) -> Self {
        Self::fatal(format_args!(
            "needs the field `{field}`, which the row of data_source `{data_source}` lacks"
        ))
    }

    fn new(kind: ErrorKind, reason: impl fmt::Display) -> Self {
        // A program that scores may repeat its environment.
        let reason = redact(&reason.to_string()).into_owned();
        Self { reward: String::new(), kind, reason, retry_after: None }
    }

    /// The same error, of one who asks to be left alone for so long.
    #[must_use]
    pub fn retry_after(self, wait: Option<Duration>) -> Self {
        Self { retry_after: wait, ..self }
    }

    /// The same error, of the reward `name`, unless it has a name.
    #[must_use]
    pub(crate) fn named(mut self, name: &str) -> Self {
        if self.reward.is_empty() {
            name.clone_into(&mut self.reward);
        }
        self
    }
}

/// Errors of one reward in a row, with no score between them, after which [`OnError::Tolerate`] ends a run.
pub const MOST_TOLERATED: u32 = 32;

/// What the error of a reward does to the run.
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
    /// As [`DropGroup`](Self::DropGroup), as long as the reward scores others: [`MOST_TOLERATED`] errors in a row end the run, since a reward
    /// that never scores is broken.
    #[default]
    Tolerate,
    /// The run ends with the error.
    Fail,
    /// The response counts as 0, and is counted.
    Zero,
    /// Its group is not trained on, and is counted.
    DropGroup,
}
