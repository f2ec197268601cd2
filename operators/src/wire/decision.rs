//! The values of the columns `decision` and `round` of [`DECISIONS`](rollpacker_dataflow::schema::DECISIONS).

use std::fmt;

use serde::{Deserialize, Serialize};

/// `decision` of a round that opens.
pub(crate) const OPEN: &str = "open";
/// `decision` of a prompt that is trained on.
pub(crate) const ADMIT: &str = "admit";
/// `decision` of a prompt that is deferred.
pub(crate) const DEFER: &str = "defer";
/// `decision` of a response that is paused for a later round.
pub(crate) const PAUSE_DECISION: &str = "pause";
/// `decision` of a prompt that is never trained on.
pub(crate) const REJECT: &str = "reject";
/// `decision` of a round that closes.
pub(crate) const CLOSE: &str = "close";

/// The kind of a round, which determines the responses that the round waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum RoundKind {
    /// The round waits for every response that it launches, except responses to prompts that the sorted schedule loads ahead.
    Full,
    /// A speculative round: it may launch more responses than it trains on.
    Short,
    /// A round of deferred prompts, filled up with fresh prompts if necessary, that waits until the group of each prompt is complete.
    Long,
}

impl RoundKind {
    /// Returns the name as written in the column `round` of decisions.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Short => "short",
            Self::Long => "long",
        }
    }
}

impl fmt::Display for RoundKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
