//! Rollout engines, which generate responses to prompts.

pub mod checked;
pub mod lengths;
pub mod lockstep;
pub mod profile;
pub mod sampling;
pub mod statistics;
mod token_versions;

use std::fmt;
use std::sync::Arc;

use rollpacker_dataflow::clock::Nanos;
use rollpacker_dataflow::fault::{FaultKind, HasOrigin, Origin};
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use serde::{Deserialize, Serialize};

pub use checked::{CheckedEngine, EngineViolation};
pub use lockstep::Lockstep;
pub use token_versions::TokenVersions;

/// A reference to published weights, as carried by [`POLICIES`](rollpacker_dataflow::schema::POLICIES).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// The version of the weights.
    pub version: PolicyVersion,
    /// The location of the weights, in the format of the trainer that published them.
    pub location: String,
    /// Digest of the weights. If the trainer computes no digest, any number that is equal on all workers.
    pub digest: u64,
}

/// A request to generate samples of a prompt.
#[derive(Clone, Debug, PartialEq)]
pub struct Request {
    /// The step that needs the responses. Together with prompt and sample, it seeds responses that are not [resumed](Self::resumed).
    pub step: Step,
    /// The prompt to answer.
    pub prompt: PromptId,
    /// The indices of the samples of the prompt to generate.
    pub samples: std::ops::Range<u32>,
    /// The prompt as token ids; never empty.
    pub prompt_ids: Arc<[i32]>,
    /// Partial responses of these samples from earlier requests, in ascending order of samples. Each of these responses is continued.
    pub resumed: Vec<Partial>,
}

/// The tokens of a response that was stopped to be continued later.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Partial {
    /// The index of the sample of the prompt.
    pub sample: u32,
    /// The step whose request launched the response. With prompt and sample it determines the random numbers of the response, in whichever
    /// step the response is continued.
    pub launched: Step,
    /// Number of sampled tokens, also for engines that count tokens without sampling them.
    pub response_length: u32,
    /// The sampled tokens. Like the two lists below, empty for engines that count tokens without sampling them.
    pub response_ids: Vec<i32>,
    /// Log-probability of each token under the policy that sampled it, in nats.
    pub logprobs: Vec<f32>,
    /// Policy version that sampled each token.
    pub token_versions: TokenVersions,
}

/// The resources of a rollout: `instances` engine instances, each sharded over `tensor_parallel` devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// Number of engine instances in use, which are the first instances of the engine. With 0, all devices are lent out.
    pub instances: u32,
    /// Number of devices of an instance.
    pub tensor_parallel: u32,
}

impl Placement {
    /// Returns the number of devices in use.
    #[must_use]
    pub fn devices(self) -> u32 {
        self.instances.saturating_mul(self.tensor_parallel)
    }
}

/// The reason why a response ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The policy sampled an end-of-sequence token, or the response reached its replayed [length](lengths::Lengths). A server also reports
    /// this reason for a stop token or a stop text of the request.
    Stop,
    /// The response reached the maximum length.
    Length,
    /// The caller aborted the response.
    Abort,
    /// The caller stopped the response, keeps its tokens, and will continue it. Engines report [`Abort`](Self::Abort) instead.
    Pause,
}

impl FinishReason {
    /// Returns the value of the column `finish_reason`.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Stop => "stop",
            Self::Length => "length",
            Self::Abort => "abort",
            Self::Pause => "pause",
        }
    }

    /// Returns `true` if the response is whole: it ended by itself.
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

/// The error of parsing a string that is not a [`FinishReason`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not a finish reason: expected stop, length, abort or pause")]
pub struct UnknownFinishReason(pub String);

impl fmt::Display for FinishReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A response that ended, or that was dropped with the tokens that it had.
#[derive(Clone, Debug, PartialEq)]
pub struct Completion {
    /// The response.
    pub id: SampleId,
    /// Number of sampled tokens, also for engines that count tokens without sampling them.
    pub response_length: u32,
    /// The sampled tokens, including the end-of-sequence token if one was sampled. Like the two lists below, empty for engines that count
    /// tokens without sampling them.
    pub response_ids: Vec<i32>,
    /// Log-probability of each token, in nats, under the sampling distribution with temperature and before truncation by top-k and top-p.
    pub logprobs: Vec<f32>,
    /// Policy version that sampled each token.
    pub token_versions: TokenVersions,
    /// The text of the response, without special tokens; empty for engines that count tokens without sampling them.
    pub text: String,
    /// The reason why the response ended.
    pub finish_reason: FinishReason,
    /// The time at which the engine admitted the response; equal to `finished` if it was dropped before.
    pub started: Nanos,
    /// The time at which the last token was sampled, or at which the response was dropped.
    pub finished: Nanos,
    /// The number of times the KV cache of the response was dropped and computed again. An engine that uses inference servers instead
    /// counts the calls for the response after the first one.
    pub preemptions: u32,
    /// The index of the engine instance at which the response ended, from 0; arbitrary if it was dropped while it had no instance.
    pub instance: u32,
}

