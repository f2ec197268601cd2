//! A conformance report of a vLLM server: `rollpacker probe`.
//!
//! [`probe`] makes all calls that training needs and compares the answers with the program's own forward pass of the same weights. It
//! reports what passes, what is missing and what is wrong. To verify that weight updates arrive, it loads a perturbed copy of the weights,
//! and then the first weights again.
//!
//! A training run makes a short form of the probe at its start, and verifies the weights with its first delivery.

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
    /// The environment variable that has the API key; `None` if the server needs no key.
    pub api_key_env: Option<String>,
    /// The expected name of the model; `None` accepts any.
    pub model: Option<String>,
    /// The number of tokens of prompt and response for which the server must have room; `None` for no check.
    pub max_length: Option<u64>,
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
    /// Returns, for each of `tokens` after the first, the log-probability in nats of the most likely token at its position, given the
    /// tokens before it.
    ///
    /// # Errors
    /// Returns the cause if the forward pass fails.
    fn best_logprobs(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;

    /// Returns the log-probability, in nats, of every token of the vocabulary as the next token after `tokens`.
    ///
    /// # Errors
    /// Returns the cause if the forward pass fails.
    fn next_logprobs(&self, tokens: &[i32]) -> Result<Vec<f32>, String>;

    /// Adds normal noise to all weights. The standard deviation is `strength` times the root mean square of the tensor.
    ///
    /// # Errors
    /// Returns the cause if the tensors cannot be changed. Some of them may then have changed.
    fn perturb(&mut self, strength: f64) -> Result<(), String>;
}

/// The reason why there is no report.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// The URL or the API key of the server cannot be used, or the HTTP client cannot start.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The canary is too short.
    #[error("`canary.tokens`: expected at least 2 tokens, found {0}")]
    Canary(usize),
    /// The server does not answer, or is not ready.
    #[error("{0}")]
    Unreachable(ServerError),
}

/// Checks a server with the forward pass of `model`. When `stop` becomes `true`, the probe ends early; if the sender of `stop` is dropped,
/// the probe continues. In either case it tries to restore the server at the end: its first weights, their label and the unpaused state. If
/// the future is dropped, the server is not restored.
///
/// Nothing else may use the server during the probe: running requests are aborted, and for some seconds the server has other weights. The
/// methods of `model` run in this future and block its thread, so `stop` takes effect only after they have returned.
///
/// # Errors
/// Returns an error if the URL, the API key or the canary is invalid, the HTTP client cannot start, or the server does not answer or is not
/// ready. A failed check is not an error, but a part of the report.
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
    session.restore_server().await;
    Ok(session.report(interrupted))
}

/// Returns a random number. Probes and engines put it into the ids of their requests and the salts of their probes, so that no two of them
/// share an id or a cache entry.
pub(crate) fn nonce() -> u64 {
    // A new `RandomState` has random keys.
    RandomState::new().hash_one(0)
}
