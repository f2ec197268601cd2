//! Engines that serve independent requests, each with its own sampling options: the contract behind `rollpacker serve`.
//!
//! A [`RolloutEngine`](crate::rollout::RolloutEngine) answers the prompts of a step with the sampling options of the recipe and reports
//! whole responses. A [`ServingEngine`] takes independent requests, reports every token when it is sampled, scores the tokens of prompts,
//! and loads weights while requests are in flight.

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;

use crate::rollout::FinishReason;
use crate::rollout::sampling::Sampling;

/// The identity of a request in an engine. The caller never uses an identity twice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationId(pub u64);

/// A request to generate responses to a prompt.
pub struct Generation {
    /// The identity, with which the request can be aborted.
    pub id: GenerationId,
    /// The prompt as token ids: never empty, and each below [`ServingLimits::vocab_size`].
    pub prompt_ids: Arc<[i32]>,
    /// The number of responses, each sampled on its own. With 0 the prompt is only scored.
    pub samples: u32,
    /// The sampling options. The prompt and `max_new_tokens` fit into [`ServingLimits::context`] together.
    pub sampling: Sampling,
    /// The tokens that end a response.
    pub ends: EndTokens,
    /// The seed of the responses. Requests with the same seed, prompt, sampling options, end tokens and weights have the same responses.
    /// Without a seed, the identity of the request selects the random numbers.
    pub seed: Option<u64>,
    /// The number of most likely tokens whose log-probabilities the engine reports at each sampled token, in addition to the
    /// log-probability of the sampled token. `None` to report no log-probabilities.
    pub logprobs: Option<u32>,
    /// The number of most likely tokens whose log-probabilities the engine reports at each prompt token, in addition to the log-probability
    /// of the prompt token. `None` to report no log-probabilities.
    pub prompt_logprobs: Option<u32>,
    /// The receiver of the tokens, the ends and a failure.
    pub receiver: Box<dyn TokenReceiver>,
}

/// The tokens that end a response. The end token is part of the response.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct EndTokens {
    /// `true` to continue the response after an end-of-sequence token of the model.
    pub ignore_eos: bool,
    /// Further tokens that end the response. They are not sampled before `min_new_tokens` either.
    pub stop_token_ids: Arc<[i32]>,
}

/// A sampled token.
#[derive(Clone, Debug, PartialEq)]
pub struct ServedToken {
    /// The token id.
    pub id: i32,
    /// The log-probability of the token; `None` if it was not requested.
    pub logprob: Option<TokenLogprob>,
    /// The [label](ServingEngine::label) of the weights that sampled the token.
    pub version: Arc<str>,
}

/// The log-probability of a token at its position, under the model's own distribution: without temperature, and before any token is
/// excluded.
#[derive(Clone, Debug, PartialEq)]
pub struct TokenLogprob {
    /// The log-probability in nats.
    pub logprob: f32,
    /// The rank of the token, from 1: one more than the number of more likely tokens.
    pub rank: u32,
    /// The most likely tokens with their log-probabilities, in descending order.
    pub top: Vec<(i32, f32)>,
}

/// The receiver of the responses to a [`Generation`]. An engine calls it on the thread that samples, so the methods must not block.
pub trait TokenReceiver: Send {
    /// Receives the log-probabilities of the prompt tokens, from the second token on. Called once, before any call of `token`, and only if
    /// [`Generation::prompt_logprobs`] is set. Empty for a prompt of one token.
    fn prompt(&mut self, logprobs: Vec<TokenLogprob>);

    /// Receives the next token of a sample.
    fn token(&mut self, sample: u32, token: ServedToken);

    /// Receives the end of a sample, after its last token. Each sample ends once.
    fn end(&mut self, sample: u32, reason: FinishReason);

    /// Receives the failure of the engine; nothing follows.
    fn fail(&mut self, reason: &str);
}

/// The treatment of running requests during a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pause {
    /// All requests are aborted, running or waiting.
    Abort,
    /// The pause begins after the running requests have ended.
    Wait,
    /// Running requests continue after the pause, from their KV cache.
    Keep,
}

/// The sizes of an engine and its model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServingLimits {
    /// Maximum number of tokens of a prompt and its response together.
    pub context: usize,
    /// Number of tokens that the model has logits for.
    pub vocab_size: usize,
    /// Maximum number of responses that run at once, over all instances.
    pub max_running: usize,
    /// Maximum number of tokens in the KV caches, over all instances.
    pub kv_cache_tokens: usize,
    /// The end-of-sequence tokens of the model.
    pub eos_token_ids: Vec<i32>,
}

