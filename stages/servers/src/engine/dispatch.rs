//! The assignment of responses to servers, and their calls.

use std::sync::Arc;
use std::time::Duration;

use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::FinishReason;
use tokio::time::Instant;

use super::coordinator::{Coordinator, Message};
use super::response::{Response, Running};
use crate::sampling;
use crate::server::Call;
use crate::weights::salt;

/// The time after which an abort that had no effect is repeated. An abort that reaches the server before its request is lost.
const REPEAT_ABORT: Duration = Duration::from_secs(1);

impl Coordinator {
    /// Starts the calls of waiting responses for which there is a server.
    pub(super) fn dispatch(&mut self) {
        let now = Instant::now();
        if !self.members.iter().any(|member| member.is_ready()) {
            return;
        }
        for id in std::mem::take(&mut self.waiting) {
            if let Some(reason) = self.own_end(id) {
                self.finish(id, reason);
            } else if let Some(server) = self.server_for(id, now) {
                self.call(id, server);
            } else {
                self.waiting.push_back(id);
            }
        }
    }

    /// Returns the reason of the end of a response whose kept tokens are already whole.
    fn own_end(&self, id: SampleId) -> Option<FinishReason> {
        let response = self.responses.get(&id)?;
        let (sampling, kept) = (&self.config.sampling, response.kept());
        let ends = |token| self.config.ends.contains(&token);
        if kept > sampling.min_new_tokens && response.last().is_some_and(ends) {
            return Some(FinishReason::Stop);
        }
        (kept >= sampling.max_new_tokens).then_some(FinishReason::Length)
    }

    /// Returns the server that has the prefix of the prompt if it has room, or else the one that [`choose`](Self::choose) prefers.
    fn server_for(&self, id: SampleId, now: Instant) -> Option<usize> {
        let (oldest, most) = (self.responses.get(&id)?.oldest, self.config.max_running);
        let takes = |server: &usize| self.members[*server].takes(oldest, most, now);
        let current = self.assigned.get(&(id.step, id.prompt)).copied().filter(takes);
        current.or_else(|| self.choose((0..self.members.len()).filter(takes)))
    }

    fn call(&mut self, id: SampleId, server: usize) {
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
            sampling: sampling::rest(&self.config.sampling, &self.config.ends, response.kept()),
            cache_salt: salt(&policy),
        };
        let (client, pulse) = (member.server.clone(), Arc::clone(&member.pulse));
        let (request, tokens) = (call.id.clone(), self.sender.clone());
        let task = self.tasks.spawn(async move {
            let mut sink = |piece| drop(tokens.send(Message::Tokens(id, number, piece)));
            let result = client.generate(&call, &pulse, &mut sink).await;
            let _gone = tokens.send(Message::Ended(id, number, result));
        });
        member.running.insert(id);
        member.load += response.tokens();
        let running = Running::new(number, request, server, policy.version, task);
        response.run(running, self.clock.now());
        self.assigned.insert((id.step, id.prompt), server);
    }

    /// Aborts a response of the caller.
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
                // The call to abort ends with an error of its own, or is dropped after a time.
                tracing::debug!(%error, "cannot abort a response");
            }
        });
    }

    /// Repeats aborts that have not ended their calls. Drops the calls of servers that do not answer.
    pub(super) fn repeat_aborts(&mut self) {
        let is_due = |response: &&Response| {
            let sent = response.call.as_ref().and_then(|call| call.abort_sent);
            response.is_aborted && sent.is_some_and(|sent| sent.elapsed() > REPEAT_ABORT)
        };
        let due: Vec<SampleId> =
            self.responses.values().filter(is_due).map(|response| response.id).collect();
        for id in due {
            let Some(response) = self.responses.get_mut(&id) else { continue };
            response.aborts += 1;
            if REPEAT_ABORT * response.aborts < self.config.limits.call {
                self.send_abort(id);
            } else {
                self.drop_call(id);
                self.finish(id, FinishReason::Abort);
            }
        }
    }
}
