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
    /// The URLs of the servers; at least one, each once. A server is an instance of the engine, by its index.
    pub servers: Vec<String>,
    /// The environment variable with the API key of all servers; no key by default.
    pub api_key_env: Option<String>,
    /// The expected name of the model in the servers' list of models. By default, the first server's name is expected of the others.
    pub model: Option<String>,
    /// The sampling of tokens and the bounds of a response.
    pub sampling: Sampling,
    /// The distribution whose log-probabilities a vLLM server returns.
    pub logprobs_mode: LogprobsMode,
    /// The end-of-sequence tokens. They end responses in addition to those of the server.
    pub ends: Arc<[i32]>,
    /// The maximum length of a prompt in tokens. With the longest response it must fit into the servers' limit.
    pub max_prompt_length: usize,
    /// The maximum number of responses that a server runs at once; at least 1. At most the server's own limit (`--max-num-seqs`), so that
    /// no response waits in the server. (verl: `rollout.max_num_seqs`)
    pub max_running: usize,
    /// The treatment of running responses while new weights are loaded.
    pub pause: PauseMode,
    /// The longest time without any server in rotation before the engine fails.
    pub server_timeout: Duration,
    /// The time limits of calls.
    pub limits: Limits,
    /// The proof that weights arrived.
    pub canary: CanaryConfig,
    /// The folder for the weights of each version. All servers must see it under the same path. One engine uses it at a time.
    pub weights_folder: PathBuf,
    /// The folder of the model, with configuration and tokenizer.
    pub model_folder: PathBuf,
}

/// The reason why the engine cannot start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An option is out of bounds.
    #[error("`{option}`: expected {expected}, found {found}")]
    Option {
        /// The name of the option.
        option: &'static str,
        /// The expected value.
        expected: String,
        /// The value.
        found: String,
    },
    /// The address or the key of a server cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// The servers cannot honour a sampling option.
    #[error(transparent)]
    Sampling(#[from] SamplingRefusal),
    /// The folder of the weights cannot be used.
    #[error(transparent)]
    Weights(#[from] WeightError),
    /// No server answered in time.
    #[error("no server answered for {waited:?}; the last error: {last}")]
    Absent {
        /// The limit.
        waited: Duration,
        /// The last error of the last server.
        last: ServerError,
    },
    /// A server lacks what training needs.
    #[error(transparent)]
    Server(ServerError),
    /// A server has another model.
    #[error("{server}: expected the model `{expected}`, found `{found}`")]
    Model {
        /// The URL of the server.
        server: String,
        /// The expected name.
        expected: String,
        /// The name.
        found: String,
    },
    /// Prompts and responses do not fit into a server's limit.
    #[error(
        "{server}: expected room for {expected} tokens of prompt and response, found {found}; start the server with a larger `--max-model-len`"
    )]
    TooShort {
        /// The URL of the server.
        server: String,
        /// The longest prompt and response.
        expected: u64,
        /// The server's limit.
        found: u64,
    },
    /// The threads of the engine cannot start.
    #[error("cannot start threads for HTTP: {0}")]
    Threads(std::io::Error),
}

impl ServersConfig {
    /// Checks all bounds that need no server.
    ///
    /// # Errors
    /// The first option that is out of bounds, or that the servers cannot honour.
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

    /// The number of tokens of the longest prompt and response.
    pub(super) fn longest(&self) -> u64 {
        self.max_prompt_length as u64 + u64::from(self.sampling.max_new_tokens)
    }
}