/// Statistics of an engine. Counters start at 0 when the engine starts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServingStatistics {
    /// Number of responses that run.
    pub running: u64,
    /// Number of responses that wait for room, or for the end of a pause.
    pub waiting: u64,
    /// Number of tokens that the running responses hold in the KV caches.
    pub kv_cache_tokens: u64,
    /// Counter of responses whose KV cache was dropped and computed again.
    pub preemptions: u64,
    /// Counter of prompt tokens that were computed.
    pub prefilled_tokens: u64,
    /// Counter of sampled tokens.
    pub sampled_tokens: u64,
    /// Counter of decode iterations.
    pub iterations: u64,
}

impl ServingStatistics {
    /// Returns the sums with the statistics of another instance.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self {
            running: self.running + other.running,
            waiting: self.waiting + other.waiting,
            kv_cache_tokens: self.kv_cache_tokens + other.kv_cache_tokens,
            preemptions: self.preemptions + other.preemptions,
            prefilled_tokens: self.prefilled_tokens + other.prefilled_tokens,
            sampled_tokens: self.sampled_tokens + other.sampled_tokens,
            iterations: self.iterations + other.iterations,
        }
    }
}

/// The reason why an engine refused a command or stopped.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ServingError {
    /// The weights of a folder cannot be used; the old weights stay in use.
    #[error("cannot load the weights of {}: {reason}", folder.display())]
    Load {
        /// The folder that was to be loaded.
        folder: PathBuf,
        /// The cause of the error.
        reason: String,
    },
    /// A resume arrived before the pause began.
    #[error("the engine was resumed before the pause began")]
    Resumed,
    /// The engine has stopped.
    #[error("the engine has stopped: {0}")]
    Stopped(String),
}

/// An engine that generates responses to independent requests.
///
/// # Contract
/// - Each sample of a [`Generation`] ends once, unless the engine fails. Every receiver whose samples have not all ended gets the failure.
/// - A request runs until its samples have ended. A caller that needs it no longer must [abort](Self::abort) it.
/// - Commands take effect in the order of their calls, also if their futures are dropped or never polled. A load is an exception: it reads
///   files first, so that commands called meanwhile take effect before it. Loads take effect in the order of their calls.
/// - The results of commands can be awaited on a tokio runtime only.
/// - Weights are replaced between two tokens. Running responses continue with the new weights and the KV cache of the old ones; no response
///   that starts later uses that cache.
/// - During a pause requests are accepted and wait. Weights can be loaded and labelled.
pub trait ServingEngine: Send + Sync + 'static {
    /// Returns the sizes of the engine.
    fn limits(&self) -> &ServingLimits;

    /// Generates the responses of a request.
    fn generate(&self, generation: Generation);

    /// Aborts a request. Its receiver gets [`FinishReason::Abort`] for each sample that has not ended; tokens reported before stay valid.
    /// Has no effect if the request has ended.
    fn abort(&self, id: GenerationId);

    /// Aborts one sample of a request. At least one token of the sample must have been reported. Has no effect if the sample has ended.
    fn abort_sample(&self, id: GenerationId, sample: u32);

    /// Pauses the engine. The future is ready when the pause has begun on all instances.
    ///
    /// While a pause with [`Pause::Keep`] lasts, the future of a call with [`Pause::Wait`] is ready only after the kept requests have been
    /// aborted, even if that call was made first.
    ///
    /// # Errors
    /// Returns an error if a [resume](Self::resume) arrives before the pause has begun, or the engine has stopped.
    fn pause(&self, mode: Pause) -> BoxFuture<'static, Result<(), ServingError>>;

    /// Ends a pause, even one that has not begun yet. The future is ready when all instances have resumed.
    ///
    /// # Errors
    /// Returns an error if the engine has stopped.
    fn resume(&self) -> BoxFuture<'static, Result<(), ServingError>>;

    /// Returns `true` while all instances are paused.
    fn is_paused(&self) -> bool;

    /// Loads the safetensors files of a folder. `None` selects the folder with which the engine was started. The future is ready when every
    /// instance samples with the new weights.
    ///
    /// # Errors
    /// Returns an error if the weights cannot be loaded, in which case the old weights stay in use, or the engine has stopped.
    fn load(&self, folder: Option<PathBuf>) -> BoxFuture<'static, Result<(), ServingError>>;

    /// Sets the label of the weights, which later tokens carry. The engine does not check the label against the weights. The future is
    /// ready when every instance uses the label.
    ///
    /// # Errors
    /// Returns an error if the engine has stopped.
    fn set_label(&self, label: Arc<str>) -> BoxFuture<'static, Result<(), ServingError>>;

    /// Returns the label of the weights: the label that was set last, or the label with which the engine was started.
    fn label(&self) -> Arc<str>;

    /// Returns the statistics of the engine, summed over its instances.
    fn statistics(&self) -> ServingStatistics;

    /// Returns the reason why the engine stopped; `None` while it works.
    fn failure(&self) -> Option<String>;
}
