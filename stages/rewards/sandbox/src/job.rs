//! The jobs of a sandbox.

use serde::Serialize;

use super::check::Check;
use super::config::{Language, SandboxConfig};
use super::error::SandboxError;
use super::frame;

/// A solution and its tests.
#[derive(Clone, Debug, PartialEq)]
pub struct Job {
    /// The source code of the solution.
    pub solution: String,
    /// The language: `python`, or a name from `languages` of the configuration.
    pub language: String,
    /// The tests that the solution must pass.
    pub check: Check,
    /// The time limits of the test cases in [charged](super::Case::seconds) seconds: one or more positive numbers. The last limit applies
    /// to all further cases, and limits above 1e6 count as 1e6. By the wall clock, a case may take five times its limit.
    pub seconds: Vec<f64>,
}

/// The maximum time limit of a case in seconds, about eleven days. The timers of the sandbox cannot represent arbitrary numbers.
const MAX_SECONDS: f64 = 1e6;

/// The frame that the checker reads.
#[derive(Serialize)]
struct JobFrame<'a> {
    language: &'a str,
    /// The configuration of the language; `None` for the warm Python interpreter.
    spec: Option<&'a Language>,
    solution: &'a str,
    check: &'a Check,
    seconds: Vec<f64>,
    output_bytes: u64,
}

/// A job as it is sent over the control socket.
pub(super) struct EncodedJob {
    /// The encoded [`JobFrame`].
    pub(super) frame: Vec<u8>,
    /// `true` for languages other than Python: all runs then share the namespaces and the /tmp of a host, so that a run finds what an
    /// earlier run compiled. The zygote needs this flag because it does not read the frame.
    pub(super) together: bool,
}

impl Job {
    /// Encodes the job.
    ///
    /// # Errors
    /// If the language is neither `python` nor configured, there is no time limit, or a time limit is not positive and finite.
    pub(super) fn encode(&self, config: &SandboxConfig) -> Result<EncodedJob, SandboxError> {
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
        let seconds = seconds.iter().map(|seconds| seconds.min(MAX_SECONDS)).collect();
        let job = JobFrame { language, spec, solution, check, seconds, output_bytes };
        Ok(EncodedJob { frame: frame::encode(&job), together: language != "python" })
    }
}

fn unknown(language: &str, config: &SandboxConfig) -> SandboxError {
    let known = ["python"].into_iter().chain(config.languages.keys().map(String::as_str));
    SandboxError::UnknownLanguage {
        language: language.into(),
        known: known.collect::<Vec<_>>().join(", "),
    }
}