/// An event that an engine reports.
#[derive(Clone, Debug, PartialEq)]
pub enum RolloutEvent {
    /// A response ended or was aborted. There is exactly one such event for each requested sample, unless the engine fails.
    Completed(Completion),
    /// The engine has failed; no more events follow.
    Failed(RolloutError),
}

impl HasOrigin for RolloutError {
    fn origin(&self) -> Origin {
        match self {
            Self::PromptTooLong { .. } | Self::Placement { .. } | Self::NotFinite { .. } => {
                Origin::User
            }
            Self::Load { .. } | Self::Unavailable { .. } => Origin::Environment,
            Self::Resume { .. } | Self::Violation(_) | Self::Engine { .. } => Origin::Program,
        }
    }

    fn kind(&self) -> FaultKind {
        match self {
            Self::Unavailable { .. } => FaultKind::Unavailable,
            _ => FaultKind::Failure,
        }
    }
}

/// The reason why an engine failed or rejected a command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RolloutError {
    /// The weights could not be loaded.
    #[error("cannot load policy {version} from `{location}`: {reason}")]
    Load {
        /// The policy version.
        version: PolicyVersion,
        /// The location of the weights.
        location: String,
        /// The cause of the error.
        reason: String,
    },
    /// The prompt and its longest response do not fit.
    #[error(
        "{prompt} has {tokens} tokens; expected at most {limit}, which the engine can hold in addition to the longest response"
    )]
    PromptTooLong {
        /// The prompt that is too long.
        prompt: PromptId,
        /// Number of tokens of the prompt.
        tokens: usize,
        /// Maximum number of tokens of a prompt.
        limit: usize,
    },
    /// The engine does not support the placement.
    #[error(
        "cannot place {} instances of tensor_parallel {}: expected at least 1 device for each and at most {instances} in all",
        found.instances,
        found.tensor_parallel
    )]
    Placement {
        /// The requested placement.
        found: Placement,
        /// Number of instances that the engine was started with, which is the number of its devices.
        instances: u32,
    },
    /// A response cannot be resumed from the given tokens.
    #[error("cannot resume {id}: `{field}`: expected {expected}, found {found}")]
    Resume {
        /// The response.
        id: SampleId,
        /// The field of the [`Partial`].
        field: &'static str,
        /// The expected value.
        expected: String,
        /// The value that was found.
        found: String,
    },
    /// The engine violates its contract.
    #[error("the rollout engine violates its contract: {0}")]
    Violation(Box<EngineViolation>),
    /// No instance of the engine was available within the time limit. The run ends with exit status 75 and can be resumed when an instance
    /// is available.
    #[error("no inference server was in rotation for {seconds} s; the last fault: {reason}")]
    Unavailable {
        /// The limit of the wait, in whole seconds.
        seconds: u64,
        /// The last fault of an instance.
        reason: String,
    },
    /// A log-probability is not finite, because the weights or the activations are not finite.
    #[error(
        "the log-probability of a token of {id} is not finite under policy {version}: check the weights of the model, or lower the learning rate"
    )]
    NotFinite {
        /// The response.
        id: SampleId,
        /// The policy that sampled the token.
        version: PolicyVersion,
    },
    /// An engine instance failed, or the engine cannot execute a request or command.
    #[error("rollout engine instance {instance} failed: {reason}")]
    Engine {
        /// The index of the instance, from 0; 0 if the error concerns no single instance.
        instance: u32,
        /// The cause of the error.
        reason: String,
    },
}

/// A callback that an engine calls, from any thread, when [`RolloutEngine::poll`] has something new.
pub type Waker = Arc<dyn Fn() + Send + Sync>;

/// A function that returns a count which changes while an engine works. The thread that drives the engine may call it at any time.
pub type Work = Box<dyn Fn() -> u64>;

