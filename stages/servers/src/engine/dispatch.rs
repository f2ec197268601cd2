//! The assignment of responses to servers, and their calls.

use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use tokio::time::Instant;

use super::coordinator::{Coordinator, Message};
use super::response::{Response, RunningCall};
use crate::sampling::rest_of;
use crate::server::Call;
use crate::weights::salt;

/// The time after which an abort that had no effect is repeated. An abort has no effect if it reaches the server before the request that it
/// aborts.
const ABORT_RETRY_INTERVAL: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Starts the calls of waiting responses for which a server has room, and finishes responses whose kept tokens are already complete.
    /// Does nothing while no server is ready.
    pub(super) fn dispatch(&mut self) {
        let now = Instant::now();
        if !self.members.iter().any(|member| member.is_ready()) {
            return;
        }
        for id in std::mem::take(&mut self.waiting) {
            if let Some(reason) = self.finish_reason(id) {
                self.finish(id, reason);
            } else if let Some(server) = self.server_for(id, now) {
                self.start_call(id, server);
            } else {
                self.waiting.push_back(id);
            }
        }
    }

    /// Returns the finish reason of a response whose kept tokens are already complete; `None` if the response must continue.
    fn finish_reason(&self, id: SampleId) -> Option<FinishReason> {
        let response = self.responses.get(&id)?;
        let (sampling, kept) = (&self.config.sampling, response.kept_tokens());
        let is_eos = |token| self.config.eos_token_ids.contains(&token);
        if kept > sampling.min_new_tokens && response.last_kept().is_some_and(is_eos) {
            return Some(FinishReason::Stop);
        }
        (kept >= sampling.max_new_tokens).then_some(FinishReason::Length)
    }

    /// Returns the server for the next call of a response: the server of the prompt's last call if it accepts the response, or else the
    /// server that [`choose`](Self::choose) prefers among the servers that accept it. A server accepts a response if it is ready, has at
    /// least the response's minimum version, runs fewer than the maximum number of responses and is not busy. `None` if no server accepts
    /// the response.
    fn server_for(&self, id: SampleId, now: Instant) -> Option<usize> {
        let (min_version, max) = (self.responses.get(&id)?.min_version, self.config.max_running);
        let accepts = |server: &usize| self.members[*server].accepts(min_version, max, now);
        let current = self.assigned.get(&(id.step, id.prompt)).copied().filter(accepts);
        current.or_else(|| self.choose((0..self.members.len()).filter(accepts)))
    }

    fn start_call(&mut self, id: SampleId, server: usize) {
        let (Some(response), member) = (self.responses.get_mut(&id), &mut self.members[server])
        else {
            return;
        };
        let Some(policy) = member.policy.clone() else { return };
        self.calls += 1;
        let number = self.calls;
        let call = Call {
            id: format!("{}-{number}", self.nonce),
            prompt: response.input(),
            sampling: rest_of(&self.config.sampling, response.kept_tokens()),
            eos_token_ids: Arc::clone(&self.config.eos_token_ids),
            cache_salt: salt(&policy),
        };
        let (client, stall_detector) = (member.server.clone(), Arc::clone(&member.stall_detector));
        let (request, tokens) = (call.id.clone(), self.sender.clone());
        let task = self.tasks.spawn(async move {
            let mut sink = |chunk| drop(tokens.send(Message::Tokens(id, number, chunk)));
            let result = client.generate(&call, &stall_detector, &mut sink).await;
            let _gone = tokens.send(Message::Ended(id, number, result));
        });
        member.running.insert(id);
        member.load += response.total_tokens();
        let running = RunningCall::new(number, request, server, policy.version, task);
        response.begin_call(running, self.clock.now());
        self.assigned.insert((id.step, id.prompt), server);
    }

    /// Aborts a response for the caller, which receives the tokens sampled so far.
    pub(super) fn abort(&mut self, id: SampleId) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        response.is_aborted = true;
        if response.call.is_some() {
            return self.send_abort(id);
        }
        self.waiting.retain(|waiting| *waiting != id);
        self.finish(id, FinishReason::Abort);
    }

    fn send_abort(&mut self, id: SampleId) {
        let call = self.responses.get_mut(&id).and_then(|response| response.call.as_mut());
        let Some(call) = call else { return };
        call.abort_sent = Some(Instant::now());
        let (server, request) = (self.members[call.server].server.clone(), call.id.clone());
        self.tasks.spawn(async move {
            if let Err(error) = server.abort(&request).await {
                // The response's own call also fails, or is dropped by `retry_aborts`.
                tracing::debug!(%error, "cannot abort a response");
            }
        });
    }

    /// Repeats aborts that have not ended their calls. Cancels a call that no abort has ended within the time limit of a small call, and
    /// finishes its response.
    pub(super) fn retry_aborts(&mut self) {
        let is_due = |response: &&Response| {
            let sent = response.call.as_ref().and_then(|call| call.abort_sent);
            response.is_aborted && sent.is_some_and(|sent| sent.elapsed() > ABORT_RETRY_INTERVAL)
        };
        let due: Vec<SampleId> =
            self.responses.values().filter(is_due).map(|response| response.id).collect();
        for id in due {
            let Some(response) = self.responses.get_mut(&id) else { continue };
            response.failed_aborts += 1;
            if ABORT_RETRY_INTERVAL * response.failed_aborts < self.config.limits.call {
                self.send_abort(id);
            } else {
                self.cancel_call(id);
                self.finish(id, FinishReason::Abort);
            }
        }
    }
}
