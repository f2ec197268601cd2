//! Errors of the sandbox, as opposed to failures of a solution.

/// The reason why there is no verdict. It never counts as a failure of the model.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SandboxError {
    /// The machine does not allow the required isolation.
    #[error(
        "no sandbox on this machine: {missing}. To run code without isolation, which lets it read everything that this process can \
         read, set `isolation = \"none\"`"
    )]
    NoIsolation {
        /// The missing layers of isolation, or the error of setting them up.
        missing: String,
    },
    /// The interpreter is missing, older than Python 3.8 or failed, or the sandbox could not create a process, a thread or a folder.
    #[error("the sandbox did not start: {reason}")]
    Start {
        /// The reason, such as the interpreter's error output.
        reason: String,
    },
    /// The sandbox failed while it ran a job, or the job was cancelled. If a slot failed, it is restarted for the next job.
    #[error("sandbox fault: {reason}")]
    Fault {
        /// The failure of the sandbox, or that the job was cancelled.
        reason: String,
    },
    /// The tests cannot be run, which is an error of the dataset and not of the model.
    #[error("the tests are broken: {reason}")]
    Tests {
        /// The reason why the tests cannot be run, such as a syntax error.
        reason: String,
    },
    /// The language of the job is not configured.
    #[error("no language `{language}` in the sandbox; the known languages are {known}")]
    UnknownLanguage {
        /// The language of the job.
        language: String,
        /// The languages of the sandbox, separated by commas: `python` and the configured ones.
        known: String,
    },
    /// A setting of the sandbox is out of its range.
    #[error("`{field}`: expected {}, found {found}", range(*.min, *.max))]
    Bound {
        /// The name of the setting, as in `SandboxConfig`.
        field: &'static str,
        /// The minimum of the setting, inclusive.
        min: u64,
        /// The maximum of the setting, inclusive; `u64::MAX` if there is none.
        max: u64,
        /// The configured value of the setting.
        found: u64,
    },
    /// The configuration of a language is invalid.
    #[error("language `{name}`, field `{field}`: expected {expected}, found `{found}`")]
    Language {
        /// The name of the language, as in `SandboxConfig::languages`.
        name: String,
        /// The name of the invalid field; `languages` if the name of the language itself is invalid.
        field: &'static str,
        /// A description of the valid values of the field.
        expected: &'static str,
        /// The configured value of the field; `nothing` for an empty command.
        found: String,
    },
    /// The time limits of the job are missing, or one of them is not positive and finite.
    #[error("field `seconds`: expected one or more positive numbers, found {seconds}")]
    Seconds {
        /// The time limits of the job in seconds, as a list.
        seconds: String,
    },
}

fn range(min: u64, max: u64) -> String {
    if max == u64::MAX { format!("at least {min}") } else { format!("from {min} to {max}") }
}
