//! Rollout engines: what turns prompts into responses.

pub mod lengths;
pub mod lockstep;
pub mod profile;
pub mod sampling;
pub mod simulated;
pub mod statistics;

#[cfg(feature = "torch")]
mod backlog;
#[cfg(feature = "torch")]
mod batch;
#[cfg(feature = "torch")]
mod counters;
#[cfg(feature = "torch")]
mod dispatch;
#[cfg(feature = "torch")]
pub(crate) mod generator;
#[cfg(feature = "torch")]
pub mod guests;
#[cfg(feature = "torch")]
mod instance;
#[cfg(feature = "torch")]
pub mod invariance;
#[cfg(feature = "torch")]
mod iterations;
#[cfg(feature = "torch")]
mod kv_cache;
#[cfg(feature = "torch")]
mod options;
#[cfg(feature = "torch")]
pub(crate) mod owner;
#[cfg(feature = "torch")]
pub(crate) mod passes;
#[cfg(feature = "torch")]
mod race;
#[cfg(feature = "torch")]
mod refusal;
#[cfg(feature = "torch")]
mod replay;
#[cfg(feature = "torch")]
mod sampler;
#[cfg(feature = "torch")]
mod scheduler;
#[cfg(feature = "torch")]
pub(crate) mod sequence;
#[cfg(feature = "torch")]
pub mod torch;

use std::fmt;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

pub use lockstep::Lockstep;

/// A handle of published weights; what [`POLICIES`](rollpacker_dataflow::schema::POLICIES) carries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Which weights.
    pub version: PolicyVersion,
    /// Where they are, in the words of the trainer that published them.
    pub location: String,
    /// Digest of the weights.
    pub digest: u64,
}

/// A prompt to answer `samples` times.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The step that wants the responses; seeds the sampling together with prompt and sample.
    pub step: Step,
    /// The prompt to answer.
    pub prompt: PromptId,
    /// Which of its samples.
    pub samples: std::ops::Range<u32>,
    /// The prompt as token ids; never empty.
    pub prompt_ids: Arc<[i32]>,
    /// What earlier requests sampled of these samples and the caller kept, ascending by sample; each response goes on from there.
    pub resumed: Vec<Partial>,
}

/// The tokens of a response that was stopped to be continued later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// Which sample of the prompt.
    pub sample: u32,
    /// The step whose request launched the response; with prompt and sample it names the random numbers of the response, in whichever
    /// step it goes on.
    pub launched: Step,
    /// Sampled tokens: how many, also where an engine counts tokens without sampling them.
    pub response_length: u32,
    /// The tokens.
    pub response_ids: Vec<i32>,
    /// Log-probability of each token under the policy that sampled it, in nats.
    pub logprobs: Vec<f32>,
    /// Policy version that sampled each token.
    pub token_versions: Vec<PolicyVersion>,
}

/// What a rollout runs on: `instances` engine instances, each sharded over `tensor_parallel` devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Engine instances, the first of those that the engine has; 0: none, all devices are lent.
    pub instances: u32,
    /// Devices of an instance.
    pub tensor_parallel: u32,
}

impl Placement {
    /// Devices in use.
    #[must_use]
    pub fn devices(self) -> u32 {
        self.instances * self.tensor_parallel
    }
}

/// Why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The policy sampled an end-of-sequence token.
    Stop,
    /// The response reached its longest allowed length.
    Length,
    /// The caller aborted it.
    Abort,
    /// The caller stopped it, keeps its tokens, and will continue it; engines report [`Abort`](Self::Abort).
    Pause,
}

impl FinishReason {
    /// As written in the column `finish_reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Pause => "pause",
        }
    }

    /// Whether the response is whole: it ended by itself.
    #[must_use]
    pub fn is_whole(self) -> bool {
        matches!(self, Self::Stop | Self::Length)
    }
}

impl std::str::FromStr for FinishReason {
    type Err = UnknownFinishReason;

    fn from_str(written: &str) -> Result<Self, Self::Err> {
        [Self::Stop, Self::Length, Self::Abort, Self::Pause]
            .into_iter()
            .find(|reason| reason.as_str() == written)
            .ok_or_else(|| UnknownFinishReason(written.to_owned()))
    }
}

/// A text that is no [`FinishReason`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no finish reason: expected stop, length, abort or pause")]
pub struct UnknownFinishReason(pub String);

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A response that ended, or was dropped with the tokens it had.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// Which response.
    pub id: SampleId,
    /// Sampled tokens: how many, also where an engine counts tokens without sampling them.
    pub response_length: u32,
    /// The sampled tokens; an end-of-sequence token that was sampled is the last of them.
    pub response_ids: Vec<i32>,
    /// Log-probability of each token under the distribution it was drawn from before truncation by top-k and top-p
    /// (temperature applied), in nats.
    pub logprobs: Vec<f32>,
    /// Policy version that sampled each token.
    pub token_versions: Vec<PolicyVersion>,
    /// The response as text, special tokens left out.
    pub text: String,
    /// Why it ended.
    pub finish_reason: FinishReason,
    /// When the engine took it up.
    pub started: Nanos,
    /// When its last token was sampled.
    pub finished: Nanos,
    /// Times its KV cache was given up and computed again.
    pub preemptions: u32,
    /// Engine instance that finished it.
    pub instance: u32,
}

