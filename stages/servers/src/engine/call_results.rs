//! The handling of received tokens and of calls that end.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::{FinishReason, RolloutError};
use tokio::time::Instant;

use super::coordinator::Coordinator;
use super::member::MemberState;
use crate::http::{RetryHint, ServerError};
use crate::server::{Finish, Outcome, TokenChunk};

/// The number of failed calls in a row, for one response and without a new token, at which the engine fails.
const MAX_FAILED_ATTEMPTS: u32 = 10;

impl Coordinator {
    /// Adds tokens to the running call of a response. Tokens of an earlier call are ignored.
    pub(super) fn add_tokens(&mut self, id: SampleId, number: u64, chunk: TokenChunk) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        let Some(call) = response.call.as_mut().filter(|call| call.number == number) else {
            return;
        };
        let (server, tokens) = (call.server, chunk.tokens.len());
        call.add(chunk);
        response.record_token_time(self.clock.now());
        self.members[server].load += tokens as u64;
        self.output.shared.count_work(tokens);
    }

    pub(super) fn on_call_end(
        &mut self,
        id: SampleId,
        number: u64,
        result: Result<Outcome, ServerError>,
    ) {
        let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
        let Some(server) = call.filter(|call| call.number == number).map(|call| call.server) else {
            return;
        };
        match result {
            Ok(outcome) if self.is_unverified(server, id, &outcome) => {
                self.members[server].unverified.push((id, number, outcome));
            }
            Ok(outcome) => self.call_succeeded(id, server, &outcome),
            Err(error) => self.call_failed(id, server, &error),
        }
        // A server that drains can load once its last response has ended.
        if matches!(self.members[server].state, MemberState::Draining) {
            self.advance(server);
        }
        self.dispatch();
    }

    /// Returns `true` if the server is loading weights and labels some tokens with another version than the one at the start of the call.
    /// The canary has not passed yet for the weights that sampled these tokens.
    fn is_unverified(&self, server: usize, id: SampleId, outcome: &Outcome) -> bool {
        let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
        let own = call.map(|call| call.version.0.to_string());
        let labels = outcome.labels.iter().flatten();
        matches!(self.members[server].state, MemberState::Loading)
            && labels.into_iter().any(|(label, _)| Some(label) != own.as_ref())
    }

    /// Completes the calls that ended before the canary had passed.
    pub(super) fn complete_unverified(&mut self, server: usize) {
        for (id, number, outcome) in std::mem::take(&mut self.members[server].unverified) {
            let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
            if call.is_some_and(|call| call.number == number) {
                self.call_succeeded(id, server, &outcome);
            }
        }
    }

    /// Handles a call that ended without an error: keeps its tokens, and reports the response or continues it. If the server reports no
    /// versions, keeps only the tokens whose version is certain. If it reports a wrong version, discards all tokens of the call and takes
    /// the server out of rotation.
    fn call_succeeded(&mut self, id: SampleId, server: usize, outcome: &Outcome) {
        self.remove_running(id, server);
        let newest = self.latest.as_ref().map(|(_, delivery)| delivery.policy.version);
        let Some(response) = self.responses.get_mut(&id) else { return };
        if outcome.finish == Finish::Abort && response.is_refused() {
            return self.refused(id, server);
        }
        let Some(version) = response.call.as_ref().map(|call| call.version) else { return };
        let allowed = version..=newest.unwrap_or_default().max(version);
        let is_whole = match &outcome.labels {
            Some(labels) => match response.keep_labelled(labels, &allowed) {
                Ok(()) => true,
                Err((label, discarded)) => {
                    let found = format!("`{label}`, which is not in {version}..={}", allowed.end());
                    self.wrong_version(id, server, discarded, &found);
                    return;
                }
            },
            None => {
                let discarded = response.keep_certain();
                self.count_discarded(discarded);
                discarded == 0
            }
        };
        self.members[server].breaker.record_success();
        self.finish_or_requeue(id, outcome.finish, is_whole);
    }

    /// Reports a response that is complete or aborted, or queues it to be continued. `is_whole` is `true` if all tokens of the call were
    /// kept.
    fn finish_or_requeue(&mut self, id: SampleId, finish: Finish, is_whole: bool) {
        let is_aborted = self.responses.get(&id).is_some_and(|response| response.is_aborted);
        match finish {
            Finish::Stop if is_whole => self.finish(id, FinishReason::Stop),
            Finish::Length if is_whole => self.finish(id, FinishReason::Length),
            _ if is_aborted => self.finish(id, FinishReason::Abort),
            // A pause for new weights ended the call.
            _ => self.requeue(id),
        }
    }

    /// Handles a call that the server aborted without a token and without a reason, as a failed call: a server that aborts every call would
    /// otherwise be called again without end.
    fn refused(&mut self, id: SampleId, server: usize) {
        if let Some(response) = self.responses.get_mut(&id) {
            response.discard();
        }
        let name = self.members[server].server.name();
        let fault = format!("{name}: expected a token, found a call that the server aborted");
        self.mark_suspect(server, fault.clone());
        self.retry(id, server, &fault);
    }

    fn wrong_version(&mut self, id: SampleId, server: usize, discarded: usize, found: &str) {
        self.count_discarded(discarded);
        let name = self.members[server].server.name();
        // The label proves that the server does not have the delivered weights.
        self.members[server].policy = None;
        self.mark_suspect(server, format!("{name}: wrong weight version: {found}"));
        self.retry(id, server, "wrong weight version");
    }

    /// Handles a call that failed: keeps the tokens whose version is certain, or none if the answer is invalid. Then continues or ends the
    /// response, or fails the engine if the call would fail on every server or too many calls in a row have failed.
    fn call_failed(&mut self, id: SampleId, server: usize, error: &ServerError) {
        self.remove_running(id, server);
        let Some(response) = self.responses.get_mut(&id) else { return };
        let discarded = match error {
            ServerError::InvalidAnswer { .. } => response.discard(),
            _ => response.keep_certain(),
        };
        self.count_discarded(discarded);
        match error.retry_hint() {
            RetryHint::OtherServer => {
                self.mark_suspect(server, error.to_string());
                self.retry(id, server, &error.to_string());
            }
            RetryHint::Later => self.retry_later(id, server, error),
            RetryHint::Never => self.fail(RolloutError::Engine {
                instance: u32::try_from(server).unwrap_or(u32::MAX),
                reason: format!("{id}: {error}"),
            }),
        }
    }

    /// Queues a response after a failed call, or fails the engine after too many failed calls in a row. A response that the caller aborted
    /// ends instead.
    fn retry(&mut self, id: SampleId, server: usize, reason: &str) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        if response.is_aborted {
            return self.finish(id, FinishReason::Abort);
        }
        response.failed_attempts += 1;
        let failed_attempts = response.failed_attempts;
        self.output.shared.measurements.update(|reading| reading.moved_responses += 1);
        if failed_attempts < MAX_FAILED_ATTEMPTS {
            return self.requeue(id);
        }
        self.fail(RolloutError::Engine {
            instance: u32::try_from(server).unwrap_or(u32::MAX),
            reason: format!(
                "{id}: {failed_attempts} calls in a row failed, the last with: {reason}"
            ),
        });
    }

    /// Queues a response again and delays further calls to its busy server by [`busy_delay`]. A response that the caller aborted ends
    /// instead.
    fn retry_later(&mut self, id: SampleId, server: usize, error: &ServerError) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        if response.is_aborted {
            return self.finish(id, FinishReason::Abort);
        }
        response.busy_refusals += 1;
        let delay = busy_delay(response.busy_refusals, error.retry_after());
        self.members[server].postpone(Instant::now() + delay);
        self.output.shared.measurements.update(|reading| reading.server_errors += 1);
        tracing::debug!(%error, ?delay, "an inference server is busy");
        self.requeue(id);
    }

    /// Puts a response at the front of the queue.
    fn requeue(&mut self, id: SampleId) {
        // Responses that have been started come before those that have not.
        self.waiting.push_front(id);
    }

    /// Removes a response from the running responses of a server, and its tokens from the load of the server.
    fn remove_running(&mut self, id: SampleId, server: usize) {
        let member = &mut self.members[server];
        member.running.remove(&id);
        let tokens = self.responses.get(&id).map_or(0, |response| response.total_tokens());
        member.load = member.load.saturating_sub(tokens);
    }

    /// Cancels a call and keeps the tokens whose policy version is certain.
    pub(super) fn cancel_call(&mut self, id: SampleId) {
        let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
        let Some((server, task)) = call.map(|call| (call.server, call.task.clone())) else {
            return;
        };
        task.abort();
        self.remove_running(id, server);
        let discarded = self.responses.get_mut(&id).map(|response| response.keep_certain());
        self.count_discarded(discarded.unwrap_or(0));
    }

    /// Cancels all calls to a server. Responses that the caller aborted end; the others are queued again.
    pub(super) fn cancel_calls(&mut self, server: usize) {
        self.members[server].unverified.clear();
        for id in self.members[server].running.clone() {
            self.cancel_call(id);
            if self.responses.get(&id).is_some_and(|response| response.is_aborted) {
                self.finish(id, FinishReason::Abort);
                continue;
            }
            self.output.shared.measurements.update(|reading| reading.moved_responses += 1);
            self.requeue(id);
        }
    }

    fn count_discarded(&self, tokens: usize) {
        let tokens = tokens as u64;
        self.output.shared.measurements.update(|reading| reading.discarded_tokens += tokens);
    }
}

