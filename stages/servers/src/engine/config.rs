//! The configuration of the engine, and the reasons why it cannot start.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use rollpacker_stages::rollout::sampling::Sampling;

use crate::canary::CanaryConfig;
use crate::http::{AddressError, ServerError};
use crate::sampling::{LogprobsMode, SamplingRefusal, check};
use crate::server::{Limits, Protocol};
use crate::vllm::protocol::PauseMode;
use crate::weights::WeightError;

/// The configuration of a [`ServersEngine`](super::ServersEngine).
#[derive(Clone, Debug, PartialEq)]
pub struct ServersConfig {
    /// The protocol of all servers.
    pub protocol: Protocol,
    /// The URLs of the servers; at least one, each once. Each server is an instance of the engine, whose number is the index of the URL.
    pub servers: Vec<String>,
    /// The environment variable that has the API key of all servers; `None` if they need no key.
    pub api_key_env: Option<String>,
    /// The expected name of the model in the servers' list of models. If `None`, all servers must have the same model as the first of
    /// `servers` that answers at the start.
    pub model: Option<String>,
    /// The sampling options, with the minimum and maximum length of a response.
    pub sampling: Sampling,
    /// The distribution whose log-probabilities a vLLM server returns.
    pub logprobs_mode: LogprobsMode,
    /// The end-of-sequence tokens. They end responses in addition to those of the server.
    pub eos_token_ids: Arc<[i32]>,
    /// The maximum length of a prompt in tokens. Together with the maximum length of a response, it must fit into the servers' context.
    pub max_prompt_length: usize,
    /// The maximum number of responses that a server runs at once; at least 1. It should not exceed the server's own limit
    /// (`--max-num-seqs`), so that no response waits in the server. (verl: `rollout.max_num_seqs`)
    pub max_running: usize,
    /// The treatment of running responses while new weights are loaded. SGLang does not support [`PauseMode::Keep`].
    pub pause: PauseMode,
    /// The maximum time without any server that is in rotation or about to join it, after which the engine fails. At the start of the
    /// engine, the time after which no further attempt to reach a server is made.
    pub server_timeout: Duration,
    /// The time limits of calls.
    pub limits: Limits,
    /// The tokens and bounds of the canary, which verifies that weights arrived.
    pub canary: CanaryConfig,
    /// The folder for the weights of each version. All servers must see it under the same path. One engine uses it at a time. When the
    /// engine starts, it removes the folders of versions that an earlier engine left there.
    pub weights_folder: PathBuf,
    /// The folder of the model, with configuration and tokenizer.
    pub model_folder: PathBuf,
}

/// The reason why the engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option other than a sampling option is out of bounds, or the servers cannot honour it.
    #[error("`{option}`: expected {expected}, found {found}")]
    Option {
        /// The path of the option in [`ServersConfig`], for example `canary.tokens`.
        option: &'static str,
        /// A description of the valid values.
        expected: String,
        /// A description of the configured value.
        found: String,
    },
    /// The URL or the API key of a server cannot be used, or its HTTP client cannot start.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// A sampling option is out of bounds, or the servers cannot honour it.
    #[error(transparent)]
    Sampling(#[from] SamplingRefusal),
    /// The folder of the weights cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// No server answered in time.
    #[error("no server answered for {waited:?}; the last error: {last}")]
    Unreachable {
        /// The time limit, [`ServersConfig::server_timeout`].
        waited: Duration,
        /// The last error of a server.
        last: ServerError,
    },
    /// A check of a server failed with an error that is not temporary, for example because the server lacks a call or refuses the API key.
    #[error(transparent)]
    Server(ServerError),
    /// A server has a model with another name than expected.
    #[error("{server}: expected the model `{expected}`, found `{found}`")]
    Model {
        /// The URL of the server.
        server: String,
        /// The configured name, or the name on the first server that answered.
        expected: String,
        /// The name on this server.
        found: String,
    },
    /// A prompt and a response of maximum length do not fit into a server's limit.
    #[error(
        "{server}: expected room for {expected} tokens of prompt and response, found {found}; start the server with a larger `--max-model-len`"
    )]
    ContextTooShort {
        /// The URL of the server.
        server: String,
        /// The maximum length of prompt and response, in tokens.
        expected: u64,
        /// The server's limit, in tokens.
        found: u64,
    },
    /// The threads of the engine cannot start.
    #[error("cannot start threads for HTTP: {0}")]
    Threads(std::io::Error),
}

impl ServersConfig {
    /// Checks the options, without a call to a server.
    ///
    /// # Errors
    /// Returns the first option that is out of bounds, or that the servers cannot honour.
    pub fn check(&self) -> Result<(), StartError> {
        let refuse = |option, expected: &str, found: String| {
            Err(StartError::Option { option, expected: expected.to_owned(), found })
        };
        if self.servers.is_empty() {
            return refuse("servers", "at least one URL", "none".to_owned());
        }
        let repeated = self
            .servers
            .iter()
            .enumerate()
            .find(|(index, url)| self.servers[..*index].contains(url));
        if let Some((_, url)) = repeated {
            return refuse("servers", "each URL once", format!("`{url}` twice"));
        }
        if self.max_running == 0 {
            return refuse("max_running", "at least 1", "0".to_owned());
        }
        if self.canary.tokens.len() < 2 {
            let found = format!("{} tokens", self.canary.tokens.len());
            return refuse("canary.tokens", "at least 2 tokens", found);
        }
        if self.protocol == Protocol::Sglang && self.pause == PauseMode::Keep {
            let expected =
                "`abort` or `wait`, because SGLang reports one weight version per response";
            return refuse("pause", expected, "`keep`".to_owned());
        }
        check(&self.sampling, self.protocol, self.logprobs_mode)?;
        Ok(())
    }

    /// Returns the maximum length of prompt and response, in tokens.
    pub(super) fn max_length(&self) -> u64 {
        self.max_prompt_length as u64 + u64::from(self.sampling.max_new_tokens)
    }
}
