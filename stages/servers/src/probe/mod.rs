//! A conformance report of a vLLM server: `rollpacker probe`.
//!
//! [`probe`] makes all calls that training needs and compares the answers with the program's own forward pass of the same weights. It
//! reports what passes, what is missing and what is wrong. To prove that weight updates arrive, it loads a perturbed copy of the weights,
//! and then the first weights again.
//!
//! A run makes the short form of the probe at its start; the proof of the weights comes with its first delivery there.

mod chi_square;
mod control;
mod errors;
mod finding;
mod report;
mod sampling;
mod session;
mod start;
mod tokens;
mod update;

use std::hash::{BuildHasher, RandomState};
use std::path::PathBuf;

use tokio::sync::watch;

pub use self::report::{Check, CheckReport, CheckResult, Figure, ProbeReport};
use self::session::ProbeSession;
pub(crate) use self::start::check_start;
use crate::canary::CanaryConfig;
use crate::http::{AddressError, Endpoint, ServerError};
use crate::server::Limits;
use crate::vllm::VllmClient;
use crate::weights::PublishedWeights;

/// The configuration of a probe.
#[derive(Clone, Debug, PartialEq)]
pub struct ProbeConfig {
    /// The URL of the server.
    pub server: String,
    /// The environment variable with the API key; no key by default.
    pub api_key_env: Option<String>,
    /// The expected name of the model; any by default.
    pub model: Option<String>,
    /// The tokens of prompt and response that the server must have room for; not checked by default.
    pub longest: Option<u64>,
    /// The time limits of calls.
    pub limits: Limits,
    /// The tokens that are scored, and the bounds of the differences.
    pub canary: CanaryConfig,
    /// The folder of the model, under a path that the server sees.
    pub model_folder: PathBuf,
    /// The folder in which a temporary folder with the perturbed weights is written, under a path that the server sees.
    pub weights_folder: PathBuf,
}

/// The program's own forward pass of the weights that the server was started with. The methods of [`PublishedWeights`] write and score the
/// current weights.
pub trait ReferenceModel: PublishedWeights {
    /// Returns the largest log-probability of any token at the place of each of `tokens` after the first, given those before it.
    ///
    /// # Errors
    /// The cause, if the forward pass fails.
    fn best(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;

    /// Returns the log-probability of every token of the vocabulary after `tokens`.
    ///
    /// # Errors
    /// The cause, if the forward pass fails.
    fn next(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;

    /// Adds normal noise to all weights. Its standard deviation is `strength` times the root mean square of the tensor.
    ///
    /// # Errors
    /// The cause, if the tensors cannot be changed.
    fn perturb(&mut self, strength: f64) -> Result<(), String>;
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The address or the key of the server cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The canary is too short.
    #[error("`canary.tokens`: expected at least 2 tokens, found {0}")]
    Canary(usize),
    /// The server does not answer, or is not ready.
    #[error("{0}")]
    Unreachable(ServerError),
}

/// Checks a server. When `stop` becomes `true`, the probe ends early. In either case it leaves the server as it was: with its first weights
/// and their label, and not paused.
///
/// Nothing else may use the server meanwhile: running requests are aborted, and for some seconds it has other weights.
///
/// # Errors
/// If the server cannot be reached, or an option is wrong. A server that lacks something is no error.
pub async fn probe(
    config: ProbeConfig,
    model: Box<dyn ReferenceModel>,
    mut stop: watch::Receiver<bool>,
) -> Result<ProbeReport, ProbeError> {
    let found = config.canary.tokens.len();
    if found < 2 {
        return Err(ProbeError::Canary(found));
    }
    let endpoint = Endpoint::new(&config.server, config.api_key_env.as_deref())?;
    let client = VllmClient::new(endpoint, config.limits);
    let mut session = ProbeSession::new(config, client, model);
    let is_stopped = async {
        if stop.wait_for(|stop| *stop).await.is_err() {
            // The sender is gone, so the probe cannot be stopped any more.
            std::future::pending::<()>().await;
        }
    };
    let interrupted = tokio::select! {
        biased;
        () = is_stopped => true,
        reached = session.run() => {
            reached.map_err(ProbeError::Unreachable)?;
            false
        }
    };
    session.leave().await;
    Ok(session.report(interrupted))
}

/// Returns a number that differs between any two probes, so that they share no request id and no cache entry.
fn nonce() -> u64 {
    // A new `RandomState` has random keys.
    RandomState::new().hash_one(0)
}
