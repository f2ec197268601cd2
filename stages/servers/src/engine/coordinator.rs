//! The task that owns the state of the engine. Each call to a server is a task of its own, which reports to this task.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, RolloutError, RolloutEvent};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, MissedTickBehavior};

use super::config::ServersConfig;
use super::delivery::PendingLoad;
use super::delivery_task::{Delivered, Delivery, Fault, Progress};
use super::member::Member;
use super::output::Output;
use super::response::Response;
use crate::http::ServerError;
use crate::server::{CacheUse, Outcome, TokenChunk};
use crate::weights::WeightRoot;

/// A function that returns the text of token ids.
pub type Detokenize = Arc<dyn Fn(&[i32]) -> String + Send + Sync>;

/// The interval at which the coordinator does the work that no message causes: it starts the calls that busy servers have delayed, repeats
/// aborts without effect, requests the KV cache use of servers, and checks whether the rotation has servers.
const TICK: Duration = Duration::from_millis(100);

/// A command of the engine, or a report of a task.
pub(super) enum Message {
    Load(PendingLoad),
    Generate(Vec<Response>),
    Abort(SampleId),
    /// The engine cannot execute a command.
    CommandFailed(RolloutError),
    /// The weights of the load with this number are ready, or the preparation has failed.
    Prepared(u64, Result<Arc<Delivery>, RolloutError>),
    /// The delivery to the server with this index has made progress.
    Progress(usize, Progress),
    /// The delivery to the server with this index has ended. The text is the salt of the delivered weights.
    Delivered(usize, String, Result<Delivered, Fault>),
    /// Tokens of a response have arrived. The number is the number of the call.
    Tokens(SampleId, u64, TokenChunk),
    /// A call for a response has ended. The number is the number of the call.
    Ended(SampleId, u64, Result<Outcome, ServerError>),
    /// The KV cache use of the server with this index; `None` if the server does not report it or the reading failed.
    CacheUse(usize, Option<CacheUse>),
}

/// The state of the engine.
pub(super) struct Coordinator {
    pub(super) config: Arc<ServersConfig>,
    pub(super) clock: Arc<dyn Clock>,
    pub(super) detokenize: Detokenize,
    pub(super) output: Output,
    pub(super) sender: UnboundedSender<Message>,
    pub(super) root: WeightRoot,
    /// A text that differs between engines, for ids of requests.
    pub(super) nonce: String,
    pub(super) members: Vec<Member>,
    pub(super) responses: BTreeMap<SampleId, Response>,
    /// Responses without a call, in the order in which they are to be started.
    pub(super) waiting: VecDeque<SampleId>,
    /// For each prompt with unfinished responses, the index of the server of the last call, whose KV cache may hold the prompt.
    pub(super) assigned: BTreeMap<(Step, PromptId), usize>,
    /// The number of loads that were commanded, which is also the number of the last load.
    pub(super) loads: u64,
    /// The version of the last policy that was commanded to be loaded. New responses need this version or a later version.
    pub(super) wanted_version: PolicyVersion,
    /// The newest weights that are ready, and the number of their load.
    pub(super) latest: Option<(u64, Arc<Delivery>)>,
    /// The number of calls that were started, which is also the number of the last call.
    pub(super) calls: u64,
    pub(super) tasks: JoinSet<()>,
    /// The time since which no server has been in rotation or about to join it; `None` while at least one server is.
    pub(super) unavailable_since: Option<Instant>,
    pub(super) last_fault: Option<String>,
    /// `true` once the engine has failed. All later messages are ignored.
    pub(super) has_failed: bool,
}

/// Returns the error of the engine for a task that panicked and therefore sends no report; `None` if the task was cancelled.
pub(super) fn panic_error(error: &JoinError) -> Option<RolloutError> {
    let reason = format!("a task of the engine failed: {error}");
    error.is_panic().then_some(RolloutError::Engine { instance: 0, reason })
}

impl Coordinator {
    /// Runs until the engine is dropped.
    pub(super) async fn run(mut self, mut messages: UnboundedReceiver<Message>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.handle(message),
                    None => return,
                },
                _ = tick.tick() => self.on_tick(),
            }
            while let Some(ended) = self.tasks.try_join_next() {
                if let Err(error) = ended
                    && !self.has_failed
                    && let Some(error) = panic_error(&error)
                {
                    self.fail(error);
                }
            }
        }
    }

    fn handle(&mut self, message: Message) {
        if self.has_failed {
            return;
        }
        match message {
            Message::Load(load) => self.prepare(load),
            Message::Generate(responses) => self.enqueue(responses),
            Message::Abort(id) => self.abort(id),
            Message::CommandFailed(error) => self.fail(error),
            Message::Prepared(number, prepared) => self.on_prepared(number, prepared),
            Message::Progress(server, progress) => self.on_progress(server, progress),
            Message::Delivered(server, salt, result) => self.on_delivered(server, salt, result),
            Message::Tokens(id, number, chunk) => self.add_tokens(id, number, chunk),
            Message::Ended(id, number, result) => self.on_call_end(id, number, result),
            Message::CacheUse(server, used) => self.record_cache_use(server, used),
        }
    }

    fn enqueue(&mut self, responses: Vec<Response>) {
        for mut response in responses {
            response.min_version = self.wanted_version;
            self.waiting.push_back(response.id);
            self.responses.insert(response.id, response);
        }
        self.dispatch();
    }

    /// Checks everything that depends on elapsed time.
    fn on_tick(&mut self) {
        if self.has_failed {
            return;
        }
        self.retry_aborts();
        self.poll_cache_use();
        self.dispatch();
        self.check_rotation();
    }

    /// Fails the engine if all servers are excluded, or if no server has been in rotation or about to join it for the server timeout.
    fn check_rotation(&mut self) {
        if !self.members.iter().all(Member::is_unavailable) {
            self.unavailable_since = None;
            return;
        }
        if let Some(error) = self.error_if_all_excluded() {
            return self.fail(error);
        }
        let limit = self.config.server_timeout;
        let since = *self.unavailable_since.get_or_insert_with(|| {
            tracing::warn!(?limit, "no inference server is in rotation; waiting for one");
            Instant::now()
        });
        if since.elapsed() >= limit {
            let reason = self.last_fault.clone().unwrap_or_default();
            self.fail(RolloutError::Unavailable { seconds: limit.as_secs(), reason });
        }
    }

    /// Reports a response that ended.
    pub(super) fn finish(&mut self, id: SampleId, reason: FinishReason) {
        let Some(response) = self.responses.remove(&id) else { return };
        let prompt = (id.step, id.prompt);
        let first = SampleId { sample: 0, ..id };
        let last = SampleId { sample: u32::MAX, ..id };
        if self.responses.range(first..=last).next().is_none() {
            self.assigned.remove(&prompt);
        }
        let completion = response.complete(reason, self.clock.now(), &*self.detokenize);
        self.output.send(RolloutEvent::Completed(completion));
    }

    /// Stops all work and reports the error.
    pub(super) fn fail(&mut self, error: RolloutError) {
        self.has_failed = true;
        self.tasks.abort_all();
        self.responses.clear();
        self.waiting.clear();
        self.output.send(RolloutEvent::Failed(error));
    }
}