/// What an engine reports.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutEvent {
    /// A response ended; exactly one for each sample that was asked for.
    Completed(Completion),
    /// The engine cannot go on; nothing follows.
    Failed(RolloutError),
}

/// Why an engine stopped, or refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// The weights could not be taken over.
    #[error("cannot load policy {version} from `{location}`: {reason}")]
    Load {
        /// Which weights.
        version: PolicyVersion,
        /// Where they should have been.
        location: String,
        /// What went wrong.
        reason: String,
    },
    /// The prompt and its longest response do not fit.
    #[error(
        "{prompt} has {tokens} tokens, more than the {limit} that the engine can hold beside a response"
    )]
    PromptTooLong {
        /// The prompt.
        prompt: PromptId,
        /// Its length.
        tokens: usize,
        /// The longest that fits.
        limit: usize,
    },
    /// The engine cannot run on what it was given.
    #[error(
        "cannot place {} instances of tensor_parallel {}: expected at most {instances} of tensor_parallel 1",
        found.instances,
        found.tensor_parallel
    )]
    Placement {
        /// What was asked for.
        found: Placement,
        /// Instances that the engine was started with.
        instances: u32,
    },
    /// A response cannot go on from the tokens that it brings.
    #[error("cannot resume {id}: {field} {found}, expected {expected}")]
    Resume {
        /// Which response.
        id: SampleId,
        /// The field of its [`Partial`].
        field: &'static str,
        /// What it should have been.
        expected: String,
        /// What it was.
        found: String,
    },
    /// The engine broke while generating.
    #[error("rollout engine instance {instance} failed: {reason}")]
    Engine {
        /// Which instance.
        instance: u32,
        /// What went wrong.
        reason: String,
    },
}

/// Called by an engine, from any thread, when [`RolloutEngine::poll`] has something new.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A count that changes while an engine works, to be read from the thread that drives it at any time.
pub type Work = Box<dyn Fn() -> u64>;

/// Something that generates responses: a torch model on threads, a server over HTTP, a simulation.
///
/// An engine is driven without blocking: commands return at once, events are polled, and the waker says when to poll again.
///
/// # Contract
/// - Every sample of every [`Request`] is reported exactly once: as [`Completed`](RolloutEvent::Completed), with
///   [`FinishReason::Abort`] if it was aborted before it ended. After [`Failed`](RolloutEvent::Failed) nothing is owed.
/// - Commands take effect in the order in which they are given. Requests may wait until the next command of another kind or the next
///   [`poll`](Self::poll), so that they start together; the waker is called for them. Responses requested after [`load`](Self::load) are sampled by the
///   loaded policy from their first token on; a resumed one from the first token that it does not bring with it. What is reported of a
///   resumed response holds the tokens that it brought.
/// - What is sampled for a response depends on the seed of the engine, the step that launched it, prompt, sample and weights, never on
///   which other responses run, on when they arrive, nor on how often it was stopped and resumed.
/// - Aborting a response that has ended, or was never asked for, does nothing.
pub trait RolloutEngine {
    /// Uses the weights of `policy` for everything requested from now on.
    fn load(&mut self, policy: &Policy);

    /// Generates the samples of `request`.
    fn generate(&mut self, request: Request);

    /// Drops a response; its tokens so far are still reported.
    fn abort(&mut self, id: SampleId);

    /// Runs on `placement` from now on: what runs on instances that are given up goes on elsewhere, its KV cache computed again.
    ///
    /// An engine of a fixed size has nothing to do here.
    fn place(&mut self, placement: Placement) {
        let _ = placement;
    }

    /// When the weights of `version`, the last that were loaded, were in use on every instance, by the engine's clock; may lie ahead. `None`
    /// while it is not known, and for an engine that cannot tell.
    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        let _ = version;
        None
    }

    /// What tells whether it still works while it reports nothing: tokens sampled, iterations run. `None` of an engine that cannot tell.
    fn work(&self) -> Option<Work> {
        None
    }

    /// Its side for races in [lockstep]; `None` for an engine that cannot.
    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        None
    }

    /// The next event, if there is one now.
    fn poll(&mut self) -> Option<RolloutEvent>;

    /// Whom to call when there is an event to poll. Replaces an earlier waker.
    fn wake_by(&mut self, waker: Waker);
}

impl RolloutEngine for Box<dyn RolloutEngine> {
    fn load(&mut self, policy: &Policy) {
        self.as_mut().load(policy);
    }

    fn generate(&mut self, request: Request) {
        self.as_mut().generate(request);
    }

    fn abort(&mut self, id: SampleId) {
        self.as_mut().abort(id);
    }

    fn place(&mut self, placement: Placement) {
        self.as_mut().place(placement);
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        self.as_ref().loaded_at(version)
    }

    fn work(&self) -> Option<Work> {
        self.as_ref().work()
    }

    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        self.as_mut().lockstep()
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        self.as_mut().poll()
    }

    fn wake_by(&mut self, waker: Waker) {
        self.as_mut().wake_by(waker);
    }
}