/// Returns the delay after the `times`-th refusal of a response by a busy server: the time that the server has `stated`, but at least
/// 0.1 s. If the server has stated none, the delay is random from `d` to `2 * d`, where `d` is 0.1 s at the first refusal and doubles with
/// each further refusal, up to 10 s.
fn busy_delay(times: u32, stated: Option<Duration>) -> Duration {
    const MIN_DELAY: Duration = Duration::from_millis(100);
    const MAX_DELAY: Duration = Duration::from_secs(10);
    if let Some(stated) = stated {
        return stated.max(MIN_DELAY);
    }
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(MIN_DELAY)
        .with_max_delay(MAX_DELAY)
        .without_max_times()
        .with_jitter()
        .build();
    delays.nth(times.saturating_sub(1) as usize).unwrap_or(MAX_DELAY)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_busy_server_is_never_called_again_at_once() {
        let seconds = Duration::from_secs_f64;
        assert_eq!(busy_delay(1, Some(seconds(0.0))), seconds(0.1));
        assert_eq!(busy_delay(9, Some(seconds(3.0))), seconds(3.0));
        for (times, least) in [(1, 0.1), (2, 0.2), (5, 1.6), (50, 10.0)] {
            let delay = busy_delay(times, None);
            assert!((seconds(least)..=seconds(2.0 * least)).contains(&delay), "{times}: {delay:?}");
        }
    }
}
