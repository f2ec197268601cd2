//! A rollout engine over inference servers.
//!
//! One task, the coordinator, owns the state and makes all decisions. Every call to a server is a task of its own that reports to the
//! coordinator, so that no lock is held and nothing blocks. The tasks run on threads that the engine owns; dropping the engine stops them.
//!
//! A server is in one of these states: it starts, is ready, drains, loads weights, is suspect after a failed call, or is excluded because
//! it does not use the weights that it was given. Only ready servers start responses. If a server fails, its responses continue on another
//! server, or on the same server after it has recovered. That server receives the prompt and the tokens sampled so far.
//!
//! A token is kept only if its policy version is certain: either the server reports the label of its weights at the end of the response, or
//! the token arrived before the server began to load other weights. Other tokens are discarded and counted.

mod balance;
mod cache_estimate;
mod call_results;
mod config;
mod coordinator;
mod delivery;
mod delivery_task;
mod dispatch;
mod measurements;
mod member;
mod output;
mod response;
mod start;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use rollpacker_dataflow::bridge::TaskRuntime;
use rollpacker_dataflow::clock::{Clock, Nanos};
use rollpacker_dataflow::step::{PolicyVersion, SampleId};
use rollpacker_stages::rollout::{
    Policy, Request, RolloutEngine, RolloutError, RolloutEvent, Waker, Work,
};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};

pub use self::config::{ServersConfig, StartError};
pub use self::coordinator::Detokenize;
use self::coordinator::{Message, panic_error};
use self::delivery::PendingLoad;
pub use self::measurements::{Measurements, Phases, Reading};
use self::output::{Output, SharedState};
use self::response::{Response, defect};
use crate::launch::Fleet;
use crate::weights::WeightSource;

/// The number of threads for calls to servers.
const THREADS: usize = 2;

/// A rollout engine over inference servers. Each server is one instance.
///
/// # Guarantees
/// The contract of [`RolloutEngine`] holds with one exception: tokens depend on the batches that a server forms and on its random numbers,
/// so a response is not reproducible. There is no [lockstep](rollpacker_stages::rollout::Lockstep) for this reason, and the seed of the
/// engine is not used.
///
/// Responses that run while a policy is loaded continue with the new weights or end before the load, depending on [`ServersConfig::pause`].
/// The log-probabilities of tokens sampled in `keep` mode after the load are under the new weights, with the KV cache of the old ones.
pub struct ServersEngine {
    // Fields are dropped in this order: the tasks end before the servers are stopped.
    /// The runtime of all tasks. Dropping it does not wait for the tasks, because a call may be in progress.
    _runtime: TaskRuntime,
    /// The servers that this engine owns as child processes; `None` if it owns none. Dropping them waits until the processes have ended.
    fleet: Option<Fleet>,
    commands: UnboundedSender<Message>,
    received: Receiver<RolloutEvent>,
    source: Box<dyn WeightSource>,
    shared: Arc<SharedState>,
    /// The maximum number of tokens of a prompt.
    max_prompt_length: usize,
    has_failed: bool,
}

