//! What a solution is checked against.

use serde::{Deserialize, Serialize};

/// The tests of a job, as the checker side reads them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "kind")]
pub enum Check {
    /// The solution runs to its end.
    Runs,
}
