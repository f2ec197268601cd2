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
    /// Limits of the test cases, in seconds as they are [charged](super::Case::seconds); the last counts for all further ones. By the wall
    /// clock, a case may take five times its limit.
    pub seconds: Vec<f64>,
}

/// What the checker side reads.
#[derive(Serialize)]
struct JobFrame<'a> {
    language: &'a str,
    /// How the language is started; none for the interpreter that is there.
    spec: Option<&'a Language>,
    solution: &'a str,
    check: &'a Check,
    seconds: &'a [f64],
    output_bytes: u64,
}

/// A job as it goes over the control socket.
pub(super) struct Packed {
    /// What the checker side reads.
    pub(super) frame: Vec<u8>,
    /// Whether its runs find what an earlier one left, as a program finds what was compiled; the zygote is told.
    pub(super) together: bool,
}

impl Job {
    /// The job as it is sent.
    ///
    /// # Errors
    /// The language is not in the table, or there is no time.
    pub(super) fn pack(&self, config: &SandboxConfig) -> Result<Packed, SandboxError> {
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
        let job = JobFrame { language, spec, solution, check, seconds, output_bytes };
        Ok(Packed { frame: frame::encode(&job), together: language != "python" })
    }
}

fn unknown(language: &str, config: &SandboxConfig) -> SandboxError {
    let known = ["python"].into_iter().chain(config.languages.keys().map(String::as_str));
    SandboxError::UnknownLanguage {
        language: language.into(),
        known: known.collect::<Vec<_>>().join(", "),
    }
}