impl ServersEngine {
    /// Connects to the servers and checks that each server that answers has the model, the calls and the room that training needs. Blocks
    /// the thread until the check of every server has succeeded or failed, or the server timeout has expired. If no server answers, repeats
    /// the checks until one answers or the server timeout has expired. Servers that do not answer may join later.
    ///
    /// `source` finds the weights of each policy to load. `detokenize` makes the text of each response. `clock` gives the times of
    /// responses and loads.
    ///
    /// # Errors
    /// Returns an error if the configuration is [invalid](ServersConfig::check), or an address, a key or the folder of the weights cannot
    /// be used. Also returns an error if a server lacks what training needs, no server answers in time, or a thread cannot start.
    pub fn start(
        config: ServersConfig,
        source: Box<dyn WeightSource>,
        detokenize: Detokenize,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, StartError> {
        config.check()?;
        let runtime = TaskRuntime::start(THREADS, "servers").map_err(StartError::Threads)?;
        let max_prompt_length = config.max_prompt_length;
        let (sender, received) = channel();
        let shared = Arc::<SharedState>::default();
        let output = Output { shared: Arc::clone(&shared), events: sender };
        let (commands, messages) = unbounded_channel();
        let started =
            start::build_coordinator(config, detokenize, clock, output.clone(), commands.clone());
        let coordinator = runtime.handle().block_on(started)?;
        // The tasks end with the runtime, which the engine owns.
        let coordinated = runtime.handle().spawn(coordinator.run(messages));
        drop(runtime.handle().spawn(async move {
            if let Some(error) = coordinated.await.err().and_then(|error| panic_error(&error)) {
                output.send(RolloutEvent::Failed(error));
            }
        }));
        Ok(Self {
            _runtime: runtime,
            fleet: None,
            commands,
            received,
            source,
            shared,
            max_prompt_length,
            has_failed: false,
        })
    }

    /// Passes the ownership of the server processes to the engine, which ends the processes when it is dropped.
    #[must_use]
    pub fn with_fleet(mut self, fleet: Fleet) -> Self {
        self.fleet = Some(fleet);
        self
    }

    /// Returns a handle to the measurements.
    #[must_use]
    pub fn measurements(&self) -> Measurements {
        self.shared.measurements.clone()
    }

    fn send(&self, message: Message) {
        // The task is gone only if it panicked, which the engine reports as its failure.
        let _gone = self.commands.send(message);
    }

    /// Creates the responses of a request. Fails if the prompt is too long or a resumed response has fields of different lengths.
    fn responses(&self, request: &Request) -> Result<Vec<Response>, RolloutError> {
        let (prompt, tokens) = (request.prompt, request.prompt_ids.len());
        let limit = self.max_prompt_length;
        if tokens > limit {
            return Err(RolloutError::PromptTooLong { prompt, tokens, limit });
        }
        let mut resumed = request.resumed.iter().peekable();
        let samples = request.samples.clone();
        samples
            .map(|sample| {
                let id = SampleId { step: request.step, prompt, sample };
                let partial = resumed.next_if(|partial| partial.sample == sample).cloned();
                if let Some((field, expected, found)) = partial.as_ref().and_then(defect) {
                    return Err(RolloutError::Resume { id, field, expected, found });
                }
                let min_version = PolicyVersion::default();
                Ok(Response::new(id, Arc::clone(&request.prompt_ids), min_version, partial))
            })
            .collect()
    }

    fn report_failure(&self, error: RolloutError) {
        self.send(Message::CommandFailed(error));
    }
}

impl RolloutEngine for ServersEngine {
    fn load(&mut self, policy: &Policy) {
        let policy = policy.clone();
        match self.source.find(&policy) {
            Ok(weights) => self.send(Message::Load(PendingLoad { policy, weights })),
            Err(reason) => {
                let Policy { version, location, .. } = policy;
                self.report_failure(RolloutError::Load { version, location, reason });
            }
        }
    }

    fn generate(&mut self, request: Request) {
        match self.responses(&request) {
            Ok(responses) => self.send(Message::Generate(responses)),
            Err(error) => self.report_failure(error),
        }
    }

    fn abort(&mut self, id: SampleId) {
        self.send(Message::Abort(id));
    }

    fn loaded_at(&self, version: PolicyVersion) -> Option<Nanos> {
        self.shared.loaded_at(version)
    }

    fn work(&self) -> Option<Work> {
        let shared = Arc::clone(&self.shared);
        Some(Box::new(move || shared.work()))
    }

    fn poll(&mut self) -> Option<RolloutEvent> {
        if self.has_failed {
            return None;
        }
        let event = self.received.try_recv().ok()?;
        self.has_failed = matches!(event, RolloutEvent::Failed(_));
        Some(event)
    }

    fn wake_by(&mut self, waker: Waker) {
        self.shared.set_waker(waker);
    }
}