/// An engine that generates responses: a torch model on threads, a server over HTTP, or a simulation.
///
/// An engine is driven without blocking: commands return at once, events are polled, and the waker signals when to poll again.
///
/// # Contract
/// - Every sample of every [`Request`] is reported exactly once as [`Completed`](RolloutEvent::Completed), with [`FinishReason::Abort`] if
///   it was aborted before it ended. After [`Failed`](RolloutEvent::Failed) no reports are outstanding.
/// - Commands take effect in the order in which they are issued. Requests may be delayed until the next command of another kind or the next
///   [`poll`](Self::poll), so that they start together; the waker is called for delayed requests.
/// - Responses requested after [`load`](Self::load) are sampled by the loaded policy from their first token on. Resumed responses are
///   sampled by it from their first new token on, and their completion includes the tokens with which they were resumed.
/// - The tokens of a response depend on the seed of the engine, the step that launched it, prompt, sample and weights. They do not depend
///   on the other responses, on when the other responses arrive, or on how often the response was stopped and resumed.
/// - Aborting a response that has ended, or that was never requested, has no effect.
///
/// # Example
/// [`check_engine`](crate::testkit::check_engine) checks the contract:
///
/// ```
/// # use std::collections::VecDeque;
/// # use std::sync::Arc;
/// # use std::time::Duration;
/// # use rollpacker_dataflow::clock::Nanos;
/// # use rollpacker_dataflow::step::{PolicyVersion, SampleId};
/// # use rollpacker_stages::rollout::{
/// #     Completion, FinishReason, Policy, Request, RolloutEngine, RolloutEvent, Waker,
/// # };
/// # use rollpacker_stages::testkit::{EngineWorld, check_engine};
/// /// Answers each prompt with its own tokens.
/// #[derive(Default)]
/// struct Echo {
///     version: PolicyVersion,
///     ready: VecDeque<Completion>,
///     waker: Option<Waker>,
/// }
///
/// impl RolloutEngine for Echo {
///     fn load(&mut self, policy: &Policy) {
///         self.version = policy.version;
///     }
///
///     fn generate(&mut self, Request { step, prompt, samples, prompt_ids, resumed }: Request) {
///         for sample in samples {
///             let partial = resumed.iter().find(|partial| partial.sample == sample);
///             let mut token_versions =
///                 partial.map(|partial| partial.token_versions.clone()).unwrap_or_default();
///             token_versions.resize(prompt_ids.len(), self.version);
///             self.ready.push_back(Completion {
///                 id: SampleId { step, prompt, sample },
///                 response_length: prompt_ids.len() as u32,
///                 response_ids: prompt_ids.to_vec(),
///                 logprobs: vec![0.0; prompt_ids.len()],
///                 token_versions,
///                 finish_reason: FinishReason::Stop,
/// #                 text: String::new(),
/// #                 started: Nanos(0),
/// #                 finished: Nanos(0),
/// #                 preemptions: 0,
/// #                 instance: 0,
///                 // ...
///             });
///         }
///         self.waker.iter().for_each(|wake| wake());
///     }
///
///     // Every response has ended when it can be aborted.
///     fn abort(&mut self, _: SampleId) {}
///
///     fn poll(&mut self) -> Option<RolloutEvent> {
///         self.ready.pop_front().map(RolloutEvent::Completed)
///     }
///
///     fn wake_by(&mut self, waker: Waker) {
///         self.waker = Some(waker);
///     }
/// }
///
/// # let policy = |version| Policy {
/// #     version: PolicyVersion(version),
/// #     location: "memory".to_owned(),
/// #     digest: version,
/// # };
/// let world = EngineWorld {
///     policies: vec![policy(1), policy(2)],
///     prompts: vec![Arc::new([1, 2]), Arc::new([3])],
///     samples: 3,
///     timeout: Duration::from_secs(60),
///     is_reproducible: true,
///     virtual_time: None,
/// };
/// check_engine(Echo::default, &world).expect("it keeps the contract");
/// ```
pub trait RolloutEngine {
    /// Uses the weights of `policy` for all later requests.
    fn load(&mut self, policy: &Policy);

    /// Generates the samples of `request`.
    fn generate(&mut self, request: Request);

    /// Aborts a response. Its tokens so far are still reported.
    fn abort(&mut self, id: SampleId);

    /// Changes the placement. Responses on released instances continue on other instances, or wait if there are none. An engine that cannot
    /// send KV caches computes the caches of moved responses again, or the caches of all responses if `tensor_parallel` changes.
    ///
    /// The default implementation, for engines of a fixed size, does nothing.
    fn place(&mut self, placement: Placement) {
        let _ = placement;
    }

    /// Returns the time, by the engine's clock, from which every instance uses the weights of `version`. The time may be in the future.
    /// Returns `None` while it is unknown, for weights that were replaced, and for engines that cannot report it.
    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        let _ = version;
        None
    }

    /// Returns a function that counts the engine's work, such as tokens sampled or iterations run. A caller uses the count to detect
    /// progress while nothing is reported. Returns `None`, the default, for engines without a counter.
    fn work(&self) -> Option<Work> {
        None
    }

    /// Returns the interface for races in [lockstep]; `None`, the default, for engines that do not support it.
    fn lockstep(&mut self) -> Option<&mut dyn Lockstep> {
        None
    }

    /// Returns the next event; `None` if there is none now.
    fn poll(&mut self) -> Option<RolloutEvent>;

    /// Sets the waker that is called when an event is ready. Replaces an earlier waker.
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
