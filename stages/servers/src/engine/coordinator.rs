//! The task that owns the state of the engine. All calls to servers are tasks of their own, which report to it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::clock::Clock;
use rollpacker_dataflow::step::{PolicyVersion, PromptId, SampleId, Step};
use rollpacker_stages::rollout::{FinishReason, RolloutError, RolloutEvent};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender};
use tokio::task::JoinSet;
use tokio::time::{Instant, MissedTickBehavior};

use super::config::ServersConfig;
use super::delivery::Loading;
use super::delivery_task::{Delivered, Delivery, Fault, Progress};
use super::member::Member;
use super::output::Output;
use super::response::Response;
use crate::http::ServerError;
use crate::server::{CacheUse, Outcome, Piece};
use crate::weights::WeightRoot;

/// Returns the text of tokens.
pub type Detokenize = Arc<dyn Fn(&[i32]) -> String + Send + Sync>;

/// The interval at which the coordinator checks what no message announces: busy servers, unanswered aborts, and servers that are gone.
const TICK: Duration = Duration::from_millis(100);

/// A command of the engine, or a report of a task.
pub(super) enum Message {
    Load(Loading),
    Generate(Vec<Response>),
    Abort(SampleId),
    /// The engine cannot execute a command.
    Refused(RolloutError),
    /// Weights are ready to be loaded.
    Prepared(u64, Result<Arc<Delivery>, RolloutError>),
    Progress(usize, Progress),
    Delivered(usize, String, Result<Delivered, Fault>),
    Tokens(SampleId, u64, Piece),
    Ended(SampleId, u64, Result<Outcome, ServerError>),
    /// The use of a server's KV cache, if the server reports it.
    Room(usize, Option<CacheUse>),
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
    /// Responses without a call, in the order of their requests.
    pub(super) waiting: VecDeque<SampleId>,
    /// The server that has the prefix of a prompt.
    pub(super) assigned: BTreeMap<(Step, PromptId), usize>,
    /// The number of loads that were commanded.
    pub(super) loads: u64,
    /// The version that new responses need.
    pub(super) wanted: PolicyVersion,
    /// The newest weights that are ready, and the number of their load.
    pub(super) latest: Option<(u64, Arc<Delivery>)>,
    pub(super) calls: u64,
    pub(super) tasks: JoinSet<()>,
    /// The time from which on no server was in rotation or on the way to it.
    pub(super) unavailable_since: Option<Instant>,
    pub(super) last_fault: Option<String>,
    pub(super) has_failed: bool,
}

impl Coordinator {
    /// Runs until the engine is dropped.
    pub(super) async fn run(mut self, mut messages: UnboundedReceiver<Message>) {
        let mut tick = tokio::time::interval(TICK);
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                message = messages.recv() => match message {
                    Some(message) => self.take(message),
                    None => return,
                },
                _ = tick.tick() => self.look_around(),
            }
            while self.tasks.try_join_next().is_some() {}
        }
    }

    fn take(&mut self, message: Message) {
        if self.has_failed {
            return;
        }
        match message {
            Message::Load(loading) => self.prepare(loading),
            Message::Generate(responses) => self.request(responses),
            Message::Abort(id) => self.abort(id),
            Message::Refused(error) => self.fail(error),
            Message::Prepared(number, prepared) => self.prepared(number, prepared),
            Message::Progress(server, progress) => self.on_progress(server, progress),
            Message::Delivered(server, salt, result) => self.delivered(server, salt, result),
            Message::Tokens(id, number, piece) => self.add(id, number, piece),
            Message::Ended(id, number, result) => self.call_ended(id, number, result),
            Message::Room(server, used) => self.room(server, used),
        }
    }

    fn request(&mut self, responses: Vec<Response>) {
        for mut response in responses {
            response.oldest = self.wanted;
            self.waiting.push_back(response.id);
            self.responses.insert(response.id, response);
        }
        self.dispatch();
    }

    /// Checks everything that depends on elapsed time.
    fn look_around(&mut self) {
        if self.has_failed {
            return;
        }
        self.repeat_aborts();
        self.poll_room();
        self.dispatch();
        self.check_rotation();
    }

    /// Fails if no server was in rotation for too long.
    fn check_rotation(&mut self) {
        if !self.members.iter().all(Member::is_gone) {
            self.unavailable_since = None;
            return;
        }
        if let Some(error) = self.all_refuse() {
            return self.fail(error);
        }
        let limit = self.config.server_timeout;
        let since = *self.unavailable_since.get_or_insert_with(|| {
            tracing::warn!(?limit, "no inference server is in rotation; waiting for one");
            Instant::now()
        });
        if since.elapsed() >= limit {
            let reason = self.last_fault.clone().unwrap_or_default();
            self.output.shared.measurements.set_unavailable();
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
