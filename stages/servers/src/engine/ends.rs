//! Tokens and ends of calls.

use std::time::Duration;

use backon::{BackoffBuilder, ExponentialBuilder};
use rollpacker_dataflow::step::SampleId;
use rollpacker_stages::rollout::{FinishReason, RolloutError};
use tokio::time::Instant;

use super::coordinator::Coordinator;
use super::member::MemberState;
use crate::http::{Reaction, ServerError};
use crate::server::{Finish, Outcome, Piece};

/// The number of calls in a row that may fail without a token before the response is given up.
const MOST_FAILED_ATTEMPTS: u32 = 10;

impl Coordinator {
    /// Adds tokens to a response.
    pub(super) fn add(&mut self, id: SampleId, number: u64, piece: Piece) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        let Some(call) = response.call.as_mut().filter(|call| call.number == number) else {
            return;
        };
        let (server, tokens) = (call.server, piece.tokens.len());
        call.add(piece);
        response.moved(self.clock.now());
        self.members[server].load += tokens as u64;
        self.output.shared.count_work(tokens);
    }

    pub(super) fn call_ended(
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
            Ok(outcome) if self.is_unproven(server, id, &outcome) => {
                self.members[server].unproven.push((id, number, outcome));
            }
            Ok(outcome) => self.settle(id, server, &outcome),
            Err(error) => self.call_failed(id, server, &error),
        }
        // A server that drains can load once its last response has ended.
        if matches!(self.members[server].state, MemberState::Draining) {
            self.advance(server);
        }
        self.dispatch();
    }

    /// Returns `true` if a response has tokens of weights that the canary has not proven yet.
    fn is_unproven(&self, server: usize, id: SampleId, outcome: &Outcome) -> bool {
        let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
        let own = call.map(|call| call.version.0.to_string());
        let labels = outcome.labels.iter().flatten();
        matches!(self.members[server].state, MemberState::Loading)
            && labels.into_iter().any(|(label, _)| Some(label) != own.as_ref())
    }

    /// Settles the responses that ended before the canary had passed.
    pub(super) fn settle_unproven(&mut self, server: usize) {
        for (id, number, outcome) in std::mem::take(&mut self.members[server].unproven) {
            let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
            if call.is_some_and(|call| call.number == number) {
                self.settle(id, server, &outcome);
            }
        }
    }

    /// Ends a call that the server ended.
    fn settle(&mut self, id: SampleId, server: usize, outcome: &Outcome) {
        self.leave(id, server);
        let newest = self.latest.as_ref().map(|(_, delivery)| delivery.policy.version);
        let Some(response) = self.responses.get_mut(&id) else { return };
        let Some(version) = response.call.as_ref().map(|call| call.version) else { return };
        let allowed = version..=newest.unwrap_or_default().max(version);
        let is_whole = match &outcome.labels {
            Some(labels) => match response.keep_labelled(labels, &allowed) {
                Ok(tokens) => {
                    response.failed_attempts =
                        if tokens == 0 { response.failed_attempts } else { 0 };
                    true
                }
                Err((label, discarded)) => {
                    let found = format!("`{label}`, which is not in {version}..={}", allowed.end());
                    self.wrong_version(id, server, discarded, &found);
                    return;
                }
            },
            None => {
                let (_, discarded) = response.keep_certain();
                self.count_discarded(discarded);
                discarded == 0
            }
        };
        self.members[server].breaker.succeeded();
        self.end(id, outcome.finish, is_whole);
    }

    /// Reports a response or continues it elsewhere.
    fn end(&mut self, id: SampleId, finish: Finish, is_whole: bool) {
        let is_aborted = self.responses.get(&id).is_some_and(|response| response.is_aborted);
        match finish {
            Finish::Stop if is_whole => self.finish(id, FinishReason::Stop),
            Finish::Length if is_whole => self.finish(id, FinishReason::Length),
            _ if is_aborted => self.finish(id, FinishReason::Abort),
            // A pause for new weights ended the call.
            _ => self.wait(id),
        }
    }

    fn wrong_version(&mut self, id: SampleId, server: usize, discarded: usize, found: &str) {
        self.count_discarded(discarded);
        let name = self.members[server].server.name();
        // The label proves that the server does not have the delivered weights.
        self.members[server].policy = None;
        self.suspect(server, format!("{name}: wrong weight version: {found}"));
        self.retry(id, server, "wrong weight version");
    }

    /// Ends a call that failed.
    fn call_failed(&mut self, id: SampleId, server: usize, error: &ServerError) {
        self.leave(id, server);
        let Some(response) = self.responses.get_mut(&id) else { return };
        let (kept, discarded) = match error {
            ServerError::Garbage { .. } => (0, response.discard()),
            _ => response.keep_certain(),
        };
        response.failed_attempts = if kept == 0 { response.failed_attempts } else { 0 };
        self.count_discarded(discarded);
        match error.reaction() {
            Reaction::Elsewhere => {
                self.suspect(server, error.to_string());
                self.retry(id, server, &error.to_string());
            }
            Reaction::Later => self.later(id, server, error),
            Reaction::Never => self.fail(RolloutError::Engine {
                instance: u32::try_from(server).unwrap_or(u32::MAX),
                reason: format!("{id}: {error}"),
            }),
        }
    }

    /// Continues a response, or fails the engine after too many failed calls in a row.
    fn retry(&mut self, id: SampleId, server: usize, reason: &str) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        if response.is_aborted {
            return self.finish(id, FinishReason::Abort);
        }
        response.failed_attempts += 1;
        let failed_attempts = response.failed_attempts;
        self.output.shared.measurements.change(|reading| reading.moved_responses += 1);
        if failed_attempts < MOST_FAILED_ATTEMPTS {
            return self.wait(id);
        }
        self.fail(RolloutError::Engine {
            instance: u32::try_from(server).unwrap_or(u32::MAX),
            reason: format!(
                "{id}: {failed_attempts} calls in a row failed, the last with: {reason}"
            ),
        });
    }

    /// Delays a response and further calls to its busy server, by the time that the server states or else by a growing time.
    fn later(&mut self, id: SampleId, server: usize, error: &ServerError) {
        let Some(response) = self.responses.get_mut(&id) else { return };
        if response.is_aborted {
            return self.finish(id, FinishReason::Abort);
        }
        response.busy += 1;
        let delay = error.retry_after().unwrap_or_else(|| busy_delay(response.busy));
        let time = Instant::now() + delay;
        self.members[server].not_before = Some(time);
        self.output.shared.measurements.change(|reading| reading.server_errors += 1);
        tracing::debug!(%error, ?delay, "an inference server is busy");
        self.wait(id);
    }

    /// Puts a response back into the queue.
    fn wait(&mut self, id: SampleId) {
        // Responses that were launched earlier go on first.
        self.waiting.push_front(id);
    }

    /// Removes a response from the running responses of its server.
    fn leave(&mut self, id: SampleId, server: usize) {
        let member = &mut self.members[server];
        member.running.remove(&id);
        let tokens = self.responses.get(&id).map_or(0, |response| response.tokens());
        member.load = member.load.saturating_sub(tokens);
    }

    /// Drops a call and keeps the tokens that are certain.
    pub(super) fn drop_call(&mut self, id: SampleId) {
        let call = self.responses.get(&id).and_then(|response| response.call.as_ref());
        let Some((server, task)) = call.map(|call| (call.server, call.task.clone())) else {
            return;
        };
        task.abort();
        self.leave(id, server);
        let kept = self.responses.get_mut(&id).map(|response| response.keep_certain());
        self.count_discarded(kept.map_or(0, |(_, discarded)| discarded));
    }

    /// Takes all responses from a server. Those that the caller aborted end.
    pub(super) fn evict(&mut self, server: usize) {
        self.members[server].unproven.clear();
        for id in self.members[server].running.clone() {
            self.drop_call(id);
            self.output.shared.measurements.change(|reading| reading.moved_responses += 1);
            match self.responses.get(&id).is_some_and(|response| response.is_aborted) {
                true => self.finish(id, FinishReason::Abort),
                false => self.wait(id),
            }
        }
    }

    fn count_discarded(&self, tokens: usize) {
        let tokens = tokens as u64;
        self.output.shared.measurements.change(|reading| reading.discarded_tokens += tokens);
    }
}

/// Returns the time to wait before the `times`-th call to a busy server.
fn busy_delay(times: u32) -> Duration {
    const LONGEST: Duration = Duration::from_secs(10);
    let mut delays = ExponentialBuilder::default()
        .with_min_delay(Duration::from_millis(100))
        .with_max_delay(LONGEST)
        .without_max_times()
        .with_jitter()
        .build();
    delays.nth(times.saturating_sub(1) as usize).unwrap_or(LONGEST)
}
