//! What goes wrong with a sandbox, as against with a solution.

/// Why there is no verdict. Never scored as the model's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The machine does not allow what keeps code in.
    #[error(
        "no sandbox on this machine: {missing}. To run code without isolation all the same, trusting it with all that this process may \
         read, set `isolation = \"none\"`"
    )]
    NoIsolation {
        /// What is missing.
        missing: String,
    },
    /// The interpreter did not start.
    #[error("the sandbox did not start: {reason}")]
    Start {
        /// What it said.
        reason: String,
    },
    /// A slot failed; it is started anew for the next job.
    #[error("sandbox fault: {reason}")]
    Fault {
        /// What happened.
        reason: String,
    },
    /// The tests are broken: the dataset's fault, not the model's.
    #[error("the tests are broken: {reason}")]
    Tests {
        /// What is wrong with them.
        reason: String,
    },
    /// The job is in a language of which there is nothing in the table.
    #[error("no language `{language}` in the sandbox; there are {known}")]
    UnknownLanguage {
        /// What was asked for.
        language: String,
        /// What there is.
        known: String,
    },
    /// A bound of the sandbox leaves nothing to run in.
    #[error("`{field}`: expected at least {least}, found {found}")]
    Bound {
        /// Its name.
        field: &'static str,
        /// The least that there may be.
        least: u64,
        /// What there is.
        found: u64,
    },
    /// A language of the table can never run.
    #[error("language `{name}`, field `{field}`: expected {expected}, found `{found}`")]
    Language {
        /// Its name.
        name: String,
        /// The field of its row.
        field: &'static str,
        /// What may be there.
        expected: &'static str,
        /// What is.
        found: String,
    },
    /// The job's times are none, or not times.
    #[error("field `seconds`: expected one or more positive numbers, found {seconds}")]
    Seconds {
        /// What was given.
        seconds: String,
    },
}
