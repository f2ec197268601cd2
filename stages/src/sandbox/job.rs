//! What a sandbox is asked.

use serde::Serialize;

use super::check::Check;
use super::config::{Language, SandboxConfig};
use super::error::SandboxError;
use super::frame;

/// A solution, and what it is checked against.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The code.
    pub solution: String,
    /// In which language it is: `python`, or one of the configuration.
    pub language: String,
    /// The tests.
    pub check: Check,
    /// Wall seconds of each test case; the last counts for all further ones.
    pub seconds: Vec<f64>,
}

/// What the solution side reads.
#[derive(Serialize)]
struct SolutionFrame<'a> {
    language: &'a str,
    /// How the language is started; none for the interpreter that is there.
    spec: Option<&'a Language>,
    solution: &'a str,
    seconds: &'a [f64],
    output_bytes: u64,
}

/// What the checker side reads.
#[derive(Serialize)]
struct CheckerFrame<'a> {
    language: &'a str,
    check: &'a Check,
    seconds: &'a [f64],
    output_bytes: u64,
}

impl Job {
    /// Both frames as they go over the control socket.
    ///
    /// # Errors
    /// The language is not in the table, or there is no time.
    pub(super) fn frames(&self, config: &SandboxConfig) -> Result<Vec<u8>, SandboxError> {
        let Self { solution, language, check, seconds } = self;
        let output_bytes = config.output_bytes;
        let spec = config.languages.get(language);
        if spec.is_none() && language != "python" {
            return Err(unknown(language, config));
        }
        if seconds.is_empty()
            || seconds.iter().any(|seconds| !(*seconds > 0.0 && seconds.is_finite()))
        {
            return Err(SandboxError::Seconds { seconds: format!("{seconds:?}") });
        }
        let mut bytes =
            frame::encode(&SolutionFrame { language, spec, solution, seconds, output_bytes });
        bytes.extend(frame::encode(&CheckerFrame { language, check, seconds, output_bytes }));
        Ok(bytes)
    }
}

fn unknown(language: &str, config: &SandboxConfig) -> SandboxError {
    let known = ["python"].into_iter().chain(config.languages.keys().map(String::as_str));
    SandboxError::UnknownLanguage {
        language: language.into(),
        known: known.collect::<Vec<_>>().join(", "),
    }
}
